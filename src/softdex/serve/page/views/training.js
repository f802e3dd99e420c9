// The model: how it was trained, on what, and what it scored.

import { Lines, short, tidy } from "../charts.js";
import { useAsk } from "../api.js";
import { Answer, count, number, useApp, words } from "../parts.js";
import { html } from "../vendor/htm-preact-standalone.js";
import { With, path, useBoth } from "../with.js";

const CURVES = [
  ["loss", "Loss", "loss of the recipe; models with other losses are not comparable"],
  ["metric", "Validation", "metric on the validation part, by which the epoch is chosen"],
  ["kl", "Proposal: KL(q ‖ softmax)", "0 if the proposal of the negatives is the softmax, on a few users"],
  ["ess", "Proposal: effective draws", "share of the draws that count"],
];

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
  const shown = CURVES.filter(([name]) => lines.some((each) => has(each.data, name)));
  if (!shown.length) return html`<p class="note">This recipe is solved in one step, or its run folder is not here: there are no records of epochs.</p>`;
  const timed = lines.some((each) => has(each.data, "trained"));
  const at = (record) => (by === "epoch" ? record.epoch : record.trained);
  const best = one.best_epoch;
  return html`
    ${timed && html`<nav class="choices" aria-label="Over">
      <a href=${place.link({ x: "epoch" })} aria-current=${by === "epoch" ? "true" : null}>over epochs</a>
      <a href=${place.link({ x: "trained" })} aria-current=${by === "trained" ? "true" : null}>over seconds of training</a></nav>`}
    <div class="charts">${shown.map(([name, title, said]) => {
      const series = lines.map((each) => ({ ...each, dots: true, points: each.data.records.filter((record) => record[name] !== undefined).map((record) => [at(record), record[name]]) })).filter((each) => each.points.length);
      const kept = one.records.find((each) => each.epoch === best && each[name] !== undefined);
      return html`<${Lines} key=${name} title=${title} height=${230} series=${series}
        x=${{ label: by === "epoch" ? "epoch" : "seconds of training", say: short, from: 0 }}
        y=${{ label: name === "ess" ? "share" : name, exact: number, ...(name === "ess" ? { from: 0, to: 1 } : {}) }}
        marks=${kept && name === "metric" ? [{ x: at(kept), y: kept[name], text: "kept", style: "s1", below: true }] : []}>${said}.<//>`;
    })}</div>
    <p class="soft small">${one.source === "card" ? "From the model's card." : "From log.jsonl of the run folder."}</p>`;
}

/** The card as tables of names and values. */
function Card({ card }) {
  const { options = {}, metrics = {}, card: split, capacity = {}, warnings = [] } = card;
  const test = metrics.test ?? metrics.valid;
  const names = test ? [...new Set(Object.keys(test).map((each) => each.split("@")[0]))] : [];
  const cutoffs = test ? [...new Set(Object.keys(test).map((each) => each.split("@")[1]))] : [];
  const parts = Object.fromEntries(["recipe", "encoder", "scorer", "index", "users", "items", "temperature", "path"].map((name) => [name, card[name]]));
  parts.seal = (card.seal ?? "").slice(0, 16);
  const rule = split && { name: split.name, ...split.arguments, ...split.counts, "data sha256": (split.data_sha256 ?? "").slice(0, 16), "split sha256": (split.sha256 ?? "").slice(0, 16) };
  return html`<h2>Card</h2>
    ${[...warnings, ...(split?.notes ?? [])].map((each) => html`<p class="note" key=${each}>${each}</p>`)}
    <div class="cards masonry">
      <${Facts} title="Model" of=${parts} />
      <${Facts} title="Options" of=${options} />
      ${rule && html`<${Facts} title="Split" of=${rule} />`}
      ${card.data && html`<${Facts} title="Training log" of=${typeof card.data === "object" ? card.data : { "data sha256": String(card.data).slice(0, 16) }} />`}
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
  <tbody>${Object.entries(of).filter(([, value]) => value !== undefined && value !== null && value !== "").map(([name, value]) => html`<tr key=${name}>
    <th scope="row" class="words">${name}</th><td class="wrap">${typeof value === "number" && Number.isInteger(value) && value > 9999 ? count(value) : typeof value === "number" ? tidy(value) : Array.isArray(value) ? value.map((each) => (typeof each === "number" ? tidy(each) : words(each))).join(", ") : words(value)}</td></tr>`)}</tbody>
</table></section>`;

export const view = { name: "model", title: "Model", View };
