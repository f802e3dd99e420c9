// Map: the items in the plane, those that the model finds similar close together, with the history
// and the list of a user on it.

import { go } from "../address.js";
import { path, useAsk } from "../api.js";
import { useAsked, useRows } from "../asked.js";
import { useWidth } from "../charts.js";
import { Answer, Wrong, count, percent, title, useApp } from "../parts.js";
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact-standalone.js";

const WHOLE = { x: 5000, y: 5000, zoom: 1 };
const GRID = 64; // cells per side in which the nearest item is looked for

function View() {
  const { place, model, facts } = useApp();
  const columns = facts.columns.filter((each) => each.values && each.values.length > 1);
  const column = place.get("column", facts.category ?? "");
  const found = useAsk(path("v1/study/map", { model: model.name, column }));
  return html`<div class="page">
    <h1>Map of the items</h1>
    <p class="lead">Items that ${model.name} finds similar lie close together; directions mean nothing. Numbers are the list of the user, rings
      the history: a list far from every ring is a leap, one among the rings more of the same.</p>
    ${columns.length > 1 && html`<div class="with"><label>Colour <select value=${column} onChange=${(event) => go(place.link({ column: event.target.value }), { replace: true })}>
      ${columns.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}</select></label></div>`}
    <${Answer} of=${found} rows=${12}>
      ${(data) => (data.model === model.name ? html`<${Sky} data=${data} />` : null)}
    <//>
  </div>`;
}

/** The items by cell of a grid, to find the one that is pointed at. */
function useGrid(data) {
  return useMemo(() => {
    const cells = new Map();
    data.x.forEach((x, i) => {
      const cell = Math.floor((x / 10001) * GRID) * GRID + Math.floor((data.y[i] / 10001) * GRID);
      if (!cells.has(cell)) cells.set(cell, []);
      cells.get(cell).push(i);
    });
    return { cells, at: new Map(data.items.map((key, i) => [String(key), i])) };
  }, [data]);
}

function nearest(data, cells, x, y, far) {
  let [best, least] = [null, far * far];
  const of = (each) => Math.floor((each / 10001) * GRID);
  for (let column = of(x - far); column <= of(x + far); column += 1) {
    for (let row = of(y - far); row <= of(y + far); row += 1) {
      for (const i of cells.get(column * GRID + row) ?? []) {
        const gap = (data.x[i] - x) ** 2 + (data.y[i] - y) ** 2;
        if (gap < least) [best, least] = [i, gap];
      }
    }
  }
  return best;
}

function Sky({ data }) {
  const { place, model, facts } = useApp();
  const asked = useAsked(model.name, facts);
  const list = useAsk(asked.body && "v1/recommend", asked.body);
  const { cells, at } = useGrid(data);
  const [over, hover] = useState(null);
  const items = (list.data?.items ?? []).map((each) => each.item);
  const history = asked.history.slice(-200);
  const known = over === null ? [] : [data.items[over]];
  const rows = useRows([...items, ...history, ...known], model.name);
  const name = (key) => title(rows.get(String(key)) ?? { item: key }, facts);
  const spots = (keys) => keys.map((key) => at.get(String(key))).filter((each) => each !== undefined);
  const missing = items.length - spots(items).length;
  const sampled = data.items.length < data.of;
  const said = over === null ? null : rows.get(String(data.items[over]));
  return html`
    <p>${asked.user ? html`The list of <b>${asked.user}</b>. ` : ""}Of the ${data.checked} items nearest to an item, <b>${percent(data.kept)}</b> are among its ${data.around} nearest on this map
      (${percent(data.plane)} on the plane of the two main directions).
      ${sampled && ` It shows ${count(data.items.length)} of ${count(data.of)} items: the most popular, and some of the others.`}
      ${missing > 0 && sampled && ` ${missing} of the list are not on it.`}</p>
    ${list.error && html`<${Wrong} error=${list.error} />`}
    <div class="map">
      <${Canvas} data=${data} cells=${cells} over=${over} hover=${hover} listed=${spots(items)} past=${spots(history)} name=${over === null ? "" : name(data.items[over])}
        pick=${(i) => go(place.link({ item: data.items[i], walk: null }, "similar"))} />
      <div>
        ${data.column && html`<h2 class="first">${data.column}</h2><ul class="colours small">${data.values.map((value, i) => html`<li key=${value} class=${`s${i + 1}`}><i class="key"></i>${value}</li>`)}
          <li class="s0"><i class="key"></i>other</li></ul>
          <p class="soft small">An item with several values has the colour of the rarest of these.</p>`}
        <p class="small read" aria-live="polite">${over === null ? html`<span class="soft">Point at an item; a click shows the similar ones. Drag to move, turn the wheel or press + and − to zoom.</span>`
          : html`<b>${name(data.items[over])}</b>, ${count(data.events[over])} events${said && data.column ? html`<br /><span class="soft">${[said.columns?.[data.column]].flat().join(", ")}</span>` : ""}`}</p>
        ${items.length > 0 && html`<h2>List</h2><ol class="small spots">${items.map((key) => html`<li key=${String(key)}>
          <button type="button" class="plain" onFocus=${() => hover(at.get(String(key)) ?? null)} onMouseEnter=${() => hover(at.get(String(key)) ?? null)} onMouseLeave=${() => hover(null)} onBlur=${() => hover(null)}
            onClick=${() => go(place.link({ item: key, walk: null }, "similar"))}><span class="cut">${name(key)}</span></button></li>`)}</ol>`}
      </div>
    </div>`;
}

/** The points on a canvas; the user's items stand over it. */
function Canvas({ data, cells, over, hover, listed, past, name, pick }) {
  const [box, width] = useWidth();
  const canvas = useRef(null);
  const [eye, look] = useState(WHOLE);
  const [theme, turn] = useState(0);
  const drag = useRef(null);
  const height = Math.round(Math.min(Math.max(360, width * 0.78), 720));
  const tall = useMemo(() => data.y.reduce((most, y) => Math.max(most, Math.abs(y - 5000)), 100), [data]);
  const whole = Math.min(width / 10_400, height / (2 * tall + 400));
  const unit = whole * eye.zoom;
  const to = (i) => [width / 2 + (data.x[i] - eye.x) * unit, height / 2 + (data.y[i] - eye.y) * unit];
  const back = (x, y) => [eye.x + (x - width / 2) / unit, eye.y + (y - height / 2) / unit];
  useEffect(() => {
    const again = () => turn((n) => n + 1);
    const dark = matchMedia("(prefers-color-scheme: dark)");
    addEventListener("softdex-theme", again);
    dark.addEventListener("change", again);
    return () => { removeEventListener("softdex-theme", again); dark.removeEventListener("change", again); };
  }, []);
  useEffect(() => {
    if (!canvas.current || !width) return;
    const sharp = devicePixelRatio || 1;
    [canvas.current.width, canvas.current.height] = [width * sharp, height * sharp];
    const pen = canvas.current.getContext("2d");
    pen.scale(sharp, sharp);
    const inks = colours(canvas.current, data.values.length);
    pen.globalAlpha = data.items.length > 20_000 ? 0.45 : 0.75;
    const size = Math.min(6, Math.max(1.4, Math.sqrt(60_000 / data.items.length)) * eye.zoom ** 0.35);
    for (let ink = inks.length - 1; ink >= 0; ink -= 1) { // others first, so that colours are seen
      pen.fillStyle = inks[ink];
      const value = ink === inks.length - 1 ? -1 : ink;
      for (let i = 0; i < data.x.length; i += 1) {
        if (data.value.length ? data.value[i] !== value : ink) continue;
        const [x, y] = to(i);
        if (x < -4 || y < -4 || x > width + 4 || y > height + 4) continue;
        const wide = size * (data.events[i] > 1000 ? 1.4 : data.events[i] > 100 ? 1.15 : 0.9);
        pen.fillRect(x - wide / 2, y - wide / 2, wide, wide);
      }
    }
  }, [data, width, height, eye, theme]);
  const zoom = (by, x = width / 2, y = height / 2) => look((old) => {
    const next = Math.min(60, Math.max(1, old.zoom * by));
    if (next === 1) return WHOLE;
    const step = whole * old.zoom;
    const [px, py] = [old.x + (x - width / 2) / step, old.y + (y - height / 2) / step];
    const share = old.zoom / next;
    return { x: px + (old.x - px) * share, y: py + (old.y - py) * share, zoom: next };
  });
  const inside = (event) => {
    const frame = event.currentTarget.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const moved = (event) => {
    const [x, y] = inside(event);
    if (drag.current) {
      const [dx, dy] = [x - drag.current.x, y - drag.current.y];
      drag.current.far = drag.current.far || Math.hypot(dx, dy) > 4;
      if (drag.current.far) look({ ...drag.current.eye, x: drag.current.eye.x - dx / unit, y: drag.current.eye.y - dy / unit });
      return;
    }
    const [px, py] = back(x, y);
    hover(nearest(data, cells, px, py, 12 / unit));
  };
  const up = () => {
    const was = drag.current;
    drag.current = null;
    if (was && !was.far && over !== null) pick(over);
  };
  const keys = (event) => {
    const pan = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") look(WHOLE);
    else if (pan) look((old) => ({ ...old, x: old.x + (pan[0] * 60) / unit, y: old.y + (pan[1] * 60) / unit }));
    else return;
    event.preventDefault();
  };
  useEffect(() => { // a wheel's listener must not be passive, else the page scrolls as well
    const wheel = (event) => {
      event.preventDefault();
      const frame = box.current.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - frame.left, event.clientY - frame.top);
    };
    const at = box.current;
    at.addEventListener("wheel", wheel, { passive: false });
    return () => at.removeEventListener("wheel", wheel);
  }, [width, height]);
  const [ox, oy] = over === null ? [0, 0] : to(over);
  return html`<div ref=${box} class="sky" style=${{ height: `${height}px` }} onPointerMove=${moved} onPointerLeave=${() => { drag.current = null; hover(null); }}
    onPointerDown=${(event) => { const [x, y] = inside(event); drag.current = { x, y, eye, far: false }; }} onPointerUp=${up}>
    <canvas ref=${canvas} role="img" tabindex="0" onKeyDown=${keys} style=${{ width: `${width}px`, height: `${height}px` }}
      aria-label="Map of the items. Arrow keys move, plus and minus zoom, zero shows all. The list beside it leads to its items."></canvas>
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} aria-hidden="true">
      ${past.map((i) => { const [x, y] = to(i); return html`<circle key=${`h${i}`} class="past" cx=${x.toFixed(1)} cy=${y.toFixed(1)} r="5" />`; })}
      ${[...listed].map((i, rank) => [i, rank + 1]).reverse().map(([i, rank]) => { const [x, y] = to(i);
        return html`<g key=${`l${i}`} class="in"><circle cx=${x.toFixed(1)} cy=${y.toFixed(1)} r="8" /><text x=${x.toFixed(1)} y=${(y + 3.5).toFixed(1)} text-anchor="middle">${rank}</text></g>`; })}
      ${over !== null && html`<circle class="at" cx=${ox} cy=${oy} r="10" />
        <text class="name" x=${ox + (ox > width * 0.6 ? -15 : 15)} y=${oy + 4} text-anchor=${ox > width * 0.6 ? "end" : "start"}>${name}</text>`}
    </svg>
    <div class="zoom"><button type="button" class="icon" aria-label="Zoom in" onClick=${() => zoom(1.5)}>+</button>
      <button type="button" class="icon" aria-label="Zoom out" onClick=${() => zoom(1 / 1.5)}>−</button>
      <button type="button" class="icon" aria-label="Show all" onClick=${() => look(WHOLE)}>○</button></div>
  </div>`;
}

/** The colours of the values and of the others, as the page has them now. */
function colours(element, count) {
  const probe = document.createElement("i");
  element.parentElement.append(probe);
  const of = (name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const found = [...Array.from({ length: count }, (_, i) => of(`--s${i + 1}`)), of("--edge")];
  probe.remove();
  return found;
}

const when = ({ facts }) => (facts.product || facts.tree || facts.index === "flat" ? "" : "This model does not know which items are similar.");

export const view = { name: "map", title: "Map", View, when };
