// What views of a study share: the cut-off, and a second model beside the first.

import { path, useAsk } from "./api.js";
import { go } from "./address.js";
import { useApp } from "./parts.js";
import { html } from "./vendor/htm-preact-standalone.js";

/** The second model that the address names, or "" for none. */
export function useOther() {
  const { place, models, model } = useApp();
  const other = place.get("other");
  return other !== model.name && models.some((each) => each.name === other) ? other : "";
}

/** The answers of both models to a request: `at(name)` is the path for a model. */
export function useBoth(at) {
  const { model } = useApp();
  const other = useOther();
  const mine = (answer, name) => (answer.data && answer.data.model === name ? answer.data : undefined);
  const [one, two] = [useAsk(at(model.name)), useAsk(other && at(other))];
  return { one, two, other, data: mine(one, model.name), theirs: mine(two, other) };
}

/** A row of choices: cut-offs or anything else, and the second model. */
export function With({ children }) {
  const { place, models, model } = useApp();
  const others = models.filter((each) => each.name !== model.name);
  const other = useOther();
  return html`<div class="with">
    ${children}
    ${others.length > 0 && html`<label>Beside
      <select value=${other} onChange=${(event) => go(place.link({ other: event.target.value || null }), { replace: true })}>
        <option value="">no other model</option>
        ${others.map((each) => html`<option key=${each.name} value=${each.name}>${each.name}</option>`)}
      </select>
    </label>`}
  </div>`;
}

/** Choices as links that change one word of the address. */
export function Choices({ label, word, of, chosen }) {
  const { place } = useApp();
  return html`<span>${label}</span><nav class="choices" aria-label=${label}>
    ${of.map(([value, text]) => html`<a key=${value} href=${place.link({ [word]: value })} aria-current=${String(value) === String(chosen) ? "true" : null}>${text ?? value}</a>`)}
  </nav>`;
}

/** The length of the lists of the address, where the study has it. */
export function useCutoff(known = [10, 20, 50, 100]) {
  const k = useApp().place.number("k", 20);
  return known.includes(k) ? k : known.includes(20) ? 20 : known[0];
}

export { path };
