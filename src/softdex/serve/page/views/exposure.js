// Popularity: how a model's lists spread over the catalogue, beside the events that it learned from.

import { useRows } from "../asked.js";
import { Columns, Keys, Lines, share } from "../charts.js";
import { Answer, Bar, Item, Table, count, percent, useApp } from "../parts.js";
import { html } from "../vendor/htm-preact-standalone.js";
import { Choices, With, path, useBoth, useCutoff } from "../with.js";

const TENTHS = ["most popular", ...Array(8).fill(""), "rarest"];

function View() {
  const { model } = useApp();
  const k = useCutoff();
  const both = useBoth((name) => path("v1/study/exposure", { model: name, k }));
  return html`<div class="page">
    <h1>Popularity and coverage</h1>
    <p class="lead">Which part of the catalogue the lists of ${model.name} show, and how unevenly, beside the events that it learned from.
      A list that only repeats what is popular shows few items and scores well offline all the same.</p>
    <${With}><${Choices} label="Lists of" word="k" of=${(both.data?.cutoffs ?? [20]).map((each) => [each])} chosen=${k} /><//>
    <${Answer} of=${both.one} rows=${12}>
      ${(data) => html`<${Body} data=${data} theirs=${both.theirs} other=${both.other} waits=${both.other && !both.theirs && !both.two.error} wrong=${both.two.error} />`}
    <//>
  </div>`;
}

function Body({ data, theirs, other, waits, wrong }) {
  const { model } = useApp();
  const tail = (each) => each.classes.find((row) => row.name === "tail")?.places ?? 0;
  const series = [{ name: "training events", style: "s0" }, { name: model.name, style: "s1" }, ...(theirs ? [{ name: other, style: "s2" }] : [])];
  const models = [data, ...(theirs ? [theirs] : [])];
  const rest = data.classes.find((row) => row.name === "tail");
  return html`
    <p><b>${count(data.listed)} of ${count(data.items)} items</b> (${share(data.listed / data.items)}) are in at least one of ${count(data.lists)} lists of ${data.k};${" "}
      half of all places go to <b>${count(data.half)} items</b>.${" "}
      The tail, the ${count(rest?.items ?? 0)} rarest items that share the last third of the events, gets <b>${share(tail(data))}</b> of the places.${" "}
      ${data.held_out ? "The lists are those that the metrics are measured on." : "The lists are what users with events get."}</p>
    ${waits && html`<p class="soft" role="status">Computing ${other} …</p>`}
    ${wrong && html`<p class="note bad">${wrong.message}</p>`}
    <${Figures} models=${models} names=${series} tail=${tail} />
    <div class="charts">
      <${Columns} title="Share of the places, by popularity of the item" series=${series} height=${250}
        x=${{ label: "tenths of the items, most popular first" }} y=${{ label: "share", say: percent, exact: share }}
        groups=${data.tenths.map((tenth, i) => ({
          label: i === 0 || i === data.tenths.length - 1 ? `${count(tenth.low)}–${count(tenth.high)}` : String(i + 1),
          said: `${i === 0 ? TENTHS[0] : i === 9 ? TENTHS[9] : `${i + 1}th`} tenth, ${count(tenth.low)}–${count(tenth.high)} events per item:`,
          values: [tenth.events, ...models.map((each) => each.tenths[i]?.places ?? 0)],
        }))}>Grey is what the tenth has of the training events. A model above grey on the left and below it on the right amplifies popularity.<//>
      <${Lines} title="Lorenz curves" height=${250}
        x=${{ label: "share of the items, least listed first", from: 0, to: 1, say: percent }} y=${{ label: "share of places", from: 0, to: 1, say: percent, exact: share }}
        series=${[
          { name: "equal", style: "s0", dash: true, points: [[0, 0], ...data.curve.events.map((_, i) => [i / 100, i / 100]).slice(1)] },
          ...[data.curve.events, ...models.map((each) => each.curve.places)].map((curve, i) => ({ ...series[i], points: curve.map((each, j) => [j / 100, each]) })),
        ]}>The nearer to the lower right corner, the more the places go to a few items; the Gini coefficient is twice the area to the dashed line.<//>
    </div>
    <${Top} models=${models} names=${series.slice(1)} />
    ${data.values && html`<${Values} models=${models} names=${series.slice(1)} />`}`;
}

/** The figures of each model, and those of the training events. */
function Figures({ models, names, tail }) {
  const [data] = models;
  const rows = [
    ["Coverage", "share of the items that are in a list", "", (each) => percent(each.listed / each.items, 1)],
    ["Gini", "0: all items alike; 1: one item has everything", data.gini.events.toFixed(3), (each) => each.gini.places.toFixed(3)],
    ["Head", "share of the places of the items with the first third of the events", "33 %", (each) => share(each.classes.find((row) => row.name === "head")?.places ?? 0)],
    ["Tail", "the same of the last third, the rarest items", "33 %", (each) => share(tail(each))],
    ["Half of the places", "go to this many items", "", (each) => count(each.half)],
    ["Mean popularity", "share of the items that are at most as popular; of the users' histories in grey", percent(data.popularity.histories), (each) => percent(each.popularity.lists)],
  ];
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Figures"><table class="figures">
    <thead><tr><th scope="col" class="words"><span class="hidden">Figure</span></th>
      ${names.map((each) => html`<th key=${each.name} scope="col"><${Keys} of=${[each]} /></th>`)}</tr></thead>
    <tbody>${rows.map(([name, what, events, of]) => html`<tr key=${name}>
      <th scope="row" class="words">${name}<small class="what">${what}</small></th>
      <td class="soft">${events}</td>${models.map((each, i) => html`<td key=${i}>${of(each)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** The items that are listed most. */
function Top({ models, names }) {
  const { place, model, facts } = useApp();
  const rows = useRows(models.flatMap((each) => each.top.map((row) => row.item)), model.name);
  const list = (data, { name, style }) => html`<section key=${name} aria-label=${`Items that ${name} lists most`}>
    <h3><${Keys} of=${[{ name, style }]} /></h3>
    <${Table} caption="Share of the lists that the item is in, and its rank by training events" rows=${data.top.slice(0, 10)} rowKey=${(row) => String(row.item)} columns=${[
      { name: "item", label: "Item", cell: (row) => html`<a class="plainlink" href=${place.link({ item: row.item, walk: null }, "similar")}><${Item} row=${rows.get(String(row.item)) ?? row} facts=${facts} /></a>` },
      { name: "rank", label: "By events", number: true, cell: (row) => html`<span class="soft">${count(row.rank)}.</span>` },
      { name: "share", label: "In lists", number: true, cell: (row) => html`<span class="value">${share(row.share)}<span class="roomy"><${Bar} share=${row.share / data.top[0].share} kind=${style === "s2" ? "other" : ""} label="" /></span></span>` },
    ]} />
  </section>`;
  return html`<h2>Listed most</h2><div class="pair">${models.map((data, i) => list(data, names[i]))}</div>`;
}

/** Categories: their share of the places beside that of the histories. */
function Values({ models, names }) {
  const [data] = models;
  const gap = (each, value) => each.values.find((row) => row.value === value);
  const most = Math.max(1e-9, ...models.flatMap((each) => each.values.map((row) => Math.abs(row.places - row.histories))));
  return html`<h2>By ${data.column}</h2>
    <p class="lead">Share of the places beside the share of the users' histories: what the model gives more of than its users take, and what less. An item with several values counts for each.</p>
    <${Table} rows=${data.values} rowKey=${(row) => row.value} columns=${[
      { name: "value", label: data.column, sort: true, cell: (row) => html`<span class="cut">${row.value}</span>` },
      { name: "histories", label: "Histories", number: true, sort: true, cell: (row) => share(row.histories) },
      ...models.map((each, i) => ({
        name: `places${i}`, label: names[i].name, number: true, sort: (row) => (gap(each, row.value)?.places ?? 0) - row.histories,
        cell: (row) => {
          const mine = gap(each, row.value) ?? { places: 0, histories: row.histories };
          const by = mine.places - mine.histories;
          return html`<span class="value">${share(mine.places)} <span class="soft small">${by > 0 ? "+" : "−"}${(100 * Math.abs(by)).toFixed(1)}</span><span class="roomy"><${Lean} by=${by} most=${most} style=${names[i].style} /></span></span>`;
        },
      })),
    ]} />`;
}

/** A difference as a bar to the left or right of the middle. */
const Lean = ({ by, most, style }) => html`<span class=${`bar pair ${style === "s2" ? "other" : ""}`} aria-hidden="true">
  <i style=${{ left: `${50 + Math.min(0, (by / most) * 50)}%`, width: `${Math.abs(by / most) * 50}%` }}></i></span>`;

export const view = { name: "popularity", title: "Popularity", View };
