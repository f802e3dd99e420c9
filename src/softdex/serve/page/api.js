// Ask the server. Answers are JSON; 202 means that a part is being computed, and is asked again.

import { still, stored } from "./files.js";
import { useEffect, useRef, useState } from "./vendor/htm-preact-standalone.js";

const AGAIN = 400; // milliseconds until a part that is computed is asked for again
const BUSY = 20; // times that a server at capacity is asked again
const KEY = "softdex-token";
const KEPT = 60; // answers that are kept, so that a step back shows at once

/** Why there is no answer. */
export class Trouble extends Error {
  constructor(status, detail, field) {
    super(detail);
    this.status = status;
    this.field = field;
  }
}

// the token is kept in this tab only --------------------------------------------------------------

export const token = {
  get: () => sessionStorage.getItem(KEY) ?? "",
  set: (value) => sessionStorage.setItem(KEY, value),
  wanted: new Set(), // functions that are called when the server wants another token
};

// one request -------------------------------------------------------------------------------------

/** The words of a request: what identifies it. */
export const named = (path, body) =>
  body === undefined ? path : `${path} ${JSON.stringify(body)}`;

async function fetched(path, body, signal) {
  if (still) return answered(await stored(path, body));
  const headers = {};
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  const how = { method: body === undefined ? "GET" : "POST", headers, signal };
  if (body !== undefined) how.body = JSON.stringify(body);
  let reply;
  try {
    reply = await fetch(path, how);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Trouble(0, "The server does not answer. Is it running?");
  }
  const type = reply.headers.get("content-type") ?? "";
  return answered({
    status: reply.status,
    found: type.includes("json") ? await reply.json() : await reply.text(),
  });
}

function answered({ status, found }) {
  if (status < 400) return { status, found };
  if (status === 401) for (const tell of token.wanted) tell();
  throw new Trouble(status, found.detail ?? `The server answered ${status}.`, found.field);
}

const sleep = (time, signal) =>
  new Promise((done, stop) => {
    const timer = setTimeout(done, time);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      stop(new DOMException("left", "AbortError"));
    });
  });

/** Ask for a path, with a body to post; `working` is called while the answer is computed. */
export async function ask(path, { body, signal, working } = {}) {
  for (let busy = 0; ;) {
    try {
      const { status, found } = await fetched(path, body, signal);
      if (status !== 202) return found;
      working?.();
    } catch (error) {
      if (error.status !== 429 || (busy += 1) > BUSY) throw error;
    }
    await sleep(AGAIN, signal);
  }
}

/** A path of the server with a query; empty values are left out, lists are repeated. */
export function path(at, query = {}) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null && each !== "") words.append(name, each);
    }
  }
  const text = words.toString();
  return text ? `${at}?${text}` : at;
}

/** The picture at a path, once it is drawn from: its size and points, for a canvas. */
export async function picture(path, signal) {
  const headers = token.get() ? { Authorization: `Bearer ${token.get()}` } : {};
  const reply = await fetch(path, { headers, signal });
  if (!reply.ok) throw new Trouble(reply.status, "no picture");
  return createImageBitmap(await reply.blob());
}

// in a component ----------------------------------------------------------------------------------

const kept = new Map();

/**
 * The answer to a request, in a component: {data, error, busy, working}.
 *
 * `data` stays that of the request before while another is under way, so that nothing flickers;
 * `working` says that the server computes it in the background. Nothing is asked without a path.
 */
export function useAsk(at, body) {
  const name = at ? named(at, body) : "";
  const [state, set] = useState({ name: "" });
  const [turn, again] = useState(0);
  const latest = useRef("");
  latest.current = name;
  useEffect(() => {
    if (!at) return undefined;
    const control = new AbortController();
    const put = (more) => latest.current === name && set((old) => ({ ...old, ...more }));
    const done = (data) => put({ name, data, error: null, working: false });
    if (kept.has(name)) done(kept.get(name));
    ask(at, { body, signal: control.signal, working: () => put({ working: true }) }).then(
      (data) => {
        if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
        kept.set(name, data);
        done(data);
      },
      (error) => {
        if (error.name !== "AbortError") put({ name, data: undefined, error, working: false });
      },
    );
    return () => control.abort();
  }, [name, turn]);
  useEffect(() => {
    const retry = () => again((n) => n + 1);
    retries.add(retry);
    return () => retries.delete(retry);
  }, []);
  if (!at) return { busy: false };
  const busy = state.name !== name;
  return {
    data: state.data,
    error: busy ? null : state.error,
    busy,
    working: busy && state.working,
  };
}

const retries = new Set();

/** Ask again for everything that is on the screen, and forget what is kept. */
export function refresh() {
  kept.clear();
  for (const retry of retries) retry();
}
