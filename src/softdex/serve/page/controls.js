// What is asked for: length, filters, columns, sampling. All of it is in the address.

import { K, split } from "./asked.js";
import { go } from "./address.js";
import { still } from "./files.js";
import { useApp, words } from "./parts.js";
import { Temperature } from "./temperature.js";
import { html, useState } from "./vendor/htm-preact-standalone.js";

const LENGTHS = still ? [5, 10, 20, 50] : [5, 10, 20, 50, 100];

/** The row of controls above a list; `plain` ones without those of users, or without `columns`. */
export function Controls({ plain = false, columns: chosen = true }) {
  const { place, facts } = useApp();
  const k = place.number("k", K);
  const lengths = LENGTHS.includes(k) ? LENGTHS : [...LENGTHS, k].sort((a, b) => a - b);
  const shown = place.all("columns");
  const columns = chosen ? facts.columns.filter((each) => each.name !== facts.title) : [];
  const put = (change) => go(place.link(change), { replace: true });
  const turn = (name, on) =>
    put({ columns: on ? [...shown, name] : shown.filter((each) => each !== name) });
  const given =
    place.all("where").length + (place.get("mode") ? 1 : 0) + (place.get("seen") ? 1 : 0);
  const [wide] = useState(() => matchMedia("(min-width: 48.01rem)").matches);
  return html`<details class="options" open=${wide}>
    <summary>Length ${k}${given > 0 ? `, ${given} more` : ""}: change</summary>
    <div class="controls">
      <label
        >Length
        <select value=${String(k)} onChange=${(event) => put({ k: event.target.value })}>
          ${lengths.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}
        </select>
      </label>
      ${!still && html`<${Filters} />`}
      ${
        columns.length > 0 &&
        html`<details class="menu">
          <summary>
            Columns${" "}${shown.length > 0 && html`<span class="chip on">${shown.length}</span>`}
          </summary>
          <fieldset class="card">
            <legend class="hidden">Columns to show</legend>
            ${columns.map(
              (each) =>
                html`<label key=${each.name} class="check">
                  <input
                    type="checkbox"
                    checked=${shown.includes(each.name)}
                    onChange=${(event) => turn(each.name, event.target.checked)}
                  /><span class="cut">${each.name}</span>
                </label>`,
            )}
          </fieldset>
        </details>`
      }
      ${
        !plain &&
        !still &&
        html`<${Sampling} />
          <label class="check">
            <input
              type="checkbox"
              checked=${place.get("seen") === "with"}
              onChange=${(event) => put({ seen: event.target.checked ? "with" : null })}
            />Seen items too
          </label>`
      }
    </div>
  </details>`;
}

function Filters() {
  const { place, facts } = useApp();
  const given = place.all("where");
  const open = facts.columns.filter((each) => each.values);
  const [chosen, choose] = useState(null);
  const column = open.find((each) => each.name === (chosen ?? facts.category)) ?? open[0];
  const put = (list) => go(place.link({ where: list }), { replace: true });
  const chips = given.map((each) => {
    const [name, value] = split(each, facts);
    return html`<button
      type="button"
      key=${each}
      class="chip on"
      aria-label=${`Remove the filter ${name}: ${value}`}
      onClick=${() => put(given.filter((other) => other !== each))}
    >
      <span class="cut">${value}</span> <span aria-hidden="true">×</span>
    </button>`;
  });
  if (!open.length) return chips;
  const add = (event) => {
    const text = `${column.name}:${event.target.value}`;
    if (event.target.value !== "" && !given.includes(text)) put([...given, text]);
    event.target.value = "";
  };
  return html`<span class="filters">
    ${
      open.length > 1 &&
      html`<label
        ><span>Filter</span>
        <select value=${column.name} onChange=${(event) => choose(event.target.value)}>
          ${open.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
        </select>
      </label>`
    }
    <label
      >${open.length > 1 ? html`<span class="hidden">Value of ${column.name}</span>` : html`<span class="cut">${column.name}</span>`}
      <select onChange=${add} value="">
        <option value="">any${given.length ? " other" : ""}</option>
        ${column.values.map(([value, n]) => html`<option key=${String(value)} value=${String(value)}>${words(value)} (${n})</option>`)}
      </select>
    </label>
    ${chips}
  </span>`;
}

function Sampling() {
  const { place, facts } = useApp();
  const sample = place.get("mode") === "sample";
  const put = (change) => go(place.link(change), { replace: true });
  const temperature = place.number("temperature", facts.temperature);
  const seed = place.number("seed", 1);
  const turn = (event) =>
    put(event.target.checked ? { mode: "sample" } : { mode: null, temperature: null, seed: null });
  return html`<span class="filters">
    <label class="check"
      ><input type="checkbox" checked=${sample} onChange=${turn} />Draw from the softmax</label
    >
    ${
      sample &&
      html`<${Temperature}
          value=${temperature}
          base=${facts.temperature}
          put=${(value) => put({ temperature: value })}
          live
        />
        <button type="button" onClick=${() => put({ seed: seed + 1 })}>Draw again</button>`
    }
  </span>`;
}
