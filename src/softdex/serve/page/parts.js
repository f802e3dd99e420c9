// What views share: states, numbers, bars, intervals, tables, items.

import { path, picture } from "./api.js";
import {
  createContext,
  html,
  useContext,
  useEffect,
  useRef,
  useState,
} from "./vendor/htm-preact-standalone.js";

/** {place, models, model, facts}: see `app.js`. */
export const App = createContext(null);
export const useApp = () => useContext(App);

// numbers -----------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en");
export const count = (n) => whole.format(n);
export const counted = (n, noun) => `${count(n)} ${n === 1 ? noun.replace(/s$/, "") : noun}`;
export const percent = (x, digits = 0) => `${(100 * x).toFixed(digits)} %`;
export const signed = (x, digits = 3) =>
  `${x > 0 ? "+" : x < 0 ? "−" : "±"}${Math.abs(x).toFixed(digits)}`;

/** A share of a whole, with a digit more where it is small. */
export const portion = (x) => percent(x, x < 0.095 && x > 0 ? 1 : 0);

/** A number in the digits that its size deserves. */
export const number = (x) => shortened(x).replace("-", "−");

/** A number with a fixed number of digits. */
export const fixed = (x, digits) => x.toFixed(digits).replace("-", "−");

function shortened(x) {
  if (typeof x !== "number" || !Number.isFinite(x)) return "–";
  if (Number.isInteger(x)) return count(x);
  const size = Math.abs(x);
  if (size >= 100) return x.toFixed(0);
  if (size >= 10) return x.toFixed(1);
  return size >= 0.001 || size === 0 ? x.toPrecision(3) : x.toExponential(1);
}

/** Any value of an item column as text. */
export function words(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map(words).join(", ");
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : number(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}

// states ------------------------------------------------------------------------------------------

export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

export const Wrong = ({ error }) =>
  html`<div class="note bad" role="alert"><p>${error.message}</p></div>`;

export const Loading = ({ rows = 6, working = false }) =>
  html`<div class="loading" aria-busy="true">
    <p class="soft" role="status">
      ${working ? "The server is computing this, once …" : "Loading …"}
    </p>
    ${Array.from({ length: rows }, (_, i) => html`<div class="ghost" key=${i}></div>`)}
  </div>`;

/** What an answer is in: an error, a wait, nothing, or the children made of its data. */
export function Answer({ of, rows, children }) {
  if (of.error) return html`<${Wrong} error=${of.error} />`;
  if (of.data === undefined) return html`<${Loading} rows=${rows} working=${of.working} />`;
  const body = typeof children === "function" ? children(of.data) : children;
  return html`<div class=${of.busy ? "stale" : ""} aria-busy=${of.busy}>
    ${of.working && html`<p class="soft" role="status">The server is computing this, once …</p>`}
    ${body}
  </div>`;
}

// bars and intervals ------------------------------------------------------------------------------

const part = (x) => `${Math.max(0, Math.min(1, x)) * 100}%`;

/** A share of a whole as a bar; `low` and `high` draw its interval. Without a label it only adorns. */
export function Bar({ share, kind = "", low, high, label }) {
  const spread = low !== undefined && high !== undefined && low !== null;
  const said =
    label === ""
      ? { "aria-hidden": "true" }
      : { role: "img", "aria-label": label ?? percent(share) };
  return html`<span class=${`bar ${kind}`} ...${said}>
    ${share > 0 && html`<i style=${{ width: part(share) }}></i>`}
    ${spread && html`<u style=${{ left: part(low), width: part(high - low) }}></u>`}
  </span>`;
}

/** A difference with its interval, on a scale from -most to most; colour if it excludes 0. */
export function Gap({ value, low, high, most }) {
  const real = low > 0 ? "good" : high < 0 ? "bad" : "quiet";
  const at = (x) => (x / most + 1) / 2;
  const left = Math.min(at(0), at(value));
  const said = `${signed(value)}, from ${signed(low)} to ${signed(high)}`;
  return html`<span class=${`bar pair ${real}`} role="img" aria-label=${said}>
    <i style=${{ left: part(left), width: part(Math.abs(at(value) - at(0))) }}></i>
    <u style=${{ left: part(at(low)), width: part(at(high) - at(low)) }}></u>
  </span>`;
}

// tables ------------------------------------------------------------------------------------------

/**
 * A table. `columns` are {name, label, cell?, number?, sort?}: `cell` makes the content of a row,
 * `number` sets it right, `sort` is the value that a click on the head sorts by.
 */
export function Table({ columns, rows, caption, order = null, rowKey, rowClass }) {
  const [by, set] = useState(order ?? { name: null, down: true });
  const chosen = columns.find((each) => each.name === by.name);
  const value =
    chosen?.sort && (typeof chosen.sort === "function" ? chosen.sort : (row) => row[chosen.name]);
  const sorted = value
    ? [...rows].sort((a, b) => compare(value(a), value(b)) * (by.down ? -1 : 1))
    : rows;
  const side = (each) => (each.number ? "" : "words");
  const head = (each) => {
    if (!each.sort)
      return html`<th key=${each.name} scope="col" class=${side(each)}>${each.label}</th>`;
    const mine = each.name === by.name;
    const turn = () => set({ name: each.name, down: mine ? !by.down : true });
    const state = mine ? (by.down ? "descending" : "ascending") : "none";
    return html`<th key=${each.name} scope="col" class=${side(each)} aria-sort=${state}>
      <button type="button" onClick=${turn}>${each.label}</button>
    </th>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption ?? "table"}>
    <table class="wide">
      ${
        caption &&
        html`<caption>
          ${caption}
        </caption>`
      }
      <thead>
        <tr>
          ${columns.map(head)}
        </tr>
      </thead>
      <tbody>
        ${sorted.map(
          (row, i) =>
            html`<tr key=${rowKey ? rowKey(row) : i} class=${rowClass ? rowClass(row) : ""}>
              ${columns.map(
                (each) =>
                  html`<td key=${each.name} class=${side(each)}>
                    ${each.cell ? each.cell(row, i) : words(row[each.name])}
                  </td>`,
              )}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

function compare(a, b) {
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

// items -------------------------------------------------------------------------------------------

/** Columns that a list needs: the title, and those that were chosen. */
export const wanted = (facts, shown) => [
  ...new Set(
    [facts.title, ...shown].filter((name) => facts.columns.some((each) => each.name === name)),
  ),
];

/** The name of an item: its title, else its key. */
export const title = (row, facts) => words(cells(row)[facts.title]) || String(row?.item ?? "");

/** An item's columns: of a list they stand beside its key, of the catalogue under `columns`. */
export const cells = (row) => row?.columns ?? row ?? {};

/** The picture of an item, which a canvas may show without being let load pictures. */
function Picture({ row }) {
  const { model } = useApp();
  const canvas = useRef(null);
  useEffect(() => {
    const control = new AbortController();
    const at = path(`v1/pictures/${encodeURIComponent(row.item)}`, { model: model.name });
    picture(at, control.signal).then(
      (found) => {
        const { width, height } = canvas.current;
        const scale = Math.max(width / found.width, height / found.height);
        const [w, h] = [found.width * scale, found.height * scale];
        canvas.current.getContext("2d").drawImage(found, (width - w) / 2, (height - h) / 2, w, h);
      },
      () => {},
    );
    return () => control.abort();
  }, [row.item]);
  return html`<canvas
    ref=${canvas}
    class="picture"
    width="64"
    height="88"
    aria-hidden="true"
  ></canvas>`;
}

/** An item: its picture, its title, then its key and the columns shown. */
export function Item({ row, facts, shown = [] }) {
  const name = title(row, facts);
  const more = shown
    .filter((column) => column !== facts.title)
    .map((column) => words(cells(row)[column]));
  const key = String(row.item);
  return html`<span class=${`item ${row.picture ? "pictured" : ""}`}>
    ${row.picture && html`<${Picture} key=${key} row=${row} />`}
    <span class="cut name" title=${name}>${name}</span>
    <span class="cut soft small" title=${more.join(" · ")}>
      ${name !== key && html`<span class="mono">${key}</span>`}
      ${[name !== key ? "" : null, ...more].filter((each) => each !== null).join(" · ")}
    </span>
  </span>`;
}

// lists -------------------------------------------------------------------------------------------

/** Whether the screen is a phone's. */
export function useNarrow() {
  const query = matchMedia("(max-width: 48rem)");
  const [narrow, set] = useState(query.matches);
  useEffect(() => {
    const turned = () => set(query.matches);
    query.addEventListener("change", turned);
    return () => query.removeEventListener("change", turned);
  }, []);
  return narrow;
}

/** The columns of the address that a list shows beside the title: on a phone they stand below it. */
export function useShown() {
  const { place, facts } = useApp();
  if (useNarrow()) return [];
  const known = new Set(facts.columns.map((each) => each.name));
  return place.all("columns").filter((name) => name !== facts.title && known.has(name));
}

/** The classes of a column's cells: numbers stand right. */
export function useKinds() {
  const { facts } = useApp();
  const numbers = new Set(
    facts.columns.filter((each) => each.kind === "number" && !each.many).map((each) => each.name),
  );
  return (name) => `column ${numbers.has(name) ? "number" : "words"}`;
}

/** The head of a list's table. */
export function Heads({ shown, label }) {
  const kindOf = useKinds();
  const narrow = useNarrow();
  const words = shown.filter((name) => !kindOf(name).includes("number"));
  const width = `${Math.min(18, 36 / words.length)}%`; // an item has at least as much
  return html`<thead>
    <tr>
      <th scope="col"><span class="hidden">Rank</span></th>
      <th scope="col" class="words">Item</th>
      ${shown.map((name) => html`<th key=${name} scope="col" class=${kindOf(name)} style=${words.includes(name) ? { width } : {}}><span class="cut">${name}</span></th>`)}
      ${!narrow && html`<th scope="col" class="events">Events</th>`}
      <th scope="col">${label}</th>
    </tr>
  </thead>`;
}

/** The width of a score's bar: from 0, or from the lowest score, to the highest. */
export function scale(items) {
  const scores = items.map((each) => each.score ?? 0);
  const [low, high] = [Math.min(0, ...scores), Math.max(1e-12, ...scores)];
  return (score) => (score - low) / (high - low);
}

/** A list of items that lead somewhere: `to` makes the link of a key. */
export function Ranked({ items, rows, to, label }) {
  const { place, facts } = useApp();
  const [shown, narrow, kindOf] = [useShown(), useNarrow(), useKinds()];
  const share = scale(items);
  return html`<table class="wide ranked">
    <${Heads} shown=${shown} label=${label} />
    <tbody>
      ${items.map((item) => {
        const row = { ...item, ...(rows.get(String(item.item)) ?? {}) };
        return html`<tr key=${String(item.item)} class="still">
          <td class="soft">${item.rank}</td>
          <td class="words">
            <a class="to" href=${to(item.item)}
              ><${Item} row=${row} facts=${facts} shown=${place.all("columns")}
            /></a>
          </td>
          ${shown.map((name) => html`<td key=${name} class=${kindOf(name)}><span class="cut">${words(cells(row)[name])}</span></td>`)}
          ${!narrow && html`<td class="soft">${row.events === undefined ? "" : count(row.events)}</td>`}
          <td>
            <span class="value"
              >${number(item.score)}<${Bar} share=${share(item.score)} label=""
            /></span>
          </td>
        </tr>`;
      })}
    </tbody>
  </table>`;
}

/** The items of a list beside a drawing: pointed at, one stands out in it. `items` are [key, place]. */
export function Spots({ items, name, hover, pick }) {
  return html`<h2>List</h2>
    <ol class="small spots">
      ${items.map(
        ([key, place]) =>
          html`<li key=${String(key)}>
            <button
              type="button"
              class="plain"
              onFocus=${() => hover(place)}
              onBlur=${() => hover(null)}
              onMouseEnter=${() => hover(place)}
              onMouseLeave=${() => hover(null)}
              onClick=${() => pick(key)}
            >
              <span class="cut">${name(key)}</span>
            </button>
          </li>`,
      )}
    </ol>`;
}

// lines -------------------------------------------------------------------------------------------

/** Numbers over time as a small line from 0 to their maximum. */
export function Line({ values, label, width = 240, height = 44 }) {
  const most = Math.max(1e-12, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map(
    (each, i) =>
      `${(i * step).toFixed(1)},${(height - 2 - (height - 6) * (each / most)).toFixed(1)}`,
  );
  return html`<svg
    class="s1"
    viewBox=${`0 0 ${width} ${height}`}
    preserveAspectRatio="none"
    height=${height}
    role="img"
    aria-label=${`${label}, at most ${number(Math.max(0, ...values))}`}
  >
    <path class="axis" d=${`M0 ${height - 1.5}H${width}`} />
    ${points.length > 1 && html`<polyline class="series" points=${points.join(" ")} />`}
  </svg>`;
}
