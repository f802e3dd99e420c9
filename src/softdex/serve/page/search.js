// One box that finds users and items by key or text, with the keyboard.

import { path, useAsk } from "./api.js";
import { Item, counted, useApp, wanted } from "./parts.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";

/**
 * A box with suggestions. `pick({user} | {item})` is called with the choice.
 *
 * Arrows move, Enter picks, Escape closes. `users` and `items` say what is looked for.
 */
export function Search({ label, pick, users = true, items = true, id, hint }) {
  const { model, facts } = useApp();
  const [text, write] = useState("");
  const [open, show] = useState(false);
  const [at, move] = useState(0);
  const box = useRef(null);
  const q = text.trim();
  const look = (what, limit) => open && q && path(what, { q, limit, model: model.name });
  const people = useAsk(users && look("v1/users", items ? 4 : 9));
  const things = useAsk(items && look("v1/items", users ? 8 : 9));
  const found = !q
    ? []
    : [
        ...(people.data?.rows ?? []).map((row) => ({ user: row.user, row })),
        ...(things.data?.rows ?? []).map((row) => ({ item: row.item, row })),
      ];
  useEffect(() => move(0), [text]);
  const close = () => show(false);
  const take = (choice) => {
    if (!choice) return;
    pick(choice);
    write("");
    close();
  };
  const keys = (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      show(true);
      const step = event.key === "ArrowDown" ? 1 : -1;
      move((at + step + Math.max(1, found.length)) % Math.max(1, found.length));
    } else if (event.key === "Enter") {
      event.preventDefault();
      take(found[at]);
    } else if (event.key === "Escape") {
      if (open && text) close();
      else event.currentTarget.blur();
    }
  };
  const left = (event) => !box.current?.contains(event.relatedTarget) && close();
  const open_ = open && q !== "";
  const busy = people.busy || things.busy;
  return html`<div class="search" ref=${box} onFocusOut=${left}>
    <label class="hidden" for=${id}>${label}</label>
    <input
      id=${id}
      type="search"
      role="combobox"
      autocomplete="off"
      spellcheck=${false}
      placeholder=${hint ?? label}
      aria-expanded=${open_}
      aria-controls=${`${id}-found`}
      aria-autocomplete="list"
      aria-activedescendant=${open_ && found[at] ? `${id}-${at}` : null}
      value=${text}
      onKeyDown=${keys}
      onFocus=${() => show(true)}
      onInput=${(event) => {
        write(event.target.value);
        show(true);
      }}
    />
    <ul
      id=${`${id}-found`}
      role="listbox"
      aria-label=${label}
      aria-busy=${busy}
      hidden=${!open_ || (!found.length && !busy)}
    >
      ${found.map(
        (each, i) =>
          html`<li
            key=${`${each.user === undefined ? "i" : "u"}${i}`}
            id=${`${id}-${i}`}
            role="option"
            aria-selected=${i === at}
            onMouseDown=${(event) => event.preventDefault()}
            onMouseMove=${() => move(i)}
            onClick=${() => take(each)}
          >
            <${Found} each=${each} facts=${facts} />
          </li>`,
      )}
      ${!found.length && busy && html`<li class="soft" role="option" aria-disabled="true">Looking …</li>`}
    </ul>
    ${
      open_ &&
      !busy &&
      !found.length &&
      html`<p class="none soft small" role="status">
        Nothing found: no key starts with this${items ? ", and no title has it" : ""}.
      </p>`
    }
  </div>`;
}

function Found({ each, facts }) {
  const events = html`<span class="soft small">${counted(each.row.events, "events")}</span>`;
  if (each.user !== undefined) {
    return html`<span class="kind">user</span>
      <span class="cut mono">${String(each.user)}</span>${events}`;
  }
  return html`<span class="kind">item</span>
    <${Item} row=${each.row} facts=${facts} shown=${wanted(facts, [facts.category])} />${events}`;
}
