// Drawings with axes: lines and columns, as SVG. They take the width they get, are read with the
// pointer or the arrow keys, and have their numbers in a table below.

import { number, percent } from "./parts.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";

const SPACE = { left: 52, right: 14, top: 26, bottom: 42 };

// scales ------------------------------------------------------------------------------------------

/** A number on an axis, without zeros at its end. */
export const tidy = (x) => (Math.abs(x) >= 1e4 ? short(x) : String(+x.toPrecision(6)).replace("-", "−"));

/** A scale from values to [0, 1]: {at, ticks, say}. */
export function scale({ from, to, log = false, say = tidy, ticks }) {
  if (log) {
    const [a, b] = [Math.log10(from), Math.log10(to > from ? to : from * 10)];
    return { at: (x) => (Math.log10(Math.max(x, 1e-300)) - a) / (b - a), ticks: ticks ?? powers(a, b), say };
  }
  const width = to > from ? to - from : 1;
  return { at: (x) => (x - from) / width, ticks: ticks ?? steps(from, from + width), say };
}

/** Round numbers between two numbers. */
function steps(from, to, most = 5) {
  const raw = (to - from) / most;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * ([1, 2, 5, 10].find((each) => each * unit >= raw * 0.999) ?? 10);
  const found = [];
  for (let x = Math.ceil(from / step - 1e-9) * step; x <= to + step * 1e-9; x += step) found.push(Math.abs(x) < step / 1e6 ? 0 : x);
  return found;
}

/** Powers of ten between two logarithms; also 2 and 5 times them where there are few. */
function powers(a, b) {
  const found = [];
  const few = b - a < 1.6 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((b - a) / 6));
  for (let e = Math.floor(a); e <= Math.ceil(b); e += 1) {
    if (e % every) continue;
    for (const m of few) {
      const x = Math.log10(m) + e;
      if (x >= a - 1e-9 && x <= b + 1e-9) found.push(m * 10 ** e);
    }
  }
  return found.length > 2 ? found : steps(10 ** a, 10 ** b).filter((x) => x > 0);
}

/** A share in as many digits as it needs. */
export const share = (x) => (x === 0 ? "0 %" : Math.abs(x) >= 0.1 ? percent(x) : Math.abs(x) >= 0.01 ? percent(x, 1) : percent(x, x >= 0.0001 ? 2 : 4));

/** A whole number, short on an axis: 20k, 1M. */
export const short = (x) => (x >= 1e6 ? `${+(x / 1e6).toPrecision(2)}M` : x >= 1e4 ? `${+(x / 1e3).toPrecision(2)}k` : number(x));

/** A number as a power of ten where it is small. */
export function power(x) {
  if (x >= 0.05 || x === 0) return tidy(+x.toPrecision(3));
  const e = Math.floor(Math.log10(x) + 1e-9);
  const m = Math.round(x / 10 ** e);
  const up = String(e).replace(/./g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  return `${m === 1 ? "" : `${m}·`}10${up}`;
}

// frame -------------------------------------------------------------------------------------------

/** The width of an element, in pixels, while it changes. */
export function useWidth() {
  const box = useRef(null);
  const [width, set] = useState(0);
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => set(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** A number that changes with the theme, in a component that draws on a canvas. */
export function useTurned() {
  const [turned, turn] = useState(0);
  useEffect(() => {
    const again = () => turn((n) => n + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("softdex-theme", again);
    dark.addEventListener("change", again);
    return () => {
      removeEventListener("softdex-theme", again);
      dark.removeEventListener("change", again);
    };
  }, []);
  return turned;
}

/**
 * A drawing with axes. `draw(area)` makes what is inside, `places` are the positions on the x axis,
 * as shares of its width, that pointer and arrow keys go to, `read(i)` says what is there.
 */
function Frame({ title, legend, x, y, height = 260, places, read, draw, pick, numbers, children }) {
  const [box, width] = useWidth();
  const [at, set] = useState(null);
  const area = { width: Math.max(40, width - SPACE.left - SPACE.right), height: height - SPACE.top - SPACE.bottom };
  const to = { x: (each) => x.at(each) * area.width, y: (each) => (1 - y.at(each)) * area.height };
  const near = (event) => {
    const seen = (event.clientX - event.currentTarget.getBoundingClientRect().left - SPACE.left) / area.width;
    let best = 0;
    for (let i = 1; i < places.length; i += 1) if (Math.abs(places[i] - seen) < Math.abs(places[best] - seen)) best = i;
    return best;
  };
  const keys = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) {
      if (event.key === "Enter" && at !== null) pick?.(at);
      return;
    }
    event.preventDefault();
    set(Math.max(0, Math.min(places.length - 1, (at ?? (step > 0 ? -1 : places.length)) + step)));
  };
  const shown = at !== null && at < places.length ? at : null;
  const wide = x.ticks.filter((_, i) => i % Math.max(1, Math.ceil((x.ticks.length * 46) / area.width)) === 0);
  return html`<figure class="chart" ref=${box}>
    <figcaption><b>${title}</b>${legend}</figcaption>
    ${width > 0 && html`<svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" tabindex="0"
      aria-label=${`${title}. Arrow keys read the values.`} class=${pick ? "picks" : ""}
      onPointerMove=${(event) => set(near(event))} onPointerLeave=${() => set(null)} onBlur=${() => set(null)}
      onClick=${(event) => pick?.(near(event))} onKeyDown=${keys}>
      <g transform=${`translate(${SPACE.left} ${SPACE.top})`}>
        ${y.ticks.map((each) => html`<g key=${each} transform=${`translate(0 ${to.y(each).toFixed(1)})`}>
          <path class="axis" d=${`M0 .5H${area.width}`} /><text x="-8" y="4" text-anchor="end">${y.say(each)}</text></g>`)}
        ${wide.map((each) => html`<g key=${each} transform=${`translate(${to.x(each).toFixed(1)} ${area.height})`}>
          <path class="axis" d="M.5 0V5" /><text y="17" text-anchor="middle">${x.say(each)}</text></g>`)}
        <text class="unit" x=${area.width} y=${area.height + 34} text-anchor="end">${x.label}</text>
        ${y.label && html`<text class="unit" x=${-SPACE.left} y="-13">${y.label}</text>`}
        ${draw({ ...area, ...to, at: shown })}
        ${shown !== null && html`<path class="cursor" d=${`M${(places[shown] * area.width).toFixed(1)} 0V${area.height}`} />`}
      </g>
    </svg>`}
    <p class="read small" aria-live="polite">${shown === null ? html`<span class="soft">${children}</span>` : read(shown)}</p>
    ${numbers && html`<details class="numbers"><summary class="small">Numbers</summary><${Numbers} ...${numbers} /></details>`}
  </figure>`;
}

/** The numbers behind a drawing. */
function Numbers({ head, rows }) {
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Numbers"><table class="small">
    <thead><tr>${head.map((each) => html`<th key=${each} scope="col">${each}</th>`)}</tr></thead>
    <tbody>${rows.map((row, i) => html`<tr key=${i}>${row.map((each, j) => html`<td key=${j}>${each}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** What the colours mean. */
export const Keys = ({ of }) => html`<span class="keys">${of.filter((each) => each.name).map((each) => html`<span key=${each.name} class=${each.style}>
  <i class=${`key ${each.dash ? "dash" : ""}`}></i>${each.name}</span>`)}</span>`;

// lines -------------------------------------------------------------------------------------------

/**
 * Lines: `series` are {name, points: [[x, y], ...], style, dash, dots}; `marks` are {x, y, text, style}
 * that stand out. `x` and `y` are {label, from, to, log, say, ticks}; what is missing fits the points.
 * `index` says that the i-th points of all series belong together, else those nearest in x.
 */
export function Lines({ title, series, marks = [], x, y, height, children, pick, sayX }) {
  const points = series.flatMap((each) => each.points).filter(sound(x, y));
  const [across, up] = [fitted(x, points.map((p) => p[0])), fitted(y, points.map((p) => p[1]))];
  const [sx, sy] = [scale(across), scale(up)];
  const spots = [...new Set(points.map((p) => p[0]))].sort((a, b) => a - b);
  const value = (each, at) => each.points.find((p) => p[0] === at)?.[1];
  const say = sayX ?? ((at) => `${x.label} ${across.say ? across.say(at) : number(at)}`);
  const detail = (v) => (v === undefined ? "–" : (y.exact ?? up.say ?? number)(v));
  const inside = ({ x: px, y: py, at, width }) => html`
    ${series.map((each) => {
      const line = each.points.filter(sound(x, y)).map((p) => `${px(p[0]).toFixed(1)},${py(p[1]).toFixed(1)}`);
      return html`<g key=${each.name} class=${each.style}>
        ${line.length > 1 && html`<polyline class=${`series ${each.dash ? "dash" : ""}`} points=${line.join(" ")} />`}
        ${(each.dots || line.length === 1) && each.points.filter(sound(x, y)).map((p, i) => html`<circle key=${i} class="dot" r="3.5" cx=${px(p[0])} cy=${py(p[1])} />`)}
        ${at !== null && value(each, spots[at]) !== undefined && html`<circle class="dot" r="4" cx=${px(spots[at])} cy=${py(value(each, spots[at]))} />`}
      </g>`;
    })}
    ${marks.map((each) => html`<g key=${each.text} class=${each.style} transform=${`translate(${px(each.x).toFixed(1)} ${py(each.y).toFixed(1)})`}>
      <circle class="ring" r="6.5" /><text class="label" x=${px(each.x) > 0.55 * width ? -11 : 11} y=${each.below ? 18 : -9} text-anchor=${px(each.x) > 0.55 * width ? "end" : "start"}>${each.text}</text></g>`)}`;
  return html`<${Frame} title=${title} legend=${html`<${Keys} of=${series} />`} x=${{ ...sx, label: x.label }} y=${{ ...sy, label: y.label }}
    height=${height} places=${spots.map(sx.at)} draw=${inside} pick=${pick && ((i) => pick(spots[i]))}
    read=${(i) => html`<b>${say(spots[i])}</b>${series.filter((each) => value(each, spots[i]) !== undefined).map((each) => html` <span key=${each.name} class=${`said ${each.style}`}><i class="key"></i>${each.name} <b>${detail(value(each, spots[i]))}</b></span>`)}`}
    numbers=${{ head: [x.label, ...series.map((each) => each.name)], rows: spots.slice(0, 400).map((at) => [say(at), ...series.map((each) => detail(value(each, at)))]) }}>
    ${children}<//>`;
}

const sound = (x, y) => ([a, b]) => Number.isFinite(a) && Number.isFinite(b) && (!x.log || a > 0) && (!y.log || (b > 0 && b >= (y.from ?? 0)));

/** An axis from its lowest to its highest value, with some room above where it is no logarithm. */
function fitted(axis, values) {
  const [low, high] = [Math.min(...values), Math.max(...values)];
  if (!values.length) return { from: axis.log ? 0.1 : 0, to: 1, ...axis };
  if (axis.log) return { from: low, to: high, ...axis };
  const room = axis.tight ? 0 : (high - low || Math.abs(high) || 1) * 0.06;
  return { from: low >= 0 && low < 0.4 * high ? 0 : low - room, to: high + room, ...axis };
}

// columns -----------------------------------------------------------------------------------------

/**
 * Groups of columns: `groups` are {label, said, values}, one value per series {name, style}.
 * `said` says what the group is where there is room for it.
 */
export function Columns({ title, groups, series, x, y, height, children, pick }) {
  const most = Math.max(1e-12, ...groups.flatMap((each) => each.values));
  const sy = scale({ from: 0, to: most * 1.06, say: y.say });
  const place = (i) => (i + 0.5) / groups.length;
  const sx = { at: (i) => place(i), ticks: groups.map((_, i) => i), say: (i) => groups[i].label };
  const detail = y.exact ?? y.say ?? number;
  const inside = ({ width, height: tall, y: py, at }) => {
    const room = width / groups.length;
    const bar = Math.min(26, (room * 0.78) / series.length);
    return groups.map((each, i) => html`<g key=${i} class=${at === null || at === i ? "" : "faint"}>
      ${each.values.map((value, j) => html`<rect key=${j} class=${`fill ${series[j].style}`} x=${((i + 0.5) * room + (j - series.length / 2) * bar + 0.5).toFixed(1)}
        y=${py(value).toFixed(1)} width=${Math.max(1, bar - 1).toFixed(1)} height=${Math.max(0, tall - py(value)).toFixed(1)} />`)}
    </g>`);
  };
  return html`<${Frame} title=${title} legend=${html`<${Keys} of=${series} />`} x=${{ ...sx, label: x.label }} y=${{ ...sy, label: y.label }}
    height=${height} places=${groups.map((_, i) => place(i))} draw=${inside} pick=${pick}
    read=${(i) => html`<b>${groups[i].said}</b>${series.map((each, j) => html` <span key=${each.name} class=${`said ${each.style}`}><i class="key"></i>${each.name} <b>${detail(groups[i].values[j])}</b></span>`)}`}
    numbers=${{ head: [x.label, ...series.map((each) => each.name)], rows: groups.map((each) => [each.said, ...each.values.map(detail)]) }}>
    ${children}<//>`;
}
