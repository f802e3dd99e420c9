// Similar items, walked by clicking: an item, its neighbours, their neighbours.

import { ask, path, useAsk } from "../api.js";
import { K, clean, useRows, where } from "../asked.js";
import { go } from "../address.js";
import { Code } from "../code.js";
import { Controls } from "../controls.js";
import { still } from "../files.js";
import { Answer, Empty, Ranked, cells, counted, title, useApp, wanted, words } from "../parts.js";
import { html, useEffect } from "../vendor/htm-preact-standalone.js";

const STEPS = 12; // of the walk that are kept

function View() {
  const { place, model, facts } = useApp();
  const item = place.get("item");
  useEffect(() => {
    // it starts somewhere: at the first item of the catalogue
    if (item) return;
    ask(path("v1/items", { limit: 1, model: model.name })).then(
      ({ rows }) => {
        if (rows.length) go(place.link({ item: rows[0].item }), { replace: true });
      },
      () => {},
    );
  }, [item, model.name]);
  const walk = place.all("walk");
  const body = item
    ? clean({
        items: [item],
        k: place.number("k", K),
        where: where(place, facts),
        columns: wanted(facts, place.all("columns")),
        model: model.name,
      })
    : undefined;
  const found = useAsk(body && "v1/similar", body);
  const near = found.data?.similar[0]?.items ?? [];
  const rows = useRows(
    [item, ...walk, ...near.map((each) => each.item)].filter(Boolean),
    model.name,
  );
  const name = (key) => title(rows.get(key) ?? { item: key }, facts);
  const to = (key) => place.link({ item: key, walk: [...walk, item].slice(-STEPS) });
  return html`<div class="page">
    ${
      walk.length > 0 &&
      html`<nav class="walk" aria-label="The walk">
        <ol>
          ${walk.map(
            (key, i) =>
              html`<li key=${i}>
                <a class="cut" href=${place.link({ item: key, walk: walk.slice(0, i) })}
                  >${name(key)}</a
                >
              </li>`,
          )}
        </ol>
      </nav>`
    }
    ${item && html`<${Card} item=${item} row=${rows.get(item)} />`}
    <${Controls} plain />
    <${Answer} of=${found} rows=${10}>
      ${() =>
        near.length
          ? html`<${Ranked} items=${near} rows=${rows} to=${to} label="Similarity" />`
          : html`<${Empty}>No similar item is left under these filters.<//>`}
    <//>
    ${body && html`<${Code} endpoint="v1/similar" body=${body} method="similar" file=${model.path} />`}
  </div>`;
}

/** An item with all its columns. */
function Card({ item, row }) {
  const { place, facts } = useApp();
  const known = row ?? { item };
  const name = title(known, facts);
  const columns = facts.columns.map((each) => each.name).filter((each) => each !== facts.title);
  const add = [...new Set([...place.all("add"), item])];
  return html`<header class="who">
    <div>
      <h1 class="clamp">${name}</h1>
      <p class="soft">
        ${name !== item && html`<span class="mono">${item}</span> · `}${row ? `${counted(row.events, "events")}` : ""}
        ${columns.map((each) => words(cells(known)[each]) && html` · <span title=${each}>${words(cells(known)[each])}</span>`)}
      </p>
    </div>
    <div class="buttons">
      ${facts.reads_history && !still && html`<a class="button" href=${place.link({ add }, "lists")}>Add to the history</a>`}
    </div>
  </header>`;
}

export const view = { name: "similar", title: "Similar", View };
