// Lists: the history of a user left, the list right; what was held out, why, what if.

import { ask, path, useAsk } from "../api.js";
import { clean, useAsked, useNobody, useRows } from "../asked.js";
import { go } from "../address.js";
import { Code } from "../code.js";
import { Controls } from "../controls.js";
import { useKey } from "../head.js";
import { still } from "../files.js";
import { History, More } from "../history.js";
import {
  Answer,
  Bar,
  Empty,
  Heads,
  Item,
  Loading,
  Wrong,
  cells,
  count,
  counted,
  number,
  percent,
  scale,
  portion,
  title,
  useApp,
  useKinds,
  useNarrow,
  useShown,
  words,
} from "../parts.js";
import { html, useMemo, useState } from "../vendor/htm-preact-standalone.js";

const FIRST = 20; // items of what was held out that are shown before one asks for more
const KINDS = {
  random: ["r", "Random", "A user at random"],
  hard: ["h", "Hard", "One of the users with the worst lists, and the most events"],
  cold: ["c", "Cold", "One of the users with the fewest events"],
};

/** Ask for a user of a kind, and go there. */
async function jump(place, model, kind) {
  const seed = Math.floor(Math.random() * 1e9);
  const limit = kind === "random" ? 1 : 50;
  const { rows } = await ask(path("v1/study/users", { kind, seed, limit, model }));
  const row = rows[Math.floor(Math.random() * rows.length)];
  if (row) go(place.link({ user: String(row.user), add: null, drop: null, why: null }, "lists"));
}

function View() {
  const { place, model, facts } = useApp();
  const asked = useAsked(model.name, facts);
  const { nobody, looking } = useNobody();
  const list = useAsk(asked.body && "v1/recommend", asked.body);
  const items = list.data?.items ?? [];
  const recent = asked.history.slice(-2000);
  const rows = useRows(
    [...recent, ...asked.drop, ...items.map((each) => each.item), ...(asked.study?.targets ?? [])],
    model.name,
  );
  const chosen = place.get("why");
  const why = useAsk(
    chosen && asked.body && "v1/explain",
    clean({ ...asked.who, item: chosen, model: model.name }),
  );
  const shares = chosen && !why.busy ? why.data : null;
  if (looking) return html`<div class="page wide"><${Loading} rows=${10} /></div>`;
  return html`<div class="page wide">
    <${Who} asked=${asked} />
    <${Controls} />
    <div class="sides">
      <section class="list" aria-label="List">
        ${nobody && html`<${Empty}>Find a user above, or add an item to the history.<//>`}
        ${
          !nobody &&
          html`<${Answer} of=${list} rows=${10}>
            ${(data) => html`<${List} data=${data} rows=${rows} asked=${asked} why=${why} />`}
          <//>`
        }
        ${asked.study?.targets.length > 0 && html`<${Missed} asked=${asked} items=${items} rows=${rows} why=${why} />`}
      </section>
      <${History}
        asked=${asked}
        rows=${rows}
        why=${shares}
        about=${chosen && title(rows.get(chosen) ?? { item: chosen }, facts)}
      />
    </div>
    ${asked.body && html`<${Code} endpoint="v1/recommend" body=${asked.body} file=${model.path} />`}
  </div>`;
}

function Who({ asked }) {
  const { place, model, facts } = useApp();
  const to = (kind) => jump(place, model.name, kind);
  const { study } = asked;
  const metric = asked.marks && `ndcg@${asked.marks.cutoff}`;
  const value = asked.marks?.metrics[metric];
  return html`<header class="who">
    <div>
      <h1 class="clamp">${asked.user ? asked.user : "A new user"}</h1>
      <p class="soft">
        ${asked.known.data && `${counted(asked.base.length, "events")}`}
        ${asked.live.length > 0 && ` · ${count(asked.live.length)} live`}
        ${study?.targets.length > 0 && html` · ${count(study.targets.length)} held out`}
        ${value !== undefined && value !== null && html` · ${metric} <b>${value.toFixed(3)}</b>`}
        ${asked.held.busy && asked.held.working && html` · <span role="status">reading what was held out …</span>`}
        ${asked.held.error && asked.held.error.status !== 404 && html` · ${asked.held.error.message}`}
      </p>
    </div>
    <div class="buttons" role="group" aria-label="Other users">
      ${Object.entries(KINDS).map(
        ([kind, [key, name, what]]) =>
          (facts.holdout || kind !== "hard") &&
          html`<${Jump} key=${kind} press=${key} name=${name} what=${what} to=${() => to(kind)} />`,
      )}
      <a class="button" href=${place.link({}, "users")}>All users</a>
    </div>
  </header>`;
}

function Jump({ press, name, what, to }) {
  useKey(press, to);
  return html`<button type="button" onClick=${to} title=${`${what} (${press})`}>${name}</button>`;
}

/** The items of an answer as a table; Enter or a click asks why. */
function List({ data, rows, asked, why }) {
  const { place, facts } = useApp();
  const [shown, narrow, kindOf] = [useShown(), useNarrow(), useKinds()];
  const held = useMemo(() => new Set((asked.study?.targets ?? []).map(String)), [asked.study]);
  const { items, sampling } = data;
  const chosen = place.get("why");
  const share = scale(items);
  const pick = (item) =>
    go(place.link({ why: String(item) === chosen ? null : item }), { replace: true });
  const at = items.findIndex((each) => String(each.item) === chosen);
  const step = (by) => {
    const next = items[Math.max(0, Math.min(items.length - 1, at + by))];
    if (!next) return;
    go(place.link({ why: next.item }), { replace: true });
    requestAnimationFrame(() =>
      document.querySelector("tr.chosen")?.scrollIntoView({ block: "nearest" }),
    );
  };
  useKey("j", () => step(1));
  useKey("k", () => step(-1));
  useKey("Escape", () => go(place.link({ why: null }), { replace: true }));
  useKey("s", () => chosen && go(place.link({ item: chosen, walk: null }, "similar")));
  if (!items.length) return html`<${Empty}>No item is left under these filters.<//>`;
  return html` ${data.fallback && html`<p class="note">The user has no events: these are the most popular items.</p>`}
    ${data.live === false && html`<p class="note">The model keeps one vector per user: live events are excluded from the list, but do not change its order.</p>`}
    ${sampling && html`<p class="note">Drawn at temperature ${number(sampling.temperature)} with seed ${sampling.seed}, from ${sampling.from === "all" ? "all items" : sampling.from}.</p>`}
    <table class="wide ranked">
      <${Heads} shown=${shown} label=${sampling ? "p in the list" : "Score"} />
      <tbody>
        ${items.map((item) => {
          const key = String(item.item);
          const open = key === chosen;
          const row = rows.get(key);
          return html`<tr
              key=${key}
              class=${`${held.has(key) ? "held" : ""} ${open ? "chosen" : ""}`}
              onClick=${() => pick(item.item)}
            >
              <td class="soft">${item.rank}</td>
              <td class="words">
                <button
                  type="button"
                  class="row"
                  aria-expanded=${open}
                  onClick=${(event) => {
                    event.stopPropagation();
                    pick(item.item);
                  }}
                >
                  <${Item}
                    row=${{ ...item, ...(row ?? {}) }}
                    facts=${facts}
                    shown=${place.all("columns")}
                  />
                </button>
                ${held.has(key) && html`<span class="chip good"><span aria-hidden="true">✓</span><span class="long">held out</span></span>`}
              </td>
              ${shown.map((name) => html`<td key=${name} class=${kindOf(name)}><span class="cut">${words(cells(item)[name])}</span></td>`)}
              ${!narrow && html`<td class="soft">${row ? count(row.events) : ""}</td>`}
              <td>
                <span class="value">
                  ${sampling ? percent(item.propensity ?? 0, 1) : number(item.score)}
                  <${Bar}
                    share=${sampling ? (item.propensity ?? 0) : share(item.score)}
                    kind=${held.has(key) ? "good" : ""}
                    label=""
                  />
                </span>
              </td>
            </tr>
            ${
              open &&
              html`<tr key=${`${key} why`} class="because">
                <td></td>
                <td class="words" colspan=${(narrow ? 2 : 3) + shown.length}>
                  <${Because} of=${why} rows=${rows} item=${item} />
                </td>
              </tr>`
            }`;
        })}
      </tbody>
    </table>`;
}

/** Why an item is in the list, in one line, and where to go from it. */
function Because({ of, rows, item }) {
  const { place, facts } = useApp();
  const links = html`<span class="links">
    <a href=${place.link({ item: item.item, walk: null }, "similar")}>similar items</a>
    ${facts.reads_history && !still && html`<a href=${place.link({ add: [...place.all("add"), item.item], why: null })}>add to the history</a>`}
  </span>`;
  if (of.error)
    return html`<p class="soft">${of.error.message}</p>
      ${links}`;
  if (of.busy || !of.data) return html`<p class="soft" role="status">Asking why …</p>`;
  const { shares, base, rest, exact, method } = of.data;
  const sum = shares.reduce((total, each) => total + Math.abs(each.share), 0) || 1;
  const top = [...shares].sort((a, b) => Math.abs(b.share) - Math.abs(a.share)).slice(0, 4);
  const name = (each) =>
    each.of === "user"
      ? "the user's own vector"
      : title(rows.get(String(each.item)) ?? each, facts);
  return html`<p>
      ${top.length ? "Because of " : "Nothing in the history: a base score for everybody."}
      ${top.map((each, i) => html`${i > 0 && ", "}<b>${name(each)}</b> <span class=${each.share < 0 ? "bad" : "soft"}>${each.share < 0 ? "−" : ""}${portion(Math.abs(each.share) / sum)}</span>`)}.
    </p>
    <p class="soft small">
      Score ${number(of.data.score)}
      ${exact ? ` = ${number(base)} for everybody + the shares${Math.abs(rest) > 1e-6 ? ` + ${number(rest)} between them` : ""}` : `, by ${method}`}.
    </p>
    ${links}`;
}

/** What was held out of the user and is not in the list, with its rank. */
function Missed({ asked, items, rows, why }) {
  const { place, model, facts } = useApp();
  const [all, show] = useState(false);
  const chosen = place.get("why");
  const listed = new Set(items.map((each) => String(each.item)));
  const targets = asked.study.targets.slice(0, 500);
  const ranks = useAsk(
    asked.body && "v1/score",
    clean({ ...asked.who, items: targets, model: model.name }),
  );
  if (ranks.error) return html`<${Wrong} error=${ranks.error} />`;
  const scored = [...(ranks.data?.items ?? [])].sort((a, b) => (a.rank ?? 1e9) - (b.rank ?? 1e9));
  const missed = scored.filter((each) => !listed.has(String(each.item)));
  const found = targets.length - missed.length;
  return html`<section class="missed" aria-label="Held out">
    <h2>Held out</h2>
    <p class="soft">
      ${ranks.data ? `${count(found)} of ${count(targets.length)} in this list.` : "Ranking what was held out …"}
      ${asked.changed ? " Under the changed history:" : missed.length > 0 && " The others, with their rank among all items:"}
    </p>
    ${
      missed.length > 0 &&
      html`<ol class="rows">
        ${(all ? missed : missed.slice(0, FIRST)).map((each) => {
          const key = String(each.item);
          const open = key === chosen;
          return html`<li key=${key} class=${open ? "open" : ""}>
            <span class="rank">${each.rank === null ? "–" : count(each.rank)}</span>
            <button
              type="button"
              class="row"
              aria-expanded=${open}
              onClick=${() => go(place.link({ why: open ? null : key }), { replace: true })}
            >
              <${Item} row=${rows.get(key) ?? each} facts=${facts} shown=${place.all("columns")} />
            </button>
            ${open && html`<div class="because"><${Because} of=${why} rows=${rows} item=${each} /></div>`}
          </li>`;
        })}
      </ol>`
    }
    ${missed.length > FIRST && html`<${More} all=${all} of=${missed.length} show=${show} />`}
  </section>`;
}

export const view = { name: "lists", title: "Lists", View };
