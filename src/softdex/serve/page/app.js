// The page: its head, its tabs, and the view that the address names.

import { path, useAsk } from "./api.js";
import { go, usePlace } from "./address.js";
import { still } from "./files.js";
import { Help, Theme, Token } from "./head.js";
import { App, Empty, Loading, Wrong, counted, useApp, useNarrow } from "./parts.js";
import { Search } from "./search.js";
import { html, render, useEffect, useErrorBoundary, useMemo } from "./vendor/htm-preact-standalone.js";
import { VIEWS } from "./views.js";

function Page() {
  const place = usePlace();
  const models = useAsk("v1/models");
  const served = (models.data?.models ?? []).filter((each) => each.seal);
  const name = place.get("model", models.data?.default ?? "");
  const model = served.find((each) => each.name === name);
  const facts = useAsk(model && path("v1/study", { model: name }));
  const app = useMemo(
    () => ({ place, models: served, model, facts: facts.data }),
    [place, models.data, facts.data, name],
  );
  useEffect(() => {
    const view = VIEWS.find((each) => each.name === place.view);
    document.title = [view?.title, place.get("user"), name, "softdex"].filter(Boolean).join(" · ");
  }, [place, name]);
  const trouble = models.error ?? facts.error;
  const unknown = models.data && !model && !trouble;
  const ready = model && facts.data && facts.data.model === model.name;
  return html`<${App.Provider} value=${app}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    ${ready ? html`<${Head} /><${Tabs} />` : html`<header class="head"><span class="brand">softdex</span></header>`}
    <main id="main" tabindex="-1">
      ${still && html`<p class="page soft small copy">A copy with ${counted(still.users, "users")}, written ${still.made} by softdex export. softdex look shows everybody, and answers what if.</p>`}
      ${trouble && html`<${Wrong} error=${trouble} />`}
      ${unknown && html`<${Empty}>No model ${name} is served. <a href="#/lists">Show the first one.</a><//>`}
      ${ready && html`<${View} key=${place.view} place=${place} />`}
      ${!ready && !trouble && !unknown && html`<${Loading} />`}
    </main>
    <${Token} />
    <${Help} />
  <//>`;
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function Head() {
  const { place, models, model, facts } = useApp();
  const pick = ({ user, item }) =>
    go(user === undefined ? place.link({ item, walk: null }, "similar") : place.link({ user, add: null, drop: null }, "lists"));
  const choose = (event) => go(place.link({ model: event.target.value }));
  return html`<header class="head">
    <a class="brand" href="#/lists">softdex</a>
    <${Search} id="search" label="Find a user or an item" pick=${pick} hint=${useNarrow() ? undefined : "Find a user or an item   ( / )"} />
    <div class="served">
      <label class="hidden" for="model">Model</label>
      <select id="model" value=${model.name} onChange=${choose}>
        ${models.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
      </select>
      <span class="soft small about">${facts.recipe} · ${counted(facts.users, "users")} · ${counted(facts.items, "items")}</span>
    </div>
    <${Theme} />
  </header>`;
}

function Tabs() {
  const app = useApp();
  useEffect(() => {
    document.querySelector(".tabs a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [app.place.view]);
  return html`<nav class="tabs" aria-label="Views"><ul>
    ${VIEWS.map((view) => html`<li key=${view.name}>
      <a href=${app.place.link({}, view.name)} class=${view.when?.(app) ? "away" : ""}
        aria-current=${view.name === app.place.view ? "page" : null}>${view.title}</a>
    </li>`)}
  </ul></nav>`;
}

function View({ place }) {
  const app = useApp();
  const [error] = useErrorBoundary((fault) => console.error(fault));
  const view = VIEWS.find((each) => each.name === place.view);
  if (error) return html`<${Wrong} error=${new Error(`This view failed: ${error.message}`)} />`;
  if (!view) return html`<${Empty}>There is no view ${place.view}. <a href="#/lists">See the lists.</a><//>`;
  const why = view.when?.(app);
  return why ? html`<${Empty}>${why}<//>` : html`<${view.View} />`;
}

render(html`<${Page} />`, document.getElementById("app"));
