// Users to look at: the worst and the best lists, few events, or some at random.

import { path, useAsk } from "../api.js";
import { go } from "../address.js";
import { still } from "../files.js";
import { Answer, Bar, Empty, Table, counted, useApp } from "../parts.js";
import { html } from "../vendor/htm-preact-standalone.js";

const KINDS = {
  hard: "Worst lists, most events first",
  easy: "Best lists, most events first",
  cold: "Fewest events",
  random: "At random",
};

function View() {
  const { place, model, facts } = useApp();
  const kind = place.get("kind", facts.holdout ? "hard" : "random");
  const result = useAsk(facts.holdout && path("v1/study/result", { model: model.name }));
  const metric = place.get("metric", facts.holdout ? "ndcg@20" : "");
  const metrics = Object.keys(result.data?.metrics ?? {}).filter(
    (name) => !name.startsWith("coverage"),
  );
  const found = useAsk(
    path("v1/study/users", { kind, metric, limit: 50, seed: 0, model: model.name }),
  );
  const columns = [
    {
      name: "user",
      label: "User",
      sort: true,
      cell: (row) =>
        html`<a
          class="cut"
          href=${place.link({ user: String(row.user), add: null, drop: null }, "lists")}
          >${String(row.user)}</a
        >`,
    },
    { name: "events", label: "Events", number: true, sort: true },
    ...(metric
      ? [
          {
            name: "value",
            label: metric,
            number: true,
            sort: true,
            cell: (row) =>
              html`<span class="value"
                >${row.value.toFixed(3)}<${Bar} share=${row.value} label=""
              /></span>`,
          },
        ]
      : []),
  ];
  const kinds = Object.entries(KINDS).filter(
    ([name]) => facts.holdout || !["hard", "easy"].includes(name),
  );
  return html`<div class="page">
    <h1>Users</h1>
    <p class="lead">
      ${counted(facts.users, "users")}. Choose whom to look at; a name leads to the list.
    </p>
    <nav class="choices" aria-label="Which users">
      ${kinds.map(([name, said]) => html`<a key=${name} href=${place.link({ kind: name })} aria-current=${name === kind ? "true" : null}>${said}</a>`)}
    </nav>
    ${
      !still &&
      metrics.length > 0 &&
      html`<div class="with">
        <label
          >Metric
          <select
            value=${metric}
            onChange=${(event) => go(place.link({ metric: event.target.value }))}
          >
            ${metrics.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
          </select></label
        >
        <span>
          ${result.data && html`mean <b>${result.data.metrics[metric]?.value.toFixed(4)}</b> ± ${result.data.metrics[metric]?.error?.toFixed(4)} over ${counted(result.data.users, "users")}`}</span
        >
      </div>`
    }
    <${Answer} of=${found} rows=${10}>
      ${(data) => (data.rows.length ? html`<div class="slim"><${Table} columns=${columns} rows=${data.rows} rowKey=${(row) => String(row.user)} /></div>` : html`<${Empty}>No user.<//>`)}
    <//>
  </div>`;
}

export const view = { name: "users", title: "Users", View };
