// Theme, token and help: what stands around the views.

import { refresh, token } from "./api.js";
import { html, useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";

// theme -------------------------------------------------------------------------------------------

const THEMES = { "": "as the system", light: "light", dark: "dark" };
const SIGNS = { "": "◐", light: "○", dark: "●" };

/** A switch between the system's theme, light and dark. */
export function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme ?? "");
  const names = Object.keys(THEMES);
  const next = names[(names.indexOf(theme) + 1) % names.length];
  const turn = () => {
    document.documentElement.dataset.theme = next;
    if (next) localStorage.setItem("softdex-theme", next);
    else localStorage.removeItem("softdex-theme");
    set(next);
    dispatchEvent(new Event("softdex-theme")); // drawings on a canvas take their colours again
  };
  useKey("t", turn);
  const said = `Theme: ${THEMES[theme]}. Change to ${THEMES[next]}.`;
  return html`<button type="button" class="icon" onClick=${turn} aria-label=${said} title=${said}>
    ${SIGNS[theme]}
  </button>`;
}

// keys --------------------------------------------------------------------------------------------

const typing = (target) => target.closest?.("input, select, textarea, [contenteditable]");

/** Call a function when a key is pressed while nothing is typed into. */
export function useKey(key, work) {
  const latest = useRef(work);
  latest.current = work;
  useEffect(() => {
    const pressed = (event) => {
      if (event.key !== key || event.ctrlKey || event.metaKey || event.altKey) return;
      if (typing(event.target) || document.querySelector("dialog[open]")) return;
      event.preventDefault();
      latest.current(event);
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, [key]);
}

const KEYS = [
  ["/", "find a user or an item"],
  ["r  h  c", "a user: random, hard, cold"],
  ["j  k", "next and previous item of the list"],
  ["Enter", "why the item is in the list"],
  ["s", "items similar to it"],
  ["Esc", "close"],
  ["t", "theme"],
  ["?", "this help"],
];

/** The keys, in a dialog that ? opens. */
export function Help() {
  const dialog = useRef(null);
  useKey("?", () => dialog.current.showModal());
  useKey("/", () => document.getElementById("search")?.focus());
  return html`<dialog ref=${dialog} class="card" aria-labelledby="help-title">
    <h2 id="help-title">Keys</h2>
    <table>
      <tbody>
        ${KEYS.map(
          ([keys, what]) =>
            html`<tr key=${keys}>
              <td>${keys.split("  ").map((key) => html`<kbd key=${key}>${key}</kbd> `)}</td>
              <td class="words">${what}</td>
            </tr>`,
        )}
      </tbody>
    </table>
    <form method="dialog"><button>Close</button></form>
  </dialog>`;
}

// token -------------------------------------------------------------------------------------------

/** Asks for a token when the server wants one; it is kept in this tab only. */
export function Token() {
  const dialog = useRef(null);
  const [wrong, set] = useState(false);
  useEffect(() => {
    const tell = () => {
      set(token.get() !== "");
      if (!dialog.current.open) dialog.current.showModal();
    };
    token.wanted.add(tell);
    return () => token.wanted.delete(tell);
  }, []);
  const save = (event) => {
    token.set(new FormData(event.target).get("token").trim());
    event.target.reset();
    refresh();
  };
  return html`<dialog ref=${dialog} class="card" aria-labelledby="token-title">
    <h2 id="token-title">This server wants a token</h2>
    <p>
      ${wrong ? "The token is not known." : "A read token of the file that it was started with."} It
      is kept in this tab only.
    </p>
    <form method="dialog" onSubmit=${save}>
      <label for="token">Token</label>
      <input id="token" name="token" type="password" autocomplete="off" required />
      <button>Use it</button>
    </form>
  </dialog>`;
}
