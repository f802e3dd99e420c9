// Effort: what the model misses, and what its index misses beyond that, as a search looks at more.

import { go } from "../address.js";
import { useAsk } from "../api.js";
import { still } from "../files.js";
import { clean, useAsked, useRows } from "../asked.js";
import { Lines, short } from "../charts.js";
import { Answer, Empty, Item, Wrong, count, number, percent, useApp } from "../parts.js";
import { html, useEffect, useState } from "../vendor/htm-preact-standalone.js";
import { Choices, path, useCutoff } from "../with.js";

const UNIT = { tree: "width of the beam: nodes kept per level", imi: "items scored per list" };
const ms = (x) => (x >= 10 ? x.toFixed(0) : x >= 1 ? x.toFixed(1) : x.toFixed(3));

function View() {
  const { model } = useApp();
  const k = useCutoff();
  const found = useAsk(path("v1/study/effort", { model: model.name, k }));
  return html`<div class="page">
    <h1>Model loss and index loss</h1>
    <p class="lead">An exact list scores every item. What it lacks of the held-out items is the model's loss. An index looks at fewer
      items, and what it misses of the exact list is the index's loss: the price of its speed. Here both are measured, on this server.</p>
    <div class="with"><${Choices} label="Lists of" word="k" of=${[[10], [20], [50], [100]]} chosen=${k} /></div>
    <${Answer} of=${found} rows=${12}>
      ${(data) => (data.model === model.name ? html`<${Body} data=${data} k=${k} />` : null)}
    <//>
  </div>`;
}

/** The points, the present setting and the exact search in the order of their effort. */
function settings(data) {
  const points = data.points.map((each) => ({ ...each, name: short(each.effort) }));
  return [...points, { ...data.exact, effort: null, name: "exact" }];
}

function Body({ data, k }) {
  const { place, model } = useApp();
  const all = settings(data);
  const present = data.serves ? all.findIndex((each) => each.effort === data.present) : all.length - 1;
  const asked = place.get("effort");
  const named = all.findIndex((each) => String(each.effort ?? "exact") === asked);
  const at = named >= 0 ? named : present >= 0 ? present : all.length - 1;
  const choose = (i) => go(place.link({ effort: i === present ? null : String(all[i].effort ?? "exact") }), { replace: true });
  const now = all[at];
  const curve = all.slice(0, -1);
  const mark = (each, text, style, more = {}) => ({ text, style, ...more, each });
  const marks = [
    mark(data.exact, `exact, ${ms(data.exact.ms)} ms`, now.effort === null ? "s1" : "s0"),
    ...(data.serves && present >= 0 ? [mark(all[present], present === at ? "present setting" : "present", "s3", { below: true })] : []),
    ...((present === at && data.serves) || now.effort === null ? [] : [mark(now, now.name, "s1", { below: true })]),
  ];
  const times = all.map((each) => each.ms);
  return html`
    <p>${verdict(data, all, present, k, model)}</p>
    <div class="charts">
      <${Lines} title="Index loss: recall of the exact list" height=${270} pick=${(x) => choose(all.findIndex((each) => each.ms === x))}
        x=${{ label: "milliseconds per list", log: true, say: (x) => (x >= 1 ? String(+x.toPrecision(3)) : String(+x.toPrecision(2))), from: Math.min(...times) / 1.1, to: Math.max(...times) * 1.15 }}
        y=${{ label: `recall@${k} of the exact list`, from: Math.min(0.5, ...all.map((each) => each.recall)) < 0.5 ? 0 : 0.5, to: 1.06, ticks: [0, 0.2, 0.4, 0.6, 0.8, 1], say: (v) => percent(v), exact: (v) => percent(v, 1) }}
        series=${[{ name: data.index === "tree" ? "beam search" : "multi-index", style: "s1", dots: true, points: curve.map((each) => [each.ms, each.recall]) }]}
        marks=${marks.map(({ each, ...rest }) => ({ ...rest, x: each.ms, y: each.recall }))}
        sayX=${(x) => `${all.find((each) => each.ms === x)?.name ?? ""}: ${ms(x)} ms`}>
        A dot per setting, over ${data.users} users; milliseconds are the median of ${data.timed} single searches. Choose a dot, or move the slider.<//>
      ${data.held_out && html`<${Lines} title="Model loss: held-out items found" height=${270} pick=${(x) => choose(all.findIndex((each) => each.effort === x))}
        x=${{ label: UNIT[data.index], log: true, say: short }} y=${{ label: `ndcg@${k} on what was held out`, from: 0, say: (v) => v.toFixed(2), exact: (v) => v.toFixed(4) }}
        series=${[
          { name: "exact search", style: "s0", dash: true, points: curve.map((each) => [each.effort, data.exact.ndcg_held]) },
          { name: "this index", style: "s1", dots: true, points: curve.map((each) => [each.effort, each.ndcg_held]) },
        ]}
        marks=${now.effort === null ? [] : [{ x: now.effort, y: now.ndcg_held, text: now.name, style: at === present ? "s3" : "s1" }]}>
        Below the dashed line the index loses; what the dashed line lacks to 1 the model loses. ${data.users} users, so small gaps are chance.<//>`}
    </div>
    <${Slider} all=${all} at=${at} present=${data.serves ? present : -1} choose=${choose} unit=${UNIT[data.index]} />
    ${!still && html`<${OfUser} effort=${now.effort} exact=${now.effort === null} k=${k} name=${now.name} unit=${data.index} />`}`;
}

function verdict(data, all, present, k, model) {
  const lost = data.held_out && html` Of the held-out items an exact search has <b>${percent(data.exact.recall_held, 1)}</b> among its ${k}: the rest is the <b>model's loss</b>.`;
  if (!data.serves) {
    const good = all.find((each) => each.recall >= 0.95);
    return html`<b>${model.name} scores all ${count(data.items)} items</b> (${ms(data.exact.ms)} ms per list): it has no index loss.${lost}${" "}
      The curve is that of a multi-index over its vectors, which could serve it: ${good && good.effort !== null
        ? html`95 % of the exact list at ${short(good.effort)} items, in ${ms(good.ms)} ms.` : "it reaches 95 % of the exact list only by looking at every item."}${" "}
      ${good && good.ms > data.exact.ms / 2 && "In a catalogue of this size that gains little."}`;
  }
  const now = present >= 0 ? all[present] : all[all.length - 1];
  const gap = data.held_out ? now.ndcg_held - data.exact.ndcg_held : 0;
  return html`The present setting (${data.index === "tree" ? `a beam of ${short(now.effort)}` : `${now.effort === null ? "all" : short(now.effort)} items`}) finds <b>${percent(now.recall, 1)}</b> of the exact list
    in <b>${ms(now.ms)} ms</b> instead of ${ms(data.exact.ms)}: <b>index loss ${percent(1 - now.recall, 1)}</b>.${lost}${" "}
    ${data.held_out && (Math.abs(gap) < 5e-4 ? "On what was held out the two lists are equally good." : gap > 0
      ? html`On what was held out the index is even better, by ${gap.toFixed(4)} of ndcg: what it leaves out were the model's mistakes.`
      : html`On what was held out that costs ${(-gap).toFixed(4)} of ndcg.`)}`;
}

/** The setting, from the least effort to the exact search. */
function Slider({ all, at, present, choose, unit }) {
  const [held, hold] = useState(null);
  useEffect(() => hold(null), [at]);
  const shown = held ?? at;
  const said = `${all[shown].name}${shown === present ? ", the present setting" : ""}`;
  return html`<div class="slider">
    <label for="effort">Effort <span class="soft">(${unit})</span></label>
    <input id="effort" type="range" min="0" max=${all.length - 1} step="1" value=${shown} aria-valuetext=${said} list="efforts"
      onInput=${(event) => hold(Number(event.target.value))} onChange=${(event) => choose(Number(event.target.value))} />
    <datalist id="efforts">${all.map((each, i) => html`<option key=${i} value=${i}></option>`)}</datalist>
    <output for="effort"><b>${all[shown].name}</b>${shown === present ? html` <span class="chip good">present</span>` : ""}
      <span class="soft"> ${percent(all[shown].recall, 1)} of the exact list, ${ms(all[shown].ms)} ms</span></output>
  </div>`;
}

/** The list of the present user at an effort, beside the exact one. */
function OfUser({ effort, exact, k, name, unit }) {
  const { place, model, facts } = useApp();
  const asked = useAsked(model.name, facts);
  const ready = asked.body !== undefined;
  const found = useAsk(ready && "v1/study/effort", clean({ ...asked.who, k, effort, exact: exact || undefined, model: model.name }));
  const items = [...(found.data?.items ?? []), ...(found.data?.lost ?? [])];
  const rows = useRows(items.map((each) => each.item), model.name);
  if (!ready) return html`<${Empty}>Find a user above to see what becomes of a list. <a href=${place.link({}, "users")}>All users</a><//>`;
  if (found.error) return html`<${Wrong} error=${found.error} />`;
  const data = found.data;
  if (!data) return html`<p class="soft" role="status">Searching …</p>`;
  const held = new Set((asked.study?.targets ?? []).map(String));
  const row = (each) => rows.get(String(each.item)) ?? each;
  const chip = (each) => held.has(String(each.item)) && html` <span class="chip good">held out</span>`;
  return html`<section aria-label="The list of the user" class=${found.busy ? "stale" : ""}>
    <h2>The list of ${asked.user || "a new user"} at ${exact ? "an exact search" : unit === "tree" ? `a beam of ${name}` : `${name} items`}</h2>
    <p>${data.lost.length ? html`<b>${data.lost.length} of ${data.items.length}</b> items of the exact list are missed` : "Nothing of the exact list is missed"}:
      searched in <b>${ms(data.ms)} ms</b>${exact ? "" : `, exactly in ${ms(data.exact_ms)} ms`}, just now.</p>
    <div class=${data.lost.length ? "pair" : "narrow"}>
      <ol class="rows plain" aria-label="List">${data.items.map((each) => html`<li key=${String(each.item)} class=${each.exact === null ? "lit" : ""}>
        <span class="rank">${each.rank}</span><${Item} row=${row(each)} facts=${facts} />${chip(each)}
        <span class="soft small end">${each.exact === null ? "not in the exact list" : each.exact === each.rank ? "" : `exact ${each.exact}.`}</span></li>`)}</ol>
      ${data.lost.length > 0 && html`<div>
        <h3>Missed</h3>
        <ol class="rows plain">${data.lost.map((each) => html`<li key=${String(each.item)} class="gone">
          <span class="rank">${each.exact}</span><${Item} row=${row(each)} facts=${facts} />${chip(each)}</li>`)}</ol>
        <p class="soft small">With their rank in the exact list.</p>
      </div>`}
    </div>
  </section>`;
}

const when = ({ facts }) => (facts.product || (facts.searches && facts.tree) ? "" : "This model has no index but the exact one, and no item vectors to make one of.");

export const view = { name: "effort", title: "Index loss", View, when };
