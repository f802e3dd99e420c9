// The temperature that divides the scores, as a slider.

import { number } from "./parts.js";
import { html, useEffect, useState } from "./vendor/htm-preact-standalone.js";

/**
 * Steps of a quarter of a power of two around `base`. `put` is called with the value as text, or
 * with null for `base`: at every step if `live`, else when the slider is let go.
 */
export function Temperature({ value, base, put, live = false }) {
  const [held, hold] = useState(null);
  useEffect(() => hold(null), [value]);
  const power = held ?? Math.round(4 * Math.log2(value / base)) / 4;
  const chosen = (event) => {
    const to = Number(event.target.value);
    put(to ? (base * 2 ** to).toPrecision(3) : null);
  };
  const moved = (event) => {
    hold(Number(event.target.value));
    if (live) chosen(event);
  };
  const said = number(base * 2 ** power);
  return html`<label
    >Temperature
    <input
      type="range"
      min="-4"
      max="4"
      step="0.25"
      value=${power}
      aria-valuetext=${said}
      onInput=${moved}
      onChange=${chosen}
    />
    <output><b>${said}</b></output>
  </label>`;
}
