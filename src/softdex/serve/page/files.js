// An exported page: what it asks for is in files beside it, written by `softdex export --page`.
// The files are scripts, because a page that was opened from a disk may read nothing else.

/** What an exported page says of itself, {made, users}; undefined on a server's page. */
export const still = globalThis.softdexStill;

const read = new Map(); // name of a file: promise of its content
const arrive = new Map(); // name of a file: what is called with its content

globalThis.softdexFile = (name, content) => arrive.get(name)?.(content);

function file(name) {
  if (!read.has(name)) {
    read.set(name, new Promise((done, fail) => {
      arrive.set(name, done);
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onerror = () => fail(new Error(`The file data/${name}.js is missing.`));
      document.head.append(script);
    }));
  }
  return read.get(name);
}

const not = (what) => ({ status: 404, found: { detail: `${what} This page is a copy with a sample of users; softdex look shows everything.` } });
const ok = (found) => ({ status: 200, found });

/** The answer to a request, as {status, found}. */
export async function stored(path, body) {
  const url = new URL(path, "http://page/");
  const at = url.pathname.slice(1);
  const q = Object.fromEntries(url.searchParams);
  const page = await file("page");
  const model = body?.model ?? q.model ?? page.models.default;
  const [, users, key] = /^v1\/((?:study\/)?users)\/(.*)$/s.exec(at) ?? [];
  if (at === "v1/models") return ok(page.models);
  if (at === "v1/items") return ok({ rows: body ? rows(page, body.items) : find(page.items, "item", q) });
  if (at === "v1/users") return ok({ rows: find(page.users, "user", q) });
  if (at === "v1/study/users") return chosen(page, model, q);
  if (at === "v1/similar") return similar(page, model, body);
  if (users) return ofUser(page, decodeURIComponent(key), model, q.metrics ? "metrics" : users === "users" ? "known" : "held");
  if (body) return asked(page, model, at, body);
  const words = [...url.searchParams].sort(([a], [b]) => (a < b ? -1 : 1)).map((each) => each.join("="));
  const found = page.answers[`${decodeURIComponent(at)}?${words.join("&")}`];
  return found === undefined ? not("This is not in the copy.") : ok(found);
}

const rows = (page, keys) => keys.map((key) => page.items[page.row[String(key)]] ?? null);

function find(list, name, { q = "", limit = 20 }) {
  const text = q.toLowerCase();
  const first = list.filter((each) => String(each[name]).startsWith(q));
  const words = text.split(/\s+/);
  const has = (each) => Object.values(each.columns ?? {}).some((cell) => {
    const lower = String(cell).toLowerCase();
    return words.every((word) => lower.includes(word));
  });
  const others = text ? list.filter((each) => !first.includes(each) && has(each)) : [];
  return [...first, ...others.sort((a, b) => b.events - a.events)].slice(0, Number(limit));
}

function chosen(page, model, { kind = "random", limit = 20, metric, seed = 0 }) {
  const found = page.chosen[model]?.[kind];
  if (!found || (metric && found.length && found[0].metric !== metric)) return not("These users were not chosen.");
  const start = kind === "random" ? Number(seed) % found.length : 0;
  return ok({ rows: [...found.slice(start), ...found.slice(0, start)].slice(0, Number(limit)) });
}

async function ofUser(page, key, model, what) {
  const place = page.file[key];
  if (place === undefined) return not(`User ${key} is not in the copy.`);
  const found = (await file(place))[model];
  return ok(found[what] ?? { user: key, targets: [], ask: {}, metrics: {} });
}

async function asked(page, model, at, body) {
  const place = page.file[String(body.user)];
  if (place === undefined) return not("This user is not in the copy.");
  const found = (await file(place))[model];
  if (at === "v1/explain") {
    const why = found.why[String(body.item)];
    return why ? ok(why) : not("Why this item has its score is not in the copy.");
  }
  if (at === "v1/score") return ok(found.score);
  if (at !== "v1/recommend") return not("This is not in the copy.");
  if (body.where || body.mode || body.exclude_seen === false) return not("Lists under other conditions are not in the copy.");
  return ok({ ...found.list, items: found.list.items.slice(0, body.k) });
}

async function similar(page, model, body) {
  const place = page.near[String(body.items[0])];
  const found = place === undefined ? undefined : (await file(place))[model]?.[String(body.items[0])];
  if (found === undefined) return not(`What is similar to ${body.items[0]} is not in the copy.`);
  return ok({ ...found, similar: [{ ...found.similar[0], items: found.similar[0].items.slice(0, body.k) }] });
}
