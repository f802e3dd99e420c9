// Map: the items in the plane, those that the model finds similar close together, with the history
// and the list of a user on it.

import { go } from "../address.js";
import { path, useAsk } from "../api.js";
import { useAsked, useRows } from "../asked.js";
import { Answer, Spots, Wrong, count, percent, title, useApp } from "../parts.js";
import { Sky, useGrid } from "../sky.js";
import { html, useState } from "../vendor/htm-preact-standalone.js";

function View() {
  const { place, model, facts } = useApp();
  const columns = facts.columns.filter((each) => each.values && each.values.length > 1);
  const column = place.get("column", facts.category ?? "");
  const found = useAsk(path("v1/study/map", { model: model.name, column }));
  return html`<div class="page">
    <h1>Map of the items</h1>
    <p class="lead">Items that ${model.name} finds similar lie close together; directions mean nothing. Numbers are the list of the user, rings
      the history: a list far from every ring is a leap, one among the rings more of the same.</p>
    ${columns.length > 1 && html`<div class="with"><label>Colour <select value=${column} onChange=${(event) => go(place.link({ column: event.target.value }), { replace: true })}>
      ${columns.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select></label></div>`}
    <${Answer} of=${found} rows=${12}>
      ${(data) => (data.model === model.name ? html`<${Items} data=${data} />` : null)}
    <//>
  </div>`;
}

/** The map, what its colours mean, and the list of the user. */
function Items({ data }) {
  const { place, model, facts } = useApp();
  const asked = useAsked(model.name, facts);
  const list = useAsk(asked.body && "v1/recommend", asked.body);
  const { cells, at } = useGrid(data);
  const [over, hover] = useState(null);
  const items = (list.data?.items ?? []).map((each) => each.item);
  const history = asked.history.slice(-200);
  const known = over === null ? [] : [data.items[over]];
  const rows = useRows([...items, ...history, ...known], model.name);
  const name = (key) => title(rows.get(String(key)) ?? { item: key }, facts);
  const spots = (keys) => keys.map((key) => at.get(String(key))).filter((each) => each !== undefined);
  const similar = (item) => go(place.link({ item, walk: null }, "similar"));
  const missing = items.length - spots(items).length;
  const sampled = data.items.length < data.of;
  const said = over === null ? null : rows.get(String(data.items[over]));
  return html`
    <p>${asked.user ? html`The list of <b>${asked.user}</b>. ` : ""}Of the ${data.checked} items nearest to an item, <b>${percent(data.kept)}</b> are among its ${data.around} nearest on this map
      (${percent(data.plane)} on the plane of the two main directions).
      ${sampled && ` It shows ${count(data.items.length)} of ${count(data.of)} items: the most popular, and some of the others.`}
      ${missing > 0 && sampled && ` ${missing} of the list are not on it.`}</p>
    ${list.error && html`<${Wrong} error=${list.error} />`}
    <div class="map">
      <${Sky} data=${data} cells=${cells} over=${over} hover=${hover} listed=${spots(items)} past=${spots(history)} name=${over === null ? "" : name(data.items[over])}
        pick=${(i) => similar(data.items[i])} />
      <div>
        ${data.column && html`<h2>${data.column}</h2><ul class="colours small">${data.values.map((value, i) => html`<li key=${value} class=${`s${i + 1}`}><i class="key"></i>${value}</li>`)}
          <li class="s0"><i class="key"></i>other</li></ul>
          <p class="soft small">An item with several values has the colour of the rarest of these.</p>`}
        <p class="small read" aria-live="polite">${over === null ? html`<span class="soft">Point at an item; a click shows the similar ones. Drag to move, turn the wheel or press + and − to zoom.</span>`
          : html`<b>${name(data.items[over])}</b>, ${count(data.events[over])} events${said && data.column ? html`<br /><span class="soft">${[said.columns?.[data.column]].flat().join(", ")}</span>` : ""}`}</p>
        ${items.length > 0 && html`<${Spots} items=${items.map((key) => [key, at.get(String(key)) ?? null])} name=${name} hover=${hover} pick=${similar} />`}
      </div>
    </div>`;
}

const when = ({ facts }) => (facts.product || facts.tree || facts.index === "flat" ? "" : "This model does not know which items are similar.");

export const view = { name: "map", title: "Map", View, when };
