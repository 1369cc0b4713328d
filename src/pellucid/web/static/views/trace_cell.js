// The panel of a chosen cell: its formula, its numbers line by line, the check, and the way to its operands.

import { formula, h, number, put } from "../dom.js";
import { t } from "../words.js";
import { badge, reveal } from "./trace.js";
import { onward } from "./trace_onward.js";

const range = ([first, end]) => (end - first === 1 ? String(first) : `${first}…${end - 1}`);

export function arithmetic(own, panel, cell, found) {
  const label = ({ site, slices, rows, columns }) => `${site}[${[slices, rows, columns].map(range).join(", ")}]`;
  panel.classList.add("open");
  put(panel,
    h("div", { class: "panel-top" }, h("h2", {}, t("trace.cell.title")),
      h("button", { type: "button", class: "close", "aria-label": t("trace.cell.close"), onclick: () => own.page.change({ cell: "" }) }, "×")),
    h("p", { class: "site" }, h("button", { type: "button", class: "link", onclick: () => reveal(own, found.site) }, cell)),
    h("p", { class: "axes" }, Object.entries(found.index).slice(1).map(([axis, place]) => `${axis} ${named(own, axis, place)}`).join(" · ")),
    formula(found.formula),
    h("ol", { class: "lines" }, found.lines.map((line) => h("li", {}, line))),
    h("p", {}, t("trace.cell.value", { value: number(found.value), result: number(found.result) }), " ", badge(found.verified, found.error)),
    found.operands.length ? [h("h3", {}, t("trace.cell.operands")), h("ul", { class: "operands" }, found.operands.map((operand) =>
      h("li", {}, h("button", { type: "button", class: "link", onclick: () => reveal(own, operand.site) }, "→ ", label(operand)))))] : null,
    h("h3", {}, t("trace.cell.onward")), next(own, found));
}

/** The steps that read this number: each opens a cell there, as far as the prediction. */
function next(own, { site, index }) {
  const readers = onward(own.story, site, Object.values(index).slice(1));
  if (!readers.length) return h("p", { class: "arrived" }, t("trace.cell.arrived"));
  return h("ul", { class: "operands onward" }, readers.map((reader) => h("li", {}, h("button", { type: "button", class: "link",
    onclick: () => { own.choose(reader.site, reader.index); reveal(own, reader.site); } }, "↓ ", `${reader.site}[${reader.index.join(", ")}]`))));
}

function named(own, axis, place) {
  const token = ["token", "query", "key"].includes(axis) ? own.story.tokens[place] : undefined;
  return token === undefined ? place : `${place} “${token}”`;
}
