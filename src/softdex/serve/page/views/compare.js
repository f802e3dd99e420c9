// Compare: two models side by side for a user, and on everything that was held out.

import { path, useAsk } from "../api.js";
import { useAsked, useNobody, useRows } from "../asked.js";
import { go } from "../address.js";
import { Controls } from "../controls.js";
import {
  Answer,
  Bar,
  Empty,
  Gap,
  Loading,
  Table,
  Wrong,
  count,
  counted,
  number,
  title,
  useApp,
} from "../parts.js";
import { html, useState } from "../vendor/htm-preact-standalone.js";

const ROW = 34; // height of a row in pixels, of the lists and of the lines between them

function View() {
  const { place, models, model, facts } = useApp();
  const name = place.get("other", models.find((each) => each.name !== model.name)?.name ?? "");
  const other = models.find((each) => each.name === name);
  const { nobody, looking } = useNobody();
  const theirs = useAsk(other && path("v1/study", { model: name }));
  const mine = useAsked(model.name, facts);
  const asked = useAsked(name, theirs.data?.model === name ? theirs.data : undefined);
  const [one, two] = [
    useAsk(mine.body && "v1/recommend", mine.body),
    useAsk(asked.body && "v1/recommend", asked.body),
  ];
  const lists = [one.data?.items ?? [], two.data?.items ?? []];
  const rows = useRows(
    lists.flat().map((each) => each.item),
    model.name,
  );
  if (!other) return html`<${Empty}>No model ${name} is served.<//>`;
  if (looking) return html`<div class="page"><${Loading} rows=${10} /></div>`;
  const held = new Set((mine.study?.targets ?? []).map(String));
  const user = place.get("user");
  return html`<div class="page">
    <header class="who">
      <div>
        <h1 class="clamp">${user || "A new user"}</h1>
        <p class="soft">
          ${counted(mine.base.length, "events")}${held.size > 0 && ` · ${count(held.size)} held out`}
        </p>
      </div>
      <div class="buttons"><${Pick} label="With" value=${name} /></div>
    </header>
    <${Controls} columns=${false} />
    ${nobody && html`<${Empty}>Find a user above.<//>`}
    ${(one.error ?? two.error ?? theirs.error) && html`<${Wrong} error=${one.error ?? two.error ?? theirs.error} />`}
    ${mine.body && one.data && two.data && html`<${Lists} lists=${lists} names=${[model.name, name]} rows=${rows} held=${held} />`}
    <${Difference} one=${model.name} other=${name} facts=${[facts, theirs.data]} />
  </div>`;
}

/** Chooses the second model. */
function Pick({ label, value }) {
  const { place, models, model } = useApp();
  return html`<label
    >${label}
    <select value=${value} onChange=${(event) => go(place.link({ other: event.target.value }))}>
      ${models.filter((each) => each.name !== model.name).map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
    </select>
  </label>`;
}

/** Two lists with lines between the items that are in both. */
function Lists({ lists, names, rows, held }) {
  const { facts } = useApp();
  const [over, set] = useState("");
  const ranks = lists.map((list) => new Map(list.map((each, i) => [String(each.item), i])));
  const both = lists[0].filter((each) => ranks[1].has(String(each.item)));
  const longest = Math.max(lists[0].length, lists[1].length);
  const found = lists.map((list) => list.filter((each) => held.has(String(each.item))).length);
  const side = (list, at) =>
    html`<section aria-label=${names[at]}>
      <h2 class=${at ? "other" : "one"}>
        <span class="cut">${names[at]}</span>
        ${held.size > 0 && html`<span class="soft small">${count(found[at])} of ${count(held.size)} held out</span>`}
      </h2>
      <ol class="slope">
        ${list.map((each, i) => {
          const key = String(each.item);
          const there = ranks[1 - at].get(key);
          const name = title({ ...each, ...(rows.get(key) ?? {}) }, facts);
          return html`<li
            key=${key}
            class=${`${held.has(key) ? "held" : ""} ${over === key ? "lit" : ""}`}
            onMouseEnter=${() => set(key)}
            onMouseLeave=${() => set("")}
          >
            <span class="rank">${i + 1}</span>
            <span class="cut" title=${name}>${name}</span>
            <${Move} by=${there === undefined ? null : there - i} />
          </li>`;
        })}
      </ol>
    </section>`;
  return html`<div class="pairing">
    <p class="lead">
      <b>${both.length} of ${longest}</b> items are in both lists.${" "}
      ${both.length > 0 && html`Those move by <b>${number(both.reduce((sum, each) => sum + Math.abs(ranks[0].get(String(each.item)) - ranks[1].get(String(each.item))), 0) / both.length)}</b> places on average.`}
    </p>
    <div class="slopes">
      ${side(lists[0], 0)}
      <svg
        viewBox=${`0 0 100 ${longest * ROW}`}
        preserveAspectRatio="none"
        height=${longest * ROW}
        aria-hidden="true"
      >
        ${both.map(({ item }) => {
          const key = String(item);
          const [a, b] = ranks.map((rank) => (rank.get(key) + 0.5) * ROW);
          const kind = `${held.has(key) ? "held" : ""} ${over === key ? "lit" : ""}`;
          return html`<path
            key=${key}
            class=${kind}
            d=${`M0 ${a} C 45 ${a}, 55 ${b}, 100 ${b}`}
          />`;
        })}
      </svg>
      ${side(lists[1], 1)}
    </div>
  </div>`;
}

/** How many places higher the other list has an item; nothing if it has it not. */
function Move({ by }) {
  if (by === null) return html`<span class="soft small">only here</span>`;
  if (by === 0) return html`<span class="soft small">=</span>`;
  const said = `${Math.abs(by)} places ${by > 0 ? "lower" : "higher"} in the other list`;
  return html`<span class="small soft" title=${said} aria-label=${said}
    >${by > 0 ? "↓" : "↑"} ${Math.abs(by)}</span
  >`;
}

/** The paired difference on the holdout, and the users where it is largest. */
function Difference({ one, other, facts }) {
  const { place } = useApp();
  const metric = place.get("metric");
  const known = facts.every((each) => each?.holdout);
  const found = useAsk(
    known && path("v1/study/differences", { model: one, other, metric, limit: 10 }),
  );
  if (!known)
    return html`<p class="soft">
      What was held out of both models is not known: serve their run folders to see the paired
      difference.
    </p>`;
  return html`<section>
    <h2>On everything that was held out</h2>
    <${Answer} of=${found} rows=${6}>
      ${(data) => html`<${Paired} data=${data} one=${one} other=${other} /><${Apart} data=${data} one=${one} other=${other} />`}
    <//>
  </section>`;
}

function Paired({ data, one, other }) {
  const { place } = useApp();
  const [name, cutoff] = data.metric.split("@");
  const cutoffs = [...new Set(data.metrics.map((each) => each.metric.split("@")[1]))];
  const rows = data.metrics.filter((each) => each.metric.endsWith(`@${cutoff}`));
  const most = Math.max(
    1e-9,
    ...rows.map((each) => Math.max(Math.abs(each.low), Math.abs(each.high))),
  );
  const chosen = rows.find((each) => each.metric === data.metric);
  const real = chosen && (chosen.low > 0 || chosen.high < 0);
  const columns = [
    {
      name: "metric",
      label: "Metric",
      cell: (row) =>
        html`<a
          href=${place.link({ metric: row.metric })}
          aria-current=${row.metric === data.metric ? "true" : null}
          >${row.metric}</a
        >`,
    },
    { name: "one", label: one, number: true, cell: (row) => row.one.toFixed(4) },
    { name: "other", label: other, number: true, cell: (row) => row.other.toFixed(4) },
    {
      name: "difference",
      label: "Difference",
      number: true,
      cell: (row) =>
        html`<span class="value"
          >${row.difference > 0 ? "+" : ""}${row.difference.toFixed(4)}
          <${Gap} value=${row.difference} low=${row.low} high=${row.high} most=${most}
        /></span>`,
    },
    {
      name: "p",
      label: "p",
      number: true,
      cell: (row) => `${row.p <= 0.002 ? "≤ " : ""}${row.p.toFixed(3)}`,
    },
  ];
  const [better, ends] = [chosen?.difference > 0 ? one : other, [chosen?.low, chosen?.high]];
  const [low, high] = ends.map(Math.abs).sort((a, b) => a - b);
  const sizes = `by ${Math.abs(chosen?.difference).toFixed(4)}, 95 % interval ${low.toFixed(4)} to ${high.toFixed(4)}.`;
  const unclear = `No difference on ${data.metric} that these ${count(data.users)} users could tell from chance.`;
  const whom = `${one} is better for ${count(data.wins)}, ${other} for ${count(data.losses)}.`;
  return html`<p class="lead">
      ${real ? html`<b>${better}</b>${` is better on ${data.metric}: ${sizes}`}` : unclear}
      ${` Paired bootstrap over ${count(data.users)} users; ${whom}`}
    </p>
    <nav class="choices" aria-label="Cut-off">
      ${cutoffs.map((k) => html`<a key=${k} href=${place.link({ metric: `${name}@${k}` })} aria-current=${k === cutoff ? "true" : null}>@${k}</a>`)}
    </nav>
    <${Table}
      columns=${columns}
      rows=${rows}
      caption=${`Difference ${one} − ${other}, bars are 95 % intervals`}
      rowKey=${(row) => row.metric}
    />`;
}

/** Users whose lists differ most, either way. */
function Apart({ data, one, other }) {
  const { place } = useApp();
  const table = (rows, who) =>
    html`<div>
      <h3>Where <span class="cut inline">${who}</span> is better</h3>
      ${
        rows.length
          ? html`<${Table}
              rows=${rows}
              rowKey=${(row) => String(row.user)}
              columns=${[
                {
                  name: "user",
                  label: "User",
                  cell: (row) =>
                    html`<a
                      class="cut"
                      href=${place.link({ user: String(row.user), add: null, drop: null })}
                      >${String(row.user)}</a
                    >`,
                },
                { name: "events", label: "Events", number: true },
                {
                  name: "one",
                  label: one,
                  number: true,
                  cell: (row) =>
                    html`<span class="value"
                      >${row.one.toFixed(2)}<${Bar} share=${row.one} label=""
                    /></span>`,
                },
                {
                  name: "other",
                  label: other,
                  number: true,
                  cell: (row) =>
                    html`<span class="value"
                      >${row.other.toFixed(2)}<${Bar} share=${row.other} kind="other" label=""
                    /></span>`,
                },
              ]}
            />`
          : html`<p class="soft">Nowhere.</p>`
      }
    </div>`;
  return html`<h2>Users where they differ most, by ${data.metric}</h2>
    <div class="cards two">${table(data.better, one)}${table(data.worse, other)}</div>`;
}

const when = ({ models }) =>
  models.length > 1
    ? ""
    : "One model is served. Serve two to compare them: softdex look one.sdx other.sdx";

export const view = { name: "compare", title: "Compare", View, when };
