// The history of a user: what the model reads, what is changed, and what drove an item.

import { go } from "./address.js";
import { still } from "./files.js";
import { Bar, Item, Loading, counted, percent, portion, useApp } from "./parts.js";
import { Search } from "./search.js";
import { html, useState } from "./vendor/htm-preact-standalone.js";

const FIRST = 30; // items that are shown before one asks for more

/** The panel. `why` has the shares of the history in the score of an item, `about`, or is null. */
export function History({ asked, rows, why, about }) {
  const { place, facts } = useApp();
  const [all, show] = useState(false);
  const open = facts.reads_history && !still; // to changes
  const change = (words) => go(place.link(words), { replace: true });
  const added = new Set(asked.add);
  const entries = [
    ...asked.base.map((key, i) => ({
      key: String(key),
      gone: asked.drop.includes(String(key)),
      late: asked.later > 0 && i >= asked.base.length - asked.later,
      live: i >= asked.base.length - asked.live.length,
    })),
    ...asked.add.map((key) => ({ key, fresh: true })),
  ].reverse();
  const shares = new Map(
    (why?.shares ?? [])
      .filter((each) => each.of === "history")
      .map((each) => [String(each.item), each.share]),
  );
  const most = Math.max(1e-12, ...[...shares.values()].map(Math.abs));
  const sum = [...shares.values()].reduce((total, share) => total + Math.abs(share), 0) || 1;
  const order = why
    ? [...entries].sort(
        (a, b) => Math.abs(shares.get(b.key) ?? 0) - Math.abs(shares.get(a.key) ?? 0),
      )
    : entries;
  const shown = all ? order : order.slice(0, FIRST);
  const waits = asked.user && asked.known.data === undefined && !asked.known.error;
  const drop = (key) =>
    change(
      added.has(key)
        ? { add: asked.add.filter((each) => each !== key) }
        : { drop: [...place.all("drop"), key] },
    );
  const back = (key) => change({ drop: place.all("drop").filter((each) => each !== key) });
  return html`<section class="history" aria-label="History">
    <header>
      <h2 class="clamp">${why ? `What drove ${about}` : "History"}</h2>
      <span class="soft small"
        >${counted(asked.history.length, "items")}${why ? ", largest share first" : ", latest first"}</span
      >
      ${why && html`<a class="small" href=${place.link({ why: null })}>close</a>`}
      ${asked.changed && html`<a class="small" href=${place.link({ add: null, drop: null })}>undo changes</a>`}
    </header>
    ${
      open &&
      html`<${Search}
        id="add"
        label="Add an item to the history"
        users=${false}
        hint="What if … add an item"
        pick=${({ item }) => change({ add: [...asked.add.filter((each) => each !== String(item)), String(item)] })}
      />`
    }
    ${!facts.reads_history && html`<p class="soft small">This model keeps one vector per user: it does not read the history, so changes to it have no effect.</p>`}
    ${waits && html`<${Loading} rows=${5} />`}
    ${!waits && !entries.length && html`<p class="soft">No items. ${facts.reads_history ? "Add some above: the list follows." : ""}</p>`}
    <ol class="rows">
      ${shown.map(({ key, gone, fresh, late, live }, i) => {
        const share = shares.get(key);
        const lit = share !== undefined && Math.abs(share) >= 0.2 * most;
        return html`<li key=${`${key} ${i}`} class=${`${gone ? "gone" : ""} ${lit ? "lit" : ""}`}>
          <a class="to" href=${place.link({ item: key, walk: null }, "similar")}>
            <${Item}
              row=${rows.get(key) ?? { item: key }}
              facts=${facts}
              shown=${place.all("columns")}
            />
          </a>
          ${fresh && html`<span class="chip on">added</span>`}
          ${late && html`<span class="chip" title="An event of the validation part: the model was not trained on it, but reads it.">later</span>`}
          ${live && html`<span class="chip">live</span>`}
          ${
            share !== undefined &&
            html`<span class="share">
              <${Bar}
                share=${Math.abs(share) / most}
                kind=${share < 0 ? "bad" : ""}
                label=${`share ${percent(share / sum, 1)}`}
              />
              <span class="small">${share < 0 ? "−" : ""}${portion(Math.abs(share) / sum)}</span>
            </span>`
          }
          ${
            open &&
            html`<button
              type="button"
              class="icon"
              aria-label=${`${gone ? "Put back" : "Remove"} ${key}`}
              title=${gone ? "Put back" : "Remove: the list follows"}
              onClick=${() => (gone ? back(key) : drop(key))}
            >
              ${gone ? "↺" : "×"}
            </button>`
          }
        </li>`;
      })}
    </ol>
    ${order.length > FIRST && html`<${More} all=${all} of=${order.length} show=${show} />`}
  </section>`;
}

/** The button that shows all items of a long list, or the first ones again. */
export const More = ({ all, of, show }) =>
  html`<button type="button" class="more" onClick=${() => show(!all)}>
    ${all ? "Show fewer" : `Show all ${counted(of, "items")}`}
  </button>`;
