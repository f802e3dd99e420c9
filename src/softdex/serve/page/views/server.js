// The server: requests, latency, queue, batches, and the models it has loaded; asked every two seconds.

import { ask, useAsk } from "../api.js";
import { Empty, Line, Table, Wrong, count, number, percent, useApp } from "../parts.js";
import { html, useEffect, useState } from "../vendor/htm-preact-standalone.js";

const EVERY = 2000; // milliseconds
const KEPT = 90; // looks that the lines show

/** Counters in the format of Prometheus as [{name, labels, value}]. */
export function parse(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:]\w*)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(/(\w+)="((?:\\.|[^"\\])*)"/g)) {
      labels[name] = value.replace(/\\(.)/g, (_, each) => (each === "n" ? "\n" : each));
    }
    found.push({ name: match[1], labels, value: Number(match[3]) });
  }
  return found;
}

const sum = (rows, name, where = () => true) =>
  rows.reduce(
    (total, each) => total + (each.name === name && where(each.labels) ? each.value : 0),
    0,
  );

/** A quantile of what was counted between two looks, by the buckets of a histogram. */
function quantile(now, before, name, q, where = () => true) {
  const counts = new Map();
  const add = (rows, sign) => {
    for (const each of rows) {
      if (each.name === `${name}_bucket` && where(each.labels)) {
        const edge = each.labels.le === "+Inf" ? Infinity : Number(each.labels.le);
        counts.set(edge, (counts.get(edge) ?? 0) + sign * each.value);
      }
    }
  };
  add(now, 1);
  add(before, -1);
  const edges = [...counts.keys()].sort((a, b) => a - b);
  const whole = counts.get(Infinity) ?? 0;
  if (!whole) return null;
  let low = 0,
    below = 0;
  for (const edge of edges) {
    const at = counts.get(edge);
    if (at >= q * whole)
      return edge === Infinity
        ? low
        : low + ((edge - low) * (q * whole - below)) / Math.max(1, at - below);
    [low, below] = [edge, at];
  }
  return low;
}

const mine = (labels) => !["/metrics", "/page/{file}", "/"].includes(labels.endpoint);

function look(now, before, seconds) {
  const batches = sum(now, "softdex_batch_users_count") - sum(before, "softdex_batch_users_count");
  const users = sum(now, "softdex_batch_users_sum") - sum(before, "softdex_batch_users_sum");
  return {
    rate:
      (sum(now, "softdex_requests_total", mine) - sum(before, "softdex_requests_total", mine)) /
      seconds,
    latency: quantile(now, before, "softdex_request_seconds", 0.99, mine),
    depth: sum(now, "softdex_queue_depth"),
    batch: batches ? users / batches : null,
    shed: sum(now, "softdex_shed_total") - sum(before, "softdex_shed_total"),
  };
}

function View() {
  const { models } = useApp();
  const [looks, add] = useState([]);
  const [rows, set] = useState([]);
  const [error, fail] = useState(null);
  const entries = useAsk("v1/models");
  useEffect(() => {
    const control = new AbortController();
    let before = null,
      time = 0,
      timer = 0;
    const next = async () => {
      try {
        const now = parse(await ask("metrics", { signal: control.signal }));
        const at = performance.now();
        if (before) add((old) => [...old, look(now, before, (at - time) / 1000)].slice(-KEPT));
        set(now);
        fail(null);
        [before, time] = [now, at];
      } catch (trouble) {
        if (trouble.name === "AbortError") return;
        fail(trouble);
      }
      timer = setTimeout(next, EVERY);
    };
    next();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, []);
  const last = looks.at(-1) ?? {};
  const ms = (x) => (x === null || x === undefined ? "–" : `${number(x * 1000)} ms`);
  const shown = [
    ["Requests per second", number(last.rate), "rate"],
    ["99 % answered within", ms(last.latency), "latency"],
    ["Waiting in the queue", number(last.depth), "depth"],
    ["Users per batch", number(last.batch), "batch"],
    ["Refused: at capacity", number(last.shed), "shed"],
  ];
  if (error) return html`<div class="page"><${Wrong} error=${error} /></div>`;
  if (!rows.length) return html`<div class="page"><${Empty}>Looking …<//></div>`;
  return html`<div class="page">
    <h1>Server</h1>
    <p class="lead">
      ${`The last ${(KEPT * EVERY) / 60000} minutes, a look every ${EVERY / 1000} seconds. `}
      <a href="metrics">All counters</a> · <a href="docs">endpoints</a>
    </p>
    <div class="cards meters">
      ${shown.map(
        ([label, value, name]) =>
          html`<figure key=${name} class="card meter">
            <figcaption>${label}</figcaption>
            <b>${value}</b>
            <${Line} values=${looks.map((each) => each[name] ?? 0)} label=${label} />
          </figure>`,
      )}
    </div>
    <h2>Models</h2>
    <${Models} models=${entries.data?.models ?? models} rows=${rows} />
    <h2>Endpoints</h2>
    <${Endpoints} rows=${rows} />
  </div>`;
}

function Models({ models, rows }) {
  const lately = (name, model, say) => {
    const found = sum(rows, name, (labels) => labels.model === model);
    return found ? say(found) : "–"; // nothing was served
  };
  const reloads = (model) =>
    rows.filter((each) => each.name === "softdex_reloads_total" && each.labels.model === model);
  const columns = [
    { name: "name", label: "Model", cell: (row) => html`<span class="cut">${row.name}</span>` },
    { name: "recipe", label: "Recipe" },
    {
      name: "seal",
      label: "Seal",
      cell: (row) => html`<span class="mono">${(row.seal ?? "").slice(0, 8)}</span>`,
    },
    {
      name: "loaded",
      label: "Loaded",
      cell: (row) => (row.loaded ? new Date(row.loaded * 1000).toLocaleString("en") : ""),
    },
    { name: "capacity", label: "Lists/s", number: true, cell: (row) => number(row.capacity) },
    {
      name: "coverage",
      label: "Coverage",
      number: true,
      cell: (row) => lately("softdex_served_coverage", row.name, (x) => percent(x, 1)),
    },
    {
      name: "popularity",
      label: "Popularity",
      number: true,
      cell: (row) => lately("softdex_served_popularity", row.name, (x) => x.toFixed(2)),
    },
    {
      name: "reloads",
      label: "Reloads",
      cell: (row) =>
        reloads(row.name)
          .map((each) => `${each.value} ${each.labels.result}`)
          .join(", ") || "none",
    },
    {
      name: "trouble",
      label: "",
      cell: (row) =>
        row.trouble &&
        html`<span class="chip bad" title=${row.trouble}>${row.trouble.slice(0, 60)}</span>`,
    },
  ];
  return html`<${Table}
    columns=${columns}
    rows=${models}
    caption="Of the lists served lately: coverage, and mean popularity; 1 is the most popular item"
    rowKey=${(row) => row.name}
  />`;
}

function Endpoints({ rows }) {
  const names = [
    ...new Set(
      rows
        .filter((each) => each.name === "softdex_requests_total")
        .map((each) => each.labels.endpoint),
    ),
  ];
  const list = names.map((name) => {
    const at = (labels) => labels.endpoint === name;
    const failed = (labels) => at(labels) && Number(labels.status) >= 400;
    return {
      name,
      requests: sum(rows, "softdex_requests_total", at),
      refused: sum(rows, "softdex_requests_total", failed),
      half: quantile(rows, [], "softdex_request_seconds", 0.5, at),
      most: quantile(rows, [], "softdex_request_seconds", 0.99, at),
    };
  });
  const ms = (x) => (x === null ? "" : number(x * 1000));
  const columns = [
    {
      name: "name",
      label: "Endpoint",
      sort: true,
      cell: (row) => html`<span class="mono together">${row.name}</span>`,
    },
    {
      name: "requests",
      label: "Requests",
      number: true,
      sort: true,
      cell: (row) => count(row.requests),
    },
    {
      name: "refused",
      label: "Refused",
      number: true,
      sort: true,
      cell: (row) => count(row.refused),
    },
    {
      name: "half",
      label: "Median ms",
      number: true,
      sort: (row) => row.half ?? 0,
      cell: (row) => ms(row.half),
    },
    {
      name: "most",
      label: "p99 ms",
      number: true,
      sort: (row) => row.most ?? 0,
      cell: (row) => ms(row.most),
    },
  ];
  return html`<${Table}
    columns=${columns}
    rows=${list}
    order=${{ name: "requests", down: true }}
    caption="Since the server started"
    rowKey=${(row) => row.name}
  />`;
}

export const view = { name: "server", title: "Server", View, live: true };
