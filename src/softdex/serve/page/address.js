// The address holds the state: #/view?user=...&k=20. It can be shared, and restores what was seen.

import { useEffect, useState } from "./vendor/htm-preact-standalone.js";

// what goes along from view to view; everything else belongs to one view
const COMMON = [
  "model",
  "other",
  "user",
  "add",
  "drop",
  "k",
  "where",
  "columns",
  "mode",
  "temperature",
  "seed",
];

/** A place of the page: a view, and words by name, each with its values. */
export class Place {
  constructor(view, words) {
    this.view = view;
    this.words = words;
  }

  get(name, otherwise = "") {
    return this.words.get(name) ?? otherwise;
  }

  all(name) {
    return this.words.getAll(name);
  }

  number(name, otherwise) {
    const found = Number.parseFloat(this.get(name, "x"));
    return Number.isFinite(found) ? found : otherwise;
  }

  /** The address with some words changed: null or [] removes one, a list gives several values. */
  link(change = {}, view = this.view) {
    const words = new URLSearchParams();
    for (const [name, value] of this.words) {
      const stays = view === this.view || COMMON.includes(name);
      if (stays && !(name in change)) words.append(name, value);
    }
    for (const [name, value] of Object.entries(change)) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== null && each !== undefined && each !== "") words.append(name, each);
      }
    }
    const text = words.toString();
    return `#/${view}${text ? `?${text}` : ""}`;
  }
}

/** Read the address. */
export function here() {
  const [view, words] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return new Place(view || "lists", new URLSearchParams(words ?? ""));
}

/** Go to an address; `replace` leaves no step back. */
export function go(link, { replace = false } = {}) {
  if (link === location.hash) return;
  if (replace) history.replaceState(null, "", link);
  else history.pushState(null, "", link);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** The place that the address names, in a component. */
export function usePlace() {
  const [place, set] = useState(here);
  useEffect(() => {
    const moved = () => set(here());
    addEventListener("hashchange", moved);
    addEventListener("popstate", moved);
    return () => {
      removeEventListener("hashchange", moved);
      removeEventListener("popstate", moved);
    };
  }, []);
  return place;
}
