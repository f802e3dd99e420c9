// Sampler: proposals of negatives beside the softmax of a user, and draws from them.

import { go } from "../address.js";
import { useAsk } from "../api.js";
import { clean, useAsked, useRows } from "../asked.js";
import { Lines, power, share, short } from "../charts.js";
import { Answer, Bar, Empty, Item, count, counted, fixed, number, percent, useApp } from "../parts.js";
import { Temperature } from "../temperature.js";
import { html } from "../vendor/htm-preact-standalone.js";

const NAMES = {
  uniform: ["uniform", "every item alike"],
  popularity: ["popularity", "by training events"],
  imi_uniform: ["multi-index", "a cell by its codewords, then any item of it"],
  imi_popularity: ["multi-index, popularity", "a cell by its codewords, then an item of it by training events"],
  imi_exact: ["multi-index, exact", "a cell, then an item of it by its score: the softmax itself"],
  kernel: ["squared kernel", "by the squared score"],
  factor_ranks: ["factor ranks", "items that rank high on a factor that matters to the user"],
  tree: ["tree walk", "from the top, a child by the softmax among siblings"],
};
const STYLE = { uniform: "s7", popularity: "s2", imi_uniform: "s3", imi_popularity: "s4", imi_exact: "s5", kernel: "s6", factor_ranks: "s8", tree: "s3" };
const say = (name) => (NAMES[name] ?? [name])[0];
const N = [20, 100, 500, 2000];

function View() {
  const { place, model, facts } = useApp();
  const asked = useAsked(model.name, facts);
  const ready = asked.body !== undefined;
  const temperature = place.number("temperature", undefined);
  const who = clean({ ...asked.who, temperature, model: model.name });
  const found = useAsk(ready && "v1/study/sampler", who);
  return html`<div class="page">
    <h1>The sampler <span class="soft">for ${asked.user || "a new user"}</span></h1>
    <p class="lead">Training on a large catalogue draws negatives from a proposal instead of scoring every item. The nearer the proposal is to
      this user's softmax, the fewer draws say as much as the whole catalogue. Items stand left to right, the likeliest first.</p>
    ${!ready && html`<${Empty}>Find a user above. <a href=${place.link({}, "users")}>All users</a><//>`}
    ${ready && html`<${Answer} of=${found} rows=${12}>
      ${(data) => (data.model === model.name ? html`<${Body} data=${data} who=${who} />` : null)}
    <//>`}
  </div>`;
}

function Body({ data, who }) {
  const { place } = useApp();
  const middle = ([a, b]) => Math.sqrt(a * b);
  const at = data.ranks.map(middle);
  const sizes = data.ranks.map(([a, b]) => b - a + 1);
  const summed = (values) => values.reduce((sums, each, i) => [...sums, (sums[i - 1] ?? 0) + each * sizes[i]], []);
  const own = data.proposals.find((each) => each.own);
  const best = [...data.proposals].sort((a, b) => b.effective - a.effective)[0];
  const chosen = data.proposals.find((each) => each.name === place.get("from")) ?? own ?? best;
  const series = [
    { name: "softmax", style: "s1", values: data.p },
    ...data.proposals.map((each) => ({ name: say(each.name), style: STYLE[each.name] ?? "s6", values: each.q })),
  ];
  const rank = (x) => {
    const [a, b] = data.ranks[at.indexOf(x)] ?? [x, x];
    return a === b ? `item ${count(a)}` : `items ${count(a)} to ${count(b)}`;
  };
  const low = Math.max(Math.min(...series.flatMap((each) => each.values.filter((v) => v > 0))), Math.max(...data.p) * 1e-7);
  return html`
    <p>The softmax of this user is as wide as <b>${count(Math.round(data.perplexity))}</b> equally likely items of ${count(data.items)}.
      ${own ? html` This model is trained on draws from <b>${say(own.name)}</b>: 100 of them are worth <b>${number(100 * own.effective)}</b> draws from the softmax itself` : html` The nearest proposal is <b>${say(best.name)}</b>: 100 of its draws are worth <b>${number(100 * best.effective)}</b> from the softmax itself`}${own && best !== own ? html`; ${say(best.name)} would give ${number(100 * best.effective)}.` : "."}</p>
    ${data.scales && html`<${Scale} data=${data} />`}
    <div class="charts">
      <${Lines} title="Probability per item" height=${290} series=${series.map((each) => ({ ...each, points: at.map((x, i) => [x, each.values[i]]) }))}
        x=${{ label: "rank by the softmax", log: true, say: short, from: 1, to: data.items }} y=${{ label: "probability of an item", log: true, say: power, exact: power, from: low }} sayX=${rank}>
        Mean over the items of each range of ranks, both axes logarithmic. A proposal below the softmax on the left draws too few hard negatives.<//>
      <${Lines} title="Share of the draws that fall among the first items" height=${290} series=${series.map((each) => ({ ...each, points: summed(each.values).map((v, i) => [data.ranks[i][1], v]) }))}
        x=${{ label: "first items by the softmax", log: true, say: short, from: 1, to: data.items }} y=${{ label: "share", from: 0, to: 1, tight: true, say: percent, exact: share }} sayX=${(x) => `first ${counted(x, "items")}`}>
        The whole of the softmax and of each proposal is 1.<//>
    </div>
    <${Proposals} data=${data} chosen=${chosen} />
    <${Draws} key=${chosen.name} who=${who} chosen=${chosen} />`;
}

/** The temperature of the softmax, and where it is from. */
function Scale({ data }) {
  const { place } = useApp();
  const put = (value) => go(place.link({ temperature: value }), { replace: true });
  return html`<div class="with">
    <${Temperature} value=${data.temperature} base=${data.default} put=${put} />
    <span class="soft">${data.fitted
      ? `The scores were not trained as a softmax: at ${number(data.default)} what was held out is likeliest.`
      : `The model's is ${number(data.default)}.`}</span>
    ${place.get("temperature") && html`<a href=${place.link({ temperature: null })}>reset</a>`}
  </div>`;
}

function Proposals({ data, chosen }) {
  const { place } = useApp();
  const most = Math.max(1e-9, ...data.proposals.map((each) => each.kl));
  const n = data.negatives ?? 100;
  return html`<h2>Proposals</h2>
    <div class="scroll" tabindex="0" role="region" aria-label="Proposals"><table class="wide">
      <caption>KL(q ‖ p): 0 if the proposal is the softmax. Effective draws: how many draws from the softmax itself ${count(n)} weighted draws are worth</caption>
      <thead><tr><th scope="col" class="words">Proposal</th><th scope="col">KL, nats</th><th scope="col">Effective draws of ${count(n)}</th></tr></thead>
      <tbody>${data.proposals.map((each) => html`<tr key=${each.name} class=${each.name === chosen.name ? "chosen" : ""}>
        <td class="words half"><a class=${`pick ${STYLE[each.name] ?? "s6"}`} href=${place.link({ from: each.name })} aria-current=${each.name === chosen.name ? "true" : null}><i class="key"></i>${say(each.name)}</a>
          ${each.own && html` <span class="chip on">trains this model</span>`}<span class="soft small what">${(NAMES[each.name] ?? ["", ""])[1]}</span></td>
        <td><span class="value">${each.kl.toFixed(3)}<span class="roomy"><${Bar} share=${each.kl / most} kind="quiet" label="" /></span></span></td>
        <td><span class="value">${number(n * each.effective)} <span class="soft roomy">(${share(each.effective)})</span><${Bar} share=${each.effective} kind="good" label="" /></span></td>
      </tr>`)}</tbody>
    </table></div>`;
}

/** Draws from a proposal, live. */
function Draws({ who, chosen }) {
  const { place, model, facts } = useApp();
  const [n, seed] = [place.number("n", 100), place.number("seed", 1)];
  const found = useAsk("v1/study/sampler/draws", { ...who, proposal: chosen.name, n, seed });
  const data = found.data?.proposal === chosen.name ? found.data : undefined;
  const drawn = (data?.draws ?? []).slice(0, 20);
  const most = Math.max(1e-12, ...drawn.map((each) => each.weight));
  const rows = useRows(drawn.map((each) => each.item), model.name);
  const put = (change) => go(place.link(change), { replace: true });
  const sizes = N.includes(n) ? N : [...N, n].sort((a, b) => a - b);
  return html`<h2>Draws from ${say(chosen.name)}</h2>
    <div class="with">
      <button type="button" onClick=${() => put({ seed: seed + 1 })}>Draw again</button>
      <label>Draws <select value=${String(n)} onChange=${(event) => put({ n: event.target.value })}>${sizes.map((each) => html`<option key=${each} value=${each}>${count(each)}</option>`)}</select></label>
      ${data && html`<span>These ${count(data.n)} draws are <b>${count(data.distinct)}</b> distinct items, worth <b>${number(data.effective)}</b> draws from the softmax (${number(data.expected)} expected of many).</span>`}
    </div>
    ${found.error && html`<p class="note bad" role="alert">${found.error.message}</p>`}
    ${!data && !found.error && html`<p class="soft" role="status">Drawing …</p>`}
    ${data && html`<div class=${`pair ${found.busy ? "stale" : ""}`}>
      <div class="scroll" tabindex="0" role="region" aria-label="Draws"><table class="wide draws">
        <caption>The first ${drawn.length}, in their order; the weight is p / q, of all draws together</caption>
        <thead><tr><th scope="col" class="words">Item</th><th scope="col">log q</th><th scope="col">log p</th><th scope="col">Weight</th></tr></thead>
        <tbody>${drawn.map((each, i) => html`<tr key=${i}>
          <td class="words"><a class="plainlink" href=${place.link({ item: each.item, walk: null }, "similar")}><${Item} row=${rows.get(String(each.item)) ?? each} facts=${facts} /></a></td>
          <td>${fixed(each.log_q, 2)}</td><td>${fixed(each.log_p, 2)}</td>
          <td><span class="value">${percent(each.weight, 1)}<span class="roomy"><${Bar} share=${each.weight / most} label="" /></span></span></td></tr>`)}</tbody>
      </table></div>
      <${Lines} title="What the draws say of the softmax" height=${260}
        x=${{ label: "draws", log: true, say: short, from: 1, to: data.n }} y=${{ label: "log-normaliser, nats", say: (v) => v.toFixed(1), exact: (v) => v.toFixed(3) }}
        series=${[{ name: "all items", style: "s0", dash: true, points: data.estimates.map(([i]) => [i, data.normaliser]) }, { name: "estimate", style: "s1", points: data.estimates }]}>
        Log of the sum of exp(score) over all items, and its estimate from the first draws, each divided by its q. The sooner it settles on the dashed line, the better the proposal.<//>
    </div>`}`;
}

const when = ({ facts }) => (facts.product || facts.tree ? "" : "This model has no item vectors and no tree to draw by: its scores are counts.");

export const view = { name: "sampler", title: "Sampler", View, when, live: true };
