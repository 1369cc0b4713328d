// What the parts of the comparison share: a tile of the summary, the two models' marks, and shares in few letters.

import { h } from "../dom.js";
import { t } from "../words.js";

export const who = (which, name) => h("span", { class: `who ${which}` }, t(`compare.${which}`), name === undefined ? "" : `: ${name}`);

export function tile(name, big, ...told) {
  return h("div", { class: "tile", data: { tile: name } }, h("h3", {}, t(`compare.${name}`)), h("p", { class: "big" }, big),
    told.filter(Boolean).map((line) => h("p", { class: "quiet" }, line)));
}

/** As short as can be, and never nothing where there is something. */
export const share = (x) => (x === 0 ? "0 %" : x < 0.0005 ? `${(100 * x).toExponential(0)} %` : `${(100 * x).toPrecision(x < 0.1 ? 2 : 3)} %`);

export const mean = (values) => values.reduce((all, x) => all + x, 0) / values.length;
