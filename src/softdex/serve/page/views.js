// The views of the page. To add one:
//
// 1. Write views/NAME.js; it exports `view`:
//
//      import { path, useAsk } from "../api.js";
//      import { Answer, useApp } from "../parts.js";
//      import { html } from "../vendor/htm-preact-standalone.js";
//
//      function View() {
//        const { place, model, facts } = useApp();
//        const found = useAsk(path("/v1/study/NAME", { model: model.name }));
//        return html`<${Answer} of=${found}>${(data) => html`<p>${data.sentence}</p>`}<//>`;
//      }
//
//      export const view = { name: "NAME", title: "What the tab says", View };
//
//    `live: true` says that it needs a server: an exported page is without it. `when(app)`, if the
//    view has it, returns "" or the sentence that says why there is nothing to see of this model;
//    the tab is then shown soft. The address keeps the state: read it with
//    `place.get("by", "history")`, change it by links, `<a href=${place.link({ by: "popularity" })}>`.
// 2. Import it here, and add it to VIEWS.
// 3. The server's part is a function and a handler in a row of `endpoints.py`; see `study.py`.
// 4. tests/browser drives it: one test per view.

import { still } from "./files.js";
import { view as breakdown } from "./views/breakdown.js";
import { view as compare } from "./views/compare.js";
import { view as effort } from "./views/effort.js";
import { view as exposure } from "./views/exposure.js";
import { view as inside } from "./views/inside.js";
import { view as lists } from "./views/lists.js";
import { view as map } from "./views/map.js";
import { view as sampler } from "./views/sampler.js";
import { view as server } from "./views/server.js";
import { view as similar } from "./views/similar.js";
import { view as training } from "./views/training.js";
import { view as users } from "./views/users.js";

const EVERY = [
  lists, compare, similar, users, breakdown, exposure, effort, sampler, inside, map, training, server,
];
export const VIEWS = EVERY.filter((each) => !(still && each.live));
