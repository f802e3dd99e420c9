// Breakdown: for which users, and for which held-out items, a model is good, with intervals.

import { go } from "../address.js";
import { useAsk } from "../api.js";
import { Keys } from "../charts.js";
import { still } from "../files.js";
import { Answer, Bar, Table, count, counted, percent, useApp, useNarrow } from "../parts.js";
import { html } from "../vendor/htm-preact-standalone.js";
import { Choices, With, path, useBoth } from "../with.js";

const BY = { history: "history length", popularity: "popularity of the item", category: "category of the item" };
const SAID = {
  history: "Users by the number of events that the model knows of them: few events are the cold start.",
  popularity: "Held-out items by their training events: is what few know ever found, or only what everybody knows?",
  category: "Held-out items by their value: which parts of the catalogue the model finds, and which it does not.",
};
const COLD = "What was held out of this model's training is not known. Serve its run folder (softdex look RUN), or call sdx.look(model, test).";

function View() {
  const { place, model, facts } = useApp();
  const by = place.get("by", "history");
  const metric = by === "history" ? place.get("metric") : recall(place.get("metric"));
  const column = by === "category" ? place.get("column", facts.category ?? "") : "";
  const asked = { by, metric, column };
  const both = useBoth((name) => path("v1/study/breakdown", { ...asked, model: name }));
  const columns = facts.columns.filter((each) => each.values && each.values.length > 1);
  const { cutoffs = [20], metrics = [] } = both.data ?? {};
  const chosen = both.data?.metric ?? metric;
  const [name, k] = chosen.split("@");
  const kinds = [...new Set(metrics.map((each) => each.split("@")[0]))];
  return html`<div class="page">
    <h1>Where it works</h1>
    <p class="lead">${SAID[by]} A bar is the mean, the bracket its 95 % interval.${still ? "" : " Choose a group for its users."}</p>
    <${With}>
      <${Choices} label="By" word="by" of=${Object.entries(BY).filter(([each]) => each !== "category" || columns.length)} chosen=${by} />
      <${Choices} label="At" word="metric" of=${cutoffs.map((each) => [`${name || "ndcg"}@${each}`, each])} chosen=${`${name}@${k}`} />
      ${by === "history" && kinds.length > 0 && html`<label>Metric <select value=${name} onChange=${(event) => go(place.link({ metric: `${event.target.value}@${k}` }), { replace: true })}>
        ${kinds.map((each) => html`<option key=${each} value=${each}>${each}</option>`)}</select></label>`}
      ${by === "category" && columns.length > 1 && html`<label>Column <select value=${column} onChange=${(event) => go(place.link({ column: event.target.value, group: null }), { replace: true })}>
        ${columns.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select></label>`}
    <//>
    <${Answer} of=${both.one} rows=${9}>
      ${(data) => html`<${Groups} data=${data} theirs=${both.theirs} other=${both.other} wrong=${both.other ? both.two.error : null} waits=${both.other && !both.theirs && !both.two.error} />`}
    <//>
    ${place.get("group") && !still && html`<${Users} asked=${asked} />`}
  </div>`;
}

const recall = (metric) => (metric ? `recall@${metric.split("@")[1] ?? 20}` : "");

function Groups({ data, theirs, other, wrong, waits }) {
  const { place, model } = useApp();
  const narrow = useNarrow();
  const names = [{ name: model.name, style: "s1" }, ...(theirs ? [{ name: other, style: "s2" }] : [])];
  const ofTheirs = (name) => theirs?.groups.find((each) => each.name === name);
  const all = [...data.groups, ...(theirs?.groups ?? []), data.whole];
  const most = Math.max(1e-9, ...all.map((each) => each.high ?? each.value));
  const rows = [{ ...data.whole, name: "all", whole: true }, ...data.groups];
  const apart = (each, whole) => (each.low === null || each.whole ? "" : each.low > whole.value ? "good" : each.high < whole.value ? "bad" : "");
  const bar = (each, whole, kind) => html`<span class="value">
    <b class=${apart(each, whole)}>${each.value.toFixed(3)}</b>
    <span class="held-in"><${Bar} share=${each.value / most} low=${each.low === null ? null : each.low / most} high=${(each.high ?? 0) / most} kind=${kind}
      label=${each.low === null ? each.value.toFixed(3) : `${each.value.toFixed(3)}, from ${each.low.toFixed(3)} to ${each.high.toFixed(3)}`} />
      <i class="level" style=${{ left: `${(100 * whole.value) / most}%` }}></i></span></span>`;
  const link = (each) => (each.whole || still ? html`<b>${each.name}</b>` : html`<a href=${place.link({ group: each.name })} aria-current=${place.get("group") === each.name ? "true" : null}><span class="cut">${each.name}</span></a>`);
  const head = { history: "Events", popularity: "Training events", category: data.column };
  const columns = [
    { name: "name", label: head[data.by], cell: link },
    ...(narrow ? [] : [{ name: "users", label: "Users", number: true, cell: (each) => count(each.users) }]),
    ...(narrow || data.by === "history" ? [] : [
      { name: "items", label: "Items", number: true, cell: (each) => (each.items === undefined ? "" : count(each.items)) },
      { name: "count", label: "Held out", number: true, cell: (each) => count(each.count) },
    ]),
    { name: "value", label: html`${theirs ? html`<${Keys} of=${[names[0]]} />` : data.metric}`, number: true, cell: (each) => bar(each, data.whole, "") },
    ...(theirs ? [{ name: "theirs", label: html`<${Keys} of=${[names[1]]} />`, number: true, cell: (each) => {
      const mine = each.whole ? { ...theirs.whole, whole: true } : ofTheirs(each.name);
      return mine ? bar(mine, theirs.whole, "other") : "–";
    } }] : []),
  ];
  return html`
    <p>${sentence(data)}</p>
    ${waits && html`<p class="soft" role="status">Computing ${other} …</p>`}
    ${wrong && html`<p class="note bad">${wrong.message}</p>`}
    <div class=${theirs ? "" : "narrow"}>
      <${Table} columns=${columns} rows=${rows} rowKey=${(each) => `${each.whole} ${each.name}`} rowClass=${(each) => (each.whole ? "best" : "")}
        caption=${`${data.metric}${data.by === "history" ? ", mean over users" : ": share of the held-out items that are in their user's list"}; the line is that of all`} />
    </div>`;
}

/** The best and the worst group, of those whose interval leaves out the whole. */
function sentence(data) {
  const real = data.groups.filter((each) => each.low !== null && (each.low > data.whole.value || each.high < data.whole.value));
  if (!real.length) return `No group differs from all users (${data.whole.value.toFixed(3)}) by more than chance.`;
  const order = [...real].sort((a, b) => b.value - a.value);
  const [best, worst] = [order[0], order[order.length - 1]];
  const of = { history: (name) => html`users with <b class="together">${name}</b> events`, popularity: (name) => html`items with <b class="together">${name}</b> training events`, category: (name) => html`<b>${name}</b>` }[data.by];
  const say = (each) => html`${of(each.name)} (${each.value.toFixed(3)})`;
  const parts = [best.value > data.whole.value && html`best for ${say(best)}`, worst.value < data.whole.value && html`worst for ${say(worst)}`].filter(Boolean);
  return html`On ${data.metric} the model is ${parts.map((each, i) => html`${i > 0 && ", "}${each}`)}; on the whole ${data.whole.value.toFixed(3)}.${" "}
    ${data.by !== "history" && `Of the ${count(data.whole.count)} held-out items, ${percent(data.whole.value, 1)} are found.`}`;
}

/** The users of a group; they open in the list view. */
function Users({ asked }) {
  const { place, model } = useApp();
  const [group, order] = [place.get("group"), place.get("order", "worst")];
  const found = useAsk(path("v1/study/breakdown/users", { ...asked, group, order, limit: 15, model: model.name }));
  return html`<section aria-label=${`Users of ${group}`} class="narrow">
    <h2>Users of <span class="cut inline">${group}</span></h2>
    <div class="with"><${Choices} label="First" word="order" of=${[["worst", "the worst"], ["best", "the best"]]} chosen=${order} />
      <a href=${place.link({ group: null, order: null })}>close</a></div>
    <${Answer} of=${found} rows=${6}>
      ${(data) => html`<${Table} caption=${`${counted(data.users, "users")}; a name leads to the list`} rows=${data.rows} rowKey=${(row) => String(row.user)} columns=${[
        { name: "user", label: "User", cell: (row) => html`<a class="cut" href=${place.link({ user: String(row.user), add: null, drop: null }, "lists")}>${String(row.user)}</a>` },
        { name: "events", label: "Training events", number: true },
        ...(asked.by === "history" ? [] : [{ name: "count", label: "Held out here", number: true }]),
        { name: "value", label: data.metric, number: true, cell: (row) => html`<span class="value">${row.value.toFixed(3)}<${Bar} share=${row.value} label="" /></span>` },
      ]} />`}
    <//>
  </section>`;
}

const when = ({ facts }) => (facts.holdout ? "" : COLD);

export const view = { name: "breakdown", title: "Breakdown", View, when };
