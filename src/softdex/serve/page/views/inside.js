// Inside the index: the beam through the levels of a tree, or the cells of a multi-index.

import { go } from "../address.js";
import { useAsk } from "../api.js";
import { clean, useAsked, useRows } from "../asked.js";
import { share, short, useTurned, useWidth } from "../charts.js";
import { Answer, Empty, Spots, count, counted, title, useApp } from "../parts.js";
import { html, useEffect, useRef, useState } from "../vendor/htm-preact-standalone.js";
import { Choices, useCutoff } from "../with.js";

function View() {
  const { place, model, facts } = useApp();
  const asked = useAsked(model.name, facts);
  const k = useCutoff();
  const ready = asked.body !== undefined;
  const effort = Number.parseFloat(place.get("effort"));
  const found = useAsk(ready && "v1/study/inside", clean({ ...asked.who, k, effort: facts.tree || !(effort > 0) ? undefined : effort, model: model.name }));
  return html`<div class="page">
    <h1>Inside the index <span class="soft">for ${asked.user || "a new user"}</span></h1>
    <p class="lead">${facts.tree
      ? "From the top down: on every level the search scores the children of the nodes kept above, keeps the best, and goes on with them. At the bottom a node is an item."
      : "The catalogue as a table of cells, one row and one column per codeword, the best for this user first. A search opens cells from the upper left corner on until it has looked at enough items."}</p>
    ${!ready && html`<${Empty}>Find a user above. <a href=${place.link({}, "users")}>All users</a><//>`}
    ${ready && html`<${Answer} of=${found} rows=${12}>
      ${(data) => (data.model !== model.name ? null : data.kind === "tree" ? html`<${Beam} data=${data} />` : html`<${Cells} data=${data} asked=${asked} k=${k} />`)}
    <//>`}
  </div>`;
}

// the beam of a tree ------------------------------------------------------------------------------

const [BOX, GAP, MARGIN, LEAST] = [44, 46, 128, 860];

function Beam({ data }) {
  const [box, wide] = useWidth();
  const [lit, light] = useState(0); // rank of an item of the list whose path stands out
  const [over, hover] = useState(null);
  const width = Math.max(LEAST, wide);
  const area = width - MARGIN - 8;
  const tall = data.levels.length * (BOX + GAP) - GAP + 8;
  const top = (i) => 4 + i * (BOX + GAP);
  const spot = (node) => MARGIN + node.x * area;
  const [scored, all] = [data.levels.reduce((sum, each) => sum + each.scored, 0), data.levels.reduce((sum, each) => sum + each.size, 0)];
  const room = data.levels.map((level) => Math.min(132, (0.8 * area) / Math.max(1, level.nodes.filter((node) => node.kind === "path").length) - 4));
  const half = (node) => (node.kind === "path" ? BOX / 2 : 5);
  const onWay = (node) => lit > 0 && node.leads.includes(lit);
  const edges = data.levels.slice(1).flatMap((level, i) => {
    const above = new Map(data.levels[i].nodes.map((node) => [node.number, node]));
    return level.nodes.filter((node) => above.has(node.parent)).map((node) => ({ node, up: above.get(node.parent), i: i + 1 }));
  });
  const order = (a, b) => (a.node.kind === "path") - (b.node.kind === "path") || onWay(a.node) - onWay(b.node);
  return html`
    <p>The search scores <b>${count(scored)}</b> of ${count(all)} nodes (${share(scored / all)}) with a beam of ${short(data.effort)}${data.lost.length
      ? html`, and loses <b>${counted(data.lost.length, "items")}</b> of the exact list, because a node above was cut.` : ", and loses nothing of the exact list."}
      ${data.named && html` A node is named by its most distinctive value of ${data.named}.`}</p>
    <div class="with"><${Steps} items=${data.items} lit=${lit} light=${light} /></div>
    <div ref=${box} class="scroll" tabindex="0" role="region" aria-label="The levels of the search">
      ${wide > 0 && html`<svg class="beam" width=${width} height=${tall} viewBox=${`0 0 ${width} ${tall}`} role="img" aria-label=${`Beam search through ${data.levels.length} levels`}>
        ${edges.sort(order).map(({ node, up, i }) => {
          const [x1, y1, x2, y2] = [spot(up), top(i - 1) + BOX / 2 + half(up), spot(node), top(i) + BOX / 2 - half(node)];
          const mid = (y1 + y2) / 2;
          return html`<path key=${`${i} ${node.number}`} class=${`edge ${node.kind} ${onWay(node) ? "lit" : ""}`} d=${`M${x1.toFixed(1)} ${y1}C${x1.toFixed(1)} ${mid} ${x2.toFixed(1)} ${mid} ${x2.toFixed(1)} ${y2}`} />`;
        })}
        ${data.levels.map((level, i) => html`<g key=${level.level} transform=${`translate(0 ${top(i)})`}>
          <text class="label" y="14">${i === data.levels.length - 1 ? "Items" : `Level ${level.level}`}</text>
          <text y="28">${count(level.scored)} of ${count(level.size)} scored</text>
          <text y="41">${count(level.kept)} ${i === data.levels.length - 1 ? "listed" : "kept"}</text>
          ${level.nodes.map((node) => html`<${Node} key=${node.number} node=${node} x=${spot(node)} room=${room[i]} lit=${onWay(node)} over=${hover} pick=${() => node.leads.length && light(node.leads[0] === lit ? 0 : node.leads[0])} />`)}
        </g>`)}
      </svg>`}
    </div>
    <p class="read note-of" aria-live="polite">${over ? over.note.split("\n").map((line, i) => html`<span key=${i}>${line}</span>`) : html`<span class="soft">
      <span class="keys"><span class="s1"><i class="key"></i>leads to the list</span><span class="s0"><i class="key"></i>kept, leads elsewhere</span><span class="s8"><i class="key"></i>would have led to an item that is lost</span></span>${" "}
      The stronger the colour, the better its score within the level. Point at a node for what is below it.</span>`}</p>
    ${data.lost.length > 0 && html`<h2>What the beam lost</h2><ul>${data.lost.map((each) => html`<li key=${String(each.item)}><b>${each.title}</b>, ${each.exact}. of the exact list, cut on level ${each.level}</li>`)}</ul>`}`;
}

/** The items of the list; one can be chosen, and its path stands out. */
function Steps({ items, lit, light }) {
  return html`<label>Path to
    <select value=${String(lit)} onChange=${(event) => light(Number(event.target.value))}>
      <option value="0">every item of the list</option>
      ${items.map((each) => html`<option key=${String(each.item)} value=${each.rank}>${each.rank}. ${each.title}</option>`)}
    </select></label>`;
}

function Node({ node, x, room, lit, over, pick }) {
  const events = { onPointerEnter: () => over(node), onPointerLeave: () => over(null), onClick: pick };
  if (node.kind !== "path") return html`<circle class=${`node ${node.kind}`} cx=${x.toFixed(1)} cy=${BOX / 2} r=${node.kind === "cut" ? 3.5 : 5} ...${events} />`;
  const wide = Math.max(10, room);
  const fits = (text, size = 6.1) => (text.length * size > wide - 6 ? `${text.slice(0, Math.max(0, Math.floor((wide - 6) / size) - 1))}…` : text);
  return html`<g class=${`node path ${lit ? "lit" : ""}`} ...${events}>
    <rect x=${(x - wide / 2).toFixed(1)} y="0" width=${wide.toFixed(1)} height=${BOX} rx="4" style=${{ fillOpacity: 0.12 + 0.5 * node.shade }} />
    ${wide > 24 && html`<text class="label" x=${x.toFixed(1)} y="18" text-anchor="middle">${fits(node.name, 6.6)}</text>
      <text x=${x.toFixed(1)} y="33" text-anchor="middle">${fits(node.leads.slice(0, 4).map((each) => `#${each}`).join(" ") + (node.leads.length > 4 ? " …" : ""))}</text>`}
  </g>`;
}

// the cells of a multi-index ----------------------------------------------------------------------

const SHOW = { mass: "proposal of the index", softmax: "softmax", cells: "number of items" };

function Cells({ data, asked, k }) {
  const { place, model, facts } = useApp();
  const what = SHOW[place.get("show")] ? place.get("show") : "mass";
  const keys = [...data.listed, ...data.history].map(([key]) => key);
  const rows = useRows(keys.slice(0, 300), model.name);
  const [over, hover] = useState(null);
  const name = (key) => title(rows.get(String(key)) ?? { item: key }, facts);
  const total = data.cells.reduce((sum, each) => sum + each, 0);
  const inside = (of) => of.reduce((sum, each, i) => sum + (data.cells[i] ? each * (data.opened[i] / data.cells[i]) : 0), 0);
  const put = (change) => go(place.link(change), { replace: true });
  return html`
    <p>${data.serves ? `${model.name} serves from this index. ` : `${model.name} scores every item; this index over its vectors could serve it. `}
      The search looks at <b>${count(data.looked)} of ${count(total)} items</b> (${share(data.looked / total)}), in the coloured cells. They hold <b>${share(inside(data.softmax))}</b> of this user's softmax.</p>
    <div class="with"><${Choices} label="Colour" word="show" of=${Object.entries(SHOW)} chosen=${what} />
      <label>Items looked at <select value=${place.get("effort") || ""} onChange=${(event) => put({ effort: event.target.value || null })}>
        <option value="">${data.serves ? "as it serves" : "for 95 % of the exact list"}</option>
        ${efforts(total, k).map((each) => html`<option key=${each} value=${each}>${count(each)}</option>`)}
      </select></label></div>
    <div class="heat">
      <${Heat} data=${data} what=${what} hover=${hover} over=${over} />
      <div>
        <p class="read" aria-live="polite">${over === null ? html`<span class="soft">Coloured cells are looked at, grey ones are not; the stronger, the more is in them. Numbers are the list, rings the history. Point at a cell, or choose an item.</span>`
          : html`<b>${share(data.mass[over])}</b> of the proposal, <b>${share(data.softmax[over])}</b> of the softmax, <b>${counted(data.cells[over], "items")}</b>${data.opened[over] ? ", looked at" : ", not looked at"}`}</p>
        <${Spots} items=${data.listed} name=${name} hover=${hover} pick=${(item) => go(place.link({ item, walk: null }, "similar"))} />
      </div>
    </div>`;
}

const efforts = (total, k) => Array.from({ length: 40 }, (_, i) => k * 2 ** i).filter((each) => each < total);

/** The cells on a canvas, with the list and the history over it. */
function Heat({ data, what, over, hover }) {
  const [box, width] = useWidth();
  const canvas = useRef(null);
  const theme = useTurned();
  const size = Math.max(0, Math.min(width, 620));
  const { side } = data;
  useEffect(() => {
    if (!canvas.current || !size) return;
    const sharp = devicePixelRatio || 1;
    canvas.current.width = canvas.current.height = size * sharp;
    const pen = canvas.current.getContext("2d");
    pen.scale(sharp, sharp);
    const look = getComputedStyle(canvas.current);
    const inks = [look.outlineColor, look.color]; // of cells that are left alone, and of those looked at
    const most = Math.max(1e-12, ...data[what]);
    const low = Math.log(most * 1e-4);
    data[what].forEach((value, i) => {
      const strength = what === "cells" ? value / most : value > 0 ? (Math.log(value) - low) / (Math.log(most) - low) : 0;
      if (strength <= 0) return;
      pen.globalAlpha = Math.max(0.03, strength);
      pen.fillStyle = inks[data.opened[i] > data.cells[i] / 2 ? 1 : 0];
      const step = size / side;
      pen.fillRect((i % side) * step, Math.floor(i / side) * step, step - (step > 6 ? 1 : 0), step - (step > 6 ? 1 : 0));
    });
  }, [data, what, size, theme]);
  const step = size / side;
  const middle = (cell) => [((cell % side) + 0.5) * step, (Math.floor(cell / side) + 0.5) * step];
  const at = (event) => {
    const frame = event.currentTarget.getBoundingClientRect();
    const [column, row] = [event.clientX - frame.left, event.clientY - frame.top].map((each) => Math.min(side - 1, Math.max(0, Math.floor(each / step))));
    hover(row * side + column);
  };
  const keys = (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -side, ArrowDown: side }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const next = over === null ? 0 : over + move;
    if (next >= 0 && next < side * side) hover(next);
  };
  const ranks = new Map();
  data.listed.forEach(([, cell], i) => ranks.set(cell, [...(ranks.get(cell) ?? []), i + 1]));
  return html`<div ref=${box} class="cells" aria-label="Cells. Arrow keys read them." role="img" tabindex="0"
    style=${{ height: `${size}px` }} onPointerMove=${at} onPointerLeave=${() => hover(null)} onKeyDown=${keys} onBlur=${() => hover(null)}>
    <canvas ref=${canvas} style=${{ width: `${size}px`, height: `${size}px` }}></canvas>
    <svg width=${size} height=${size} viewBox=${`0 0 ${size} ${size}`} aria-hidden="true">
      ${data.history.slice(0, 200).map(([key, cell]) => { const [x, y] = middle(cell); return html`<circle key=${`h${key}`} class="past" cx=${x} cy=${y} r="4.5" />`; })}
      ${[...ranks].map(([cell, found]) => { const [x, y] = middle(cell);
        return html`<g key=${cell}><circle class="in" cx=${x} cy=${y} r="8" /><text x=${x} y=${y + 3.5} text-anchor="middle">${found[0]}${found.length > 1 ? "+" : ""}</text></g>`; })}
      ${over !== null && html`<rect class="at" x=${(over % side) * step} y=${Math.floor(over / side) * step} width=${step} height=${step} />`}
    </svg>
  </div>`;
}

const when = ({ facts }) => (facts.product || facts.tree ? "" : "This model has no index to look into: it scores every item by counts.");

export const view = { name: "inside", title: "Inside", View, when, live: true };
