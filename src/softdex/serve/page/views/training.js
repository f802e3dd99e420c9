// The model: how it was trained, on what, and what it scored.

import { Lines, short, tidy } from "../charts.js";
import { useAsk } from "../api.js";
import { Answer, count, number, useApp, words } from "../parts.js";
import { html } from "../vendor/htm-preact-standalone.js";
import { With, path, useBoth } from "../with.js";

const CURVES = {
  loss: ["Loss", "", "What is minimised."],
  metric: ["Validation", "", "On the validation part; the best epoch is kept."],
  kl: ["Proposal: KL(q ‖ softmax)", "nats", "0 if the proposal of the negatives is the softmax; on a few users."],
  ess: ["Proposal: effective draws", "share", "Share of the draws that count."],
};

function View() {
  const { model } = useApp();
  const card = useAsk(`v1/models/${encodeURIComponent(model.name)}`);
  const both = useBoth((name) => path("v1/study/training", { model: name }));
  return html`<div class="page">
    <h1>The model</h1>
    <p class="lead">How ${model.name} was trained, epoch by epoch, and its card: what it is, what it was trained on, and what it scored.</p>
    <${With} />
    <${Answer} of=${both.one}>${() => html`<${Curves} one=${both.data} two=${both.theirs} other=${both.other} />`}<//>
    <${Answer} of=${card}>${(data) => html`<${Card} card=${data} />`}<//>
  </div>`;
}

function Curves({ one, two, other }) {
  const { model, place } = useApp();
  if (!one) return null;
  const by = place.get("x", two ? "trained" : "epoch");
  const lines = [{ name: model.name, style: "s1", data: one }, ...(two ? [{ name: other, style: "s2", data: two }] : [])];
  const has = (data, name) => data.records.some((each) => each[name] !== undefined);
  const shown = Object.keys(CURVES).filter((name) => lines.some((each) => has(each.data, name)));
  if (!shown.length) return html`<p class="note">This recipe is solved in one step, or its run folder is not here: there are no records of epochs.</p>`;
  const timed = lines.some((each) => has(each.data, "trained"));
  // losses of different objectives cannot be compared: each has its own axes
  const apart = two && one.recipe !== two.recipe;
  const charts = shown.flatMap((name) => (name === "loss" && apart ? lines.map((each) => [name, [each]]) : [[name, lines]]));
  return html`
    ${timed && html`<nav class="choices" aria-label="Over">
      <a href=${place.link({ x: "epoch" })} aria-current=${by === "epoch" ? "true" : null}>over epochs</a>
      <a href=${place.link({ x: "trained" })} aria-current=${by === "trained" ? "true" : null}>over seconds of training</a></nav>`}
    <div class="charts">${charts.map(([name, of]) => html`<${Curve} key=${`${name} ${of[0].name}`} name=${name} lines=${of} by=${by} />`)}</div>
    <p class="soft small">${one.source === "card" ? "From the model's card." : "From log.jsonl of the run folder."}</p>`;
}

/** A figure of each epoch; a ring marks the epoch that was kept. */
function Curve({ name, lines, by }) {
  const [title, unit, said] = CURVES[name];
  const at = (record) => (by === "epoch" ? record.epoch : record.trained);
  const points = ({ records }) => records.filter((each) => each[name] !== undefined).map((each) => [at(each), each[name]]);
  const series = lines.map((each) => ({ ...each, dots: true, points: points(each.data) })).filter((each) => each.points.length);
  const [{ data, style }] = lines;
  const kept = name === "metric" && data.records.find((each) => each.epoch === data.best_epoch && each[name] !== undefined);
  return html`<${Lines} title=${title} height=${230} series=${series}
    x=${{ label: by === "epoch" ? "epoch" : "seconds of training", say: short, from: 0 }}
    y=${{ label: name === "metric" ? data.metric : unit, exact: number, ...(name === "ess" ? { from: 0, to: 1 } : {}) }}
    marks=${kept ? [{ x: at(kept), y: kept[name], text: "kept", style, below: true }] : []}>${said}<//>`;
}

const DIGITS = 12; // of a hash that are shown

/** The card as tables of names and values. */
function Card({ card }) {
  const { options = {}, metrics = {}, card: split, capacity = {}, warnings = [] } = card;
  const test = metrics.test ?? metrics.valid;
  const names = test ? [...new Set(Object.keys(test).map((each) => each.split("@")[0]))] : [];
  const cutoffs = test ? [...new Set(Object.keys(test).map((each) => each.split("@")[1]))] : [];
  const parts = Object.fromEntries(["recipe", "encoder", "scorer", "index", "users", "items", "temperature", "path"].map((name) => [name, card[name]]));
  const hash = (text) => String(text ?? "").slice(0, DIGITS);
  parts.seal = hash(card.seal);
  const rule = split && { name: split.name, ...split.arguments, ...split.counts, "data sha256": hash(split.data_sha256), "split sha256": hash(split.sha256) };
  return html`<h2>Card</h2>
    ${[...warnings, ...(split?.notes ?? [])].map((each) => html`<p class="note" key=${each}>${each}</p>`)}
    <div class="cards masonry">
      <${Facts} title="Model" of=${parts} />
      <${Facts} title="Options" of=${options} />
      ${rule && html`<${Facts} title="Split" of=${rule} />`}
      ${card.data && html`<${Facts} title="Training log" of=${typeof card.data === "object" ? card.data : { "data sha256": hash(card.data) }} />`}
      <${Facts} title="Measured at start" of=${{ "requests per second": capacity.requests_per_second, "milliseconds of one": capacity.milliseconds_of_one, "users per batch": capacity.users_per_batch }} />
    </div>
    ${test && html`<h2>${metrics.test ? "Test" : "Validation"}</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Metrics"><table>
        <thead><tr><th scope="col" class="words">Metric</th>${cutoffs.map((k) => html`<th key=${k} scope="col">@${k}</th>`)}</tr></thead>
        <tbody>${names.map((name) => html`<tr key=${name}><th scope="row" class="words">${name}</th>
          ${cutoffs.map((k) => html`<td key=${k}>${test[`${name}@${k}`] === undefined ? "" : test[`${name}@${k}`].toFixed(4)}</td>`)}</tr>`)}</tbody>
      </table></div>`}`;
}

const Facts = ({ title, of }) => html`<section class="card"><h3>${title}</h3><table class="wide">
  <tbody>${Object.entries(of).filter(([, value]) => ![undefined, null, ""].includes(value)).map(([name, value]) => html`<tr key=${name}>
    <th scope="row" class="words">${name}</th><td class="wrap">${fact(value)}</td></tr>`)}</tbody>
</table></section>`;

/** A value of the card as text. */
function fact(value) {
  if (Array.isArray(value)) return value.map(fact).join(", ");
  if (typeof value !== "number") return words(value);
  return Number.isInteger(value) ? count(value) : tidy(value);
}

export const view = { name: "model", title: "Model", View };
