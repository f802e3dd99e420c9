// What is on the screen as lines to run: curl, and Python.

import { token } from "./api.js";
import { still } from "./files.js";
import { html, useState } from "./vendor/htm-preact-standalone.js";

const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

/** A value as a Python literal. */
function python(value) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null || value === undefined) return "None";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`)
      .join(", ")}}`;
  }
  return JSON.stringify(value);
}

function curl(endpoint, body) {
  const head = token.get() ? " -H 'Authorization: Bearer TOKEN'" : "";
  return (
    `curl${head} ${new URL(endpoint, location.href.replace(/#.*/s, "")).href} \\\n` +
    `  -H 'Content-Type: application/json' \\\n  -d ${quote(JSON.stringify(body))}`
  );
}

function call(method, file, body) {
  const { user, history, model, item, items, ...rest } = body;
  const given = [];
  if (user !== undefined) given.push(`[${python(user)}]`);
  if (items !== undefined) given.push(python(items));
  if (history !== undefined) given.push(`history=[${python(history)}]`);
  for (const [name, value] of Object.entries(rest)) given.push(`${name}=${python(value)}`);
  return `import softdex as sdx\n\nmodel = sdx.load(${python(file ?? `${model}.sdx`)})\nmodel.${method}(${given.join(", ")})`;
}

/** The lines, folded away until they are wanted. */
export function Code({ endpoint, body, method = "recommend", file }) {
  const [copied, tell] = useState("");
  const texts = {
    ...(still ? {} : { curl: curl(endpoint, body) }),
    Python: call(method, file, body),
  };
  const copy = async (name) => {
    try {
      await navigator.clipboard.writeText(texts[name]);
      tell(name);
    } catch {
      tell(`${name} could not be copied; select the text instead`);
    }
  };
  return html`<details class="code">
    <summary>The same by ${Object.keys(texts).join(" and ")}</summary>
    ${Object.entries(texts).map(
      ([name, text]) =>
        html`<figure key=${name}>
          <figcaption>
            ${name}
            <button type="button" class="plain small" onClick=${() => copy(name)}>copy</button>
          </figcaption>
          <pre tabindex="0"><code>${text}</code></pre>
        </figure>`,
    )}
    <p role="status" class="soft small">${copied && `Copied: ${copied}.`}</p>
  </details>`;
}
