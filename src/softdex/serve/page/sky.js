// The drawing of the map: points on a canvas, with a user's items over it; it is moved and zoomed.

import { useTurned, useWidth } from "./charts.js";
import { html, useEffect, useMemo, useRef, useState } from "./vendor/htm-preact-standalone.js";

const SIDE = 10_000; // coordinates are from 0 to this
const WHOLE = { x: SIDE / 2, y: SIDE / 2, zoom: 1 };
const MOST = 60; // zoom
const GRID = 64; // cells per side in which the nearest item is looked for

// the nearest item --------------------------------------------------------------------------------

const cellOf = (each) => Math.floor((each / (SIDE + 1)) * GRID);

/** The items by cell of a grid, to find the one that is pointed at, and their places by key. */
export function useGrid(data) {
  return useMemo(() => {
    const cells = new Map();
    data.x.forEach((x, i) => {
      const cell = cellOf(x) * GRID + cellOf(data.y[i]);
      if (!cells.has(cell)) cells.set(cell, []);
      cells.get(cell).push(i);
    });
    return { cells, at: new Map(data.items.map((key, i) => [String(key), i])) };
  }, [data]);
}

function nearest(data, cells, x, y, far) {
  let [best, least] = [null, far * far];
  for (let column = cellOf(x - far); column <= cellOf(x + far); column += 1) {
    for (let row = cellOf(y - far); row <= cellOf(y + far); row += 1) {
      for (const i of cells.get(column * GRID + row) ?? []) {
        const gap = (data.x[i] - x) ** 2 + (data.y[i] - y) ** 2;
        if (gap < least) [best, least] = [i, gap];
      }
    }
  }
  return best;
}

// the eye -----------------------------------------------------------------------------------------

/** Where one looks: {eye, look, unit, to, back, zoom, size}; `to` and `back` are pixels and places. */
function useEye(data, width) {
  const [eye, look] = useState(WHOLE);
  const height = Math.round(Math.min(Math.max(360, width * 0.78), 720));
  const tall = useMemo(
    () => data.y.reduce((most, y) => Math.max(most, Math.abs(y - WHOLE.y)), 100),
    [data],
  );
  const whole = Math.min(width / (SIDE + 400), height / (2 * tall + 400));
  const unit = whole * eye.zoom;
  const to = (i) => [
    width / 2 + (data.x[i] - eye.x) * unit,
    height / 2 + (data.y[i] - eye.y) * unit,
  ];
  const back = (x, y) => [eye.x + (x - width / 2) / unit, eye.y + (y - height / 2) / unit];
  const zoom = (by, x = width / 2, y = height / 2) =>
    look((old) => {
      const next = Math.min(MOST, Math.max(1, old.zoom * by));
      if (next === 1) return WHOLE;
      const step = whole * old.zoom;
      const [px, py] = [old.x + (x - width / 2) / step, old.y + (y - height / 2) / step];
      const share = old.zoom / next; // what is under the pointer stays there
      return { x: px + (old.x - px) * share, y: py + (old.y - py) * share, zoom: next };
    });
  return { eye, look, unit, to, back, zoom, height };
}

/** Zoom by the wheel; its listener must not be passive, else the page scrolls as well. */
function useWheel(box, zoom, sizes) {
  useEffect(() => {
    const at = box.current;
    const wheel = (event) => {
      event.preventDefault();
      const frame = at.getBoundingClientRect();
      zoom(event.deltaY < 0 ? 1.25 : 0.8, event.clientX - frame.left, event.clientY - frame.top);
    };
    at.addEventListener("wheel", wheel, { passive: false });
    return () => at.removeEventListener("wheel", wheel);
  }, sizes);
}

// drawing -----------------------------------------------------------------------------------------

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

/** Draw the points: others first, so that colours are seen. */
function paint(canvas, data, { eye, to, height }, width) {
  const sharp = devicePixelRatio || 1;
  [canvas.width, canvas.height] = [width * sharp, height * sharp];
  const pen = canvas.getContext("2d");
  pen.scale(sharp, sharp);
  pen.globalAlpha = data.items.length > 20_000 ? 0.45 : 0.75;
  const inks = colours(canvas, data.values.length);
  const size = Math.min(6, Math.max(1.4, Math.sqrt(60_000 / data.items.length)) * eye.zoom ** 0.35);
  for (let ink = inks.length - 1; ink >= 0; ink -= 1) {
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
}

/** The history as rings, the list as numbers, and the item that is pointed at. */
function Marks({ width, height, to, past, listed, over, name }) {
  const at = (i) => to(i).map((each) => each.toFixed(1));
  const ring = (i) => {
    const [x, y] = at(i);
    return html`<circle key=${`h${i}`} class="past" cx=${x} cy=${y} r="5" />`;
  };
  const number = ([i, rank]) => {
    const [x, y] = at(i);
    return html`<g key=${`l${i}`} class="in">
      <circle cx=${x} cy=${y} r="8" />
      <text x=${x} y=${Number(y) + 3.5} text-anchor="middle">${rank}</text>
    </g>`;
  };
  const pointed = (i) => {
    const [x, y] = to(i);
    const right = x > width * 0.6;
    return html`<circle class="at" cx=${x} cy=${y} r="10" />
      <text
        class="name"
        x=${x + (right ? -15 : 15)}
        y=${y + 4}
        text-anchor=${right ? "end" : "start"}
      >
        ${name}
      </text>`;
  };
  const ranked = listed.map((i, rank) => [i, rank + 1]).reverse(); // the best over the others
  return html`<svg
    width=${width}
    height=${height}
    viewBox=${`0 0 ${width} ${height}`}
    aria-hidden="true"
  >
    ${past.map(ring)} ${ranked.map(number)} ${over !== null && pointed(over)}
  </svg>`;
}

/**
 * The map. `past` and `listed` are the items of the history and of the list, `over` the one that is
 * pointed at: `hover` is called with another or null, `pick` with one that is clicked.
 */
export function Sky({ data, cells, over, hover, listed, past, name, pick }) {
  const [box, width] = useWidth();
  const canvas = useRef(null);
  const drag = useRef(null);
  const turned = useTurned();
  const view = useEye(data, width);
  const { eye, look, unit, back, zoom, height } = view;
  useWheel(box, zoom, [width, height]);
  useEffect(() => {
    if (canvas.current && width) paint(canvas.current, data, view, width);
  }, [data, width, height, eye, turned]);
  const inside = (event) => {
    const frame = event.currentTarget.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  };
  const down = (event) => {
    const [x, y] = inside(event);
    drag.current = { x, y, eye, far: false };
  };
  const moved = (event) => {
    const [x, y] = inside(event);
    const from = drag.current;
    if (!from) {
      const [px, py] = back(x, y);
      hover(nearest(data, cells, px, py, 12 / unit));
      return;
    }
    const [dx, dy] = [x - from.x, y - from.y];
    from.far = from.far || Math.hypot(dx, dy) > 4;
    if (from.far) look({ ...from.eye, x: from.eye.x - dx / unit, y: from.eye.y - dy / unit });
  };
  const up = () => {
    const was = drag.current;
    drag.current = null;
    if (was && !was.far && over !== null) pick(over);
  };
  const left = () => {
    drag.current = null;
    hover(null);
  };
  const keys = (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const pan = moves[event.key]?.map((each) => (60 * each) / unit);
    if (event.key === "+" || event.key === "=") zoom(1.5);
    else if (event.key === "-") zoom(1 / 1.5);
    else if (event.key === "0") look(WHOLE);
    else if (pan) look((old) => ({ ...old, x: old.x + pan[0], y: old.y + pan[1] }));
    else return;
    event.preventDefault();
  };
  const button = (label, sign, press) =>
    html`<button type="button" class="icon" aria-label=${label} onClick=${press}>${sign}</button>`;
  return html`<div
    ref=${box}
    class="sky"
    style=${{ height: `${height}px` }}
    onPointerMove=${moved}
    onPointerLeave=${left}
    onPointerDown=${down}
    onPointerUp=${up}
  >
    <canvas
      ref=${canvas}
      role="img"
      tabindex="0"
      onKeyDown=${keys}
      style=${{ width: `${width}px`, height: `${height}px` }}
      aria-label="Map of the items. Arrow keys move, plus and minus zoom, zero shows all. The list beside it leads to its items."
    ></canvas>
    <${Marks} width=${width} height=${height} to=${view.to} past=${past} listed=${listed} over=${over} name=${name} />
    <div class="zoom" onPointerDown=${(event) => event.stopPropagation()}>
      ${button("Zoom in", "+", () => zoom(1.5))} ${button("Zoom out", "−", () => zoom(1 / 1.5))}
      ${button("Show all", "○", () => look(WHOLE))}
    </div>
  </div>`;
}
