// What is asked of a model: the user and history of the address, with its changes, as a request.

import { ask, path, useAsk } from "./api.js";
import { go } from "./address.js";
import { useApp, wanted } from "./parts.js";
import { useEffect, useState } from "./vendor/htm-preact-standalone.js";

export const K = 20;

/** Conditions column:value of the address as the words of a request, in the types of the columns. */
export function where(place, facts) {
  const found = {};
  for (const each of place.all("where")) {
    const [name, value] = split(each, facts);
    (found[name] ??= []).push(
      typed(
        value,
        facts.columns.find((column) => column.name === name),
      ),
    );
  }
  return Object.keys(found).length ? found : undefined;
}

/** A condition as [column, value]; names of columns may contain colons. */
export function split(text, facts) {
  const named = facts.columns
    .map((each) => each.name)
    .filter((name) => text.startsWith(`${name}:`));
  const name = named.sort((a, b) => b.length - a.length)[0] ?? text.split(":")[0];
  return [name, text.slice(name.length + 1)];
}

function typed(value, column) {
  const known = column?.values?.find(([each]) => String(each) === value);
  if (known) return known[0];
  return column?.kind === "number" ? Number(value) : value;
}

/**
 * The user of the address and what is asked for: {user, history, base, add, drop, live, held, who,
 * body, ready}. `base` is the history before changes, `who` the fields that name user and history,
 * `body` the whole request for a list; it is undefined while there is nobody to ask about.
 */
export function useAsked(name, facts) {
  const { place } = useApp();
  const user = facts ? place.get("user") : "";
  const at = encodeURIComponent(user);
  const known = useAsk(user && path(`v1/users/${at}`, { model: name }));
  const held = useAsk(user && facts?.holdout && path(`v1/study/users/${at}`, { model: name }));
  const measured = useAsk(
    held.data?.targets.length > 0 && path(`v1/study/users/${at}`, { metrics: true, model: name }),
  );
  const mine = (answer) =>
    answer.data && String(answer.data.user) === user ? answer.data : undefined;
  const [stored, study, marks] = [mine(known), mine(held), mine(measured)];
  const live = stored?.live ?? [];
  const ask = live.length ? {} : (study?.ask ?? {});
  const base = ask.history ?? [...(stored?.history ?? []), ...live];
  const add = place.all("add");
  const drop = place.all("drop").filter((key) => base.some((each) => String(each) === key));
  const changed = facts?.reads_history && (add.length > 0 || drop.length > 0);
  const history = changed ? [...base.filter((each) => !drop.includes(String(each))), ...add] : base;
  const who = {};
  if (user) who.user = user;
  if (changed) who.history = history;
  else if (ask.history) who.history = ask.history;
  else if (!user && add.length) who.history = add;
  const ready =
    facts && ((user && (!changed || stored !== undefined)) || who.history !== undefined);
  const sample = place.get("mode") === "sample";
  const body = ready
    ? clean({
        ...who,
        k: place.number("k", K),
        where: where(place, facts),
        columns: wanted(facts, place.all("columns")),
        deny: ask.deny,
        exclude_seen: place.get("seen") === "with" ? false : undefined,
        mode: sample ? "sample" : undefined,
        temperature: sample ? place.number("temperature", undefined) : undefined,
        seed: sample ? place.number("seed", 1) : undefined,
        model: name,
      })
    : undefined;
  const start = study && !live.length ? ask.history?.length - (stored?.history.length ?? 0) : 0;
  return {
    user,
    history,
    base,
    add,
    drop,
    changed,
    live,
    later: start || 0,
    known,
    held,
    study,
    marks,
    who,
    body,
  };
}

/** Whether nobody is asked about yet, and whether a user is being looked for: always the same. */
export function useNobody() {
  const { place, model } = useApp();
  const [without, found] = useState(null); // the model that has nobody to show
  const nobody = !place.get("user") && !place.all("add").length;
  useEffect(() => {
    if (!nobody) return;
    const none = () => found(model.name);
    ask(path("v1/study/users", { kind: "random", seed: 0, limit: 1, model: model.name })).then(
      ({ rows }) => {
        if (rows.length) go(place.link({ user: String(rows[0].user) }), { replace: true });
        else none();
      },
      none,
    );
  }, [nobody, model.name]);
  return { nobody, looking: nobody && without !== model.name };
}

/** A request without the fields that have no value. */
export function clean(body) {
  return Object.fromEntries(
    Object.entries(body).filter(
      ([, value]) =>
        value !== undefined && value !== null && !(Array.isArray(value) && !value.length),
    ),
  );
}

/** Rows of the catalogue by key, in a component: a Map of keys as text. */
export function useRows(keys, name) {
  const asked = [...new Set(keys.map(String))];
  const found = useAsk(asked.length ? "v1/items" : "", { items: asked, model: name });
  const rows = new Map();
  for (const row of found.data?.rows ?? []) if (row) rows.set(String(row.item), row);
  return rows;
}
