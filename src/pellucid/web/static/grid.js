// Cells to choose from, in rows and columns: pointed at they are read, arrow keys choose the neighbour.

import { clamp, h } from "./dom.js";
import { paint } from "./heat.js";
import { t } from "./words.js";

const MANY = 16; // columns: with more of them a cell has no room for words
const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };

/** What an attention is called; both: whether the model has two stacks. */
export const placeName = ({ stack, block, kind }, both) =>
  t(kind === "cross" ? "attention.block.cross" : both && stack === "encoder" ? "attention.encoder" : "attention.block", { block });
export const hasBoth = (places) => new Set(places.map(({ stack }) => stack)).size > 1;

/** The tokens along the sides of an attention's matrix. */
export function sidesOf(place, { tokens, source }) {
  const queries = place.stack === "encoder" && source ? source : tokens;
  return { queries, keys: place.kind === "cross" ? source : queries };
}

export class CellGrid {
  /** rows: names; columns: names, or how many; has(row, column): whether there is a cell; choose(row, column, options); point(row, column). */
  constructor({ rows, columns, has = () => true, choose, point, label }) {
    const names = typeof columns === "number" ? null : columns;
    const count = names?.length ?? columns;
    this.small = count > MANY;
    const cell = (row, column) => (has(row, column) ? h("button", { type: "button", class: "rank-cell", data: { row, column }, tabindex: -1,
      onclick: () => choose(row, column), onpointerenter: () => point(row, column), onfocus: () => point(row, column) }) : h("span"));
    this.cells = rows.map((_, row) => Array.from({ length: count }, (_, column) => cell(row, column)));
    this.node = h("div", { class: `rank-grid${this.small ? " small" : ""}`, role: "group", "aria-label": label, style: { "--heads": count }, onkeydown: (event) => this.walk(event, choose) },
      names && [h("span"), names.map((name) => h("span", { class: "quiet column" }, name))],
      rows.map((name, row) => [h("span", { class: "quiet" }, name), this.cells[row]]));
  }

  walk(event, choose) {
    const step = STEPS[event.key];
    if (!step || !event.target.dataset.row) return;
    event.preventDefault();
    const row = clamp(Number(event.target.dataset.row) + step[0], 0, this.cells.length - 1);
    const column = clamp(Number(event.target.dataset.column) + step[1], 0, this.cells[row].length - 1);
    if (!this.cells[row][column].dataset.row) return;
    this.cells[row][column].focus();
    choose(row, column, { replace: true });
  }

  fill(row, column, { colour, text, said }) {
    const cell = this.cells[row][column];
    colourIn(cell, colour);
    cell.textContent = this.small ? "" : text;
    cell.setAttribute("aria-label", said);
  }

  /** The chosen cell; where there is none, the keyboard still reaches the first. */
  mark(row, column) {
    this.cells.forEach((line, r) => line.forEach((cell, k) => {
      if (!cell.dataset.row) return;
      cell.setAttribute("aria-pressed", String(r === row && k === column));
      cell.tabIndex = r === row && k === column ? 0 : -1;
    }));
    const first = this.cells.flat().find((cell) => cell.dataset.row);
    if (first && !this.cells[row]?.[column]) first.tabIndex = 0;
  }
}

/** A colour behind, and black or white letters on it. */
export function colourIn(node, colour) {
  node.style.setProperty("background", `rgb(${colour.join(" ")})`);
  node.style.setProperty("color", light(colour) > 0.18 ? "#000" : "#fff");
}

/** The luminance of a colour. */
function light(colour) {
  const linear = colour.map((x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

/** The colours of a scale between two words. */
export function bar(scale, low, high) {
  const values = Float32Array.from({ length: 120 }, (_, k) => scale.low + ((scale.high - scale.low) * k) / 119);
  return h("span", { class: "legend" }, low, paint(h("canvas", { class: "scale", "aria-hidden": "true" }), values, 1, 120, scale), high);
}
