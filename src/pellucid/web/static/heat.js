// A matrix as a heat map on a canvas: pointed at or walked over with arrow keys, a cell is read and opened.

import { clamp, h, ink, number } from "./dom.js";

let palettes = { one: [], two: [] };
export function usePalettes(given) { palettes = given; }

const CUBE = 3;
const NOTHING = 1e-9; // differences that are none
const GREY = [140, 140, 140];

/** The colours of values: light at zero between two signs; by a root (the cube's unless given) where there is one sign. */
export function scaleOf(values, domain, power = CUBE) {
  let [low, high] = domain ?? [Infinity, -Infinity];
  if (!domain) for (const x of values) if (Number.isFinite(x)) { low = Math.min(low, x); high = Math.max(high, x); }
  if (!(low <= high)) [low, high] = [0, 0];
  const two = low < 0 && high > 0;
  if (two) { high = Math.max(-low, high); low = -high; }
  const root = !two && low >= 0 ? power : 1;
  const colours = two ? palettes.two : palettes.one;
  const spread = high > low ? high - low : 1;
  const level = (x) => Math.round(clamp((x - low) / spread, 0, 1) ** (1 / root) * 254);
  return { low, high, colour: (x) => colours[level(x)] };
}

/** Paint values [rows, columns] into a canvas, a pixel each; hidden ones are see-through. */
export function paint(canvas, values, rows, columns, scale) {
  canvas.width = columns;
  canvas.height = rows;
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(columns, rows);
  const { data } = image;
  for (let k = 0, at = 0; k < rows * columns; k++, at += 4) {
    const x = values[k];
    if (Number.isNaN(x)) continue;
    const colour = Number.isFinite(x) ? scale.colour(x) : GREY;
    data[at] = colour[0];
    data[at + 1] = colour[1];
    data[at + 2] = colour[2];
    data[at + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

/**
 * A heat map to look into. rowName, columnName: what a place is called; read: where the readout goes;
 * choose(row, column): a cell was opened; each: how many cells of the matrix a pixel is, along both sides;
 * named: the names are written along the edges where there is room; largest: the most screen pixels of a cell.
 */
export function heatMap(given) {
  const { values, rows, columns, label, rowName, columnName, read, choose, each = [1, 1] } = given;
  const shape = sizes(given);
  const [wide, tall, left, top, right] = shape;
  const base = paint(h("canvas"), values, rows, columns, given.scale ?? scaleOf(values));
  const canvas = h("canvas", {
    class: "heat", tabindex: 0, role: "application", "aria-label": label, width: left + columns * wide + right, height: top + rows * tall,
  });
  let at = null;
  let marks = [];
  const draw = () => drawMap(canvas, base, given, shape, marks, at);
  const move = (row, column) => {
    at = [clamp(row, 0, rows - 1), clamp(column, 0, columns - 1)];
    draw();
    read?.(`${rowName(at[0] * each[0])} → ${columnName(at[1] * each[1])}: ${number(values[at[0] * columns + at[1]])}`, at);
  };
  const pointed = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
    move(Math.floor((y - top) / tall), Math.floor((x - left) / wide));
  };
  const open = () => choose?.(at[0] * each[0], at[1] * each[1]);
  canvas.addEventListener("pointermove", pointed);
  canvas.addEventListener("pointerleave", () => { if (document.activeElement !== canvas) { at = null; draw(); } });
  canvas.addEventListener("click", (event) => { pointed(event); open(); });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (event.key === "Enter" && at) { event.preventDefault(); open(); }
    if (!step) return;
    event.preventDefault();
    move(at ? at[0] + step[0] : 0, at ? at[1] + step[1] : 0);
  });
  canvas.mark = (found) => { marks = found; draw(); };
  draw();
  return canvas;
}

/** A cell's width and height, and the room for names at the left and the top; those of the last columns lean out to the right. */
function sizes({ rows, columns, each = [1, 1], room = 640, named = false, largest = 28 }) {
  const wide = clamp(Math.floor(room / columns), 1, largest);
  const tall = rows * 4 < columns ? clamp(Math.floor(160 / rows), 2, largest) : clamp(Math.floor(room / rows), 1, wide);
  const fits = named && Math.min(wide, tall) >= 10 && each[0] * each[1] === 1;
  return fits ? [wide, tall, 78, 66, Math.max(34 - Math.floor(wide / 2), 0)] : [wide, tall, 0, 0, 0];
}

function drawMap(canvas, base, { rows, columns, rowName, columnName, each = [1, 1] }, [wide, tall, left, top], marks, at) {
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.clearRect(0, 0, canvas.width, canvas.height);
  pen.fillStyle = ink("--hatch");
  pen.fillRect(left, top, columns * wide, rows * tall);
  pen.drawImage(base, left, top, columns * wide, rows * tall);
  if (left) writeNames(pen, rows, columns, rowName, columnName, [wide, tall, left, top], at);
  const box = (colour, [first, end], [from, to]) => {
    pen.lineWidth = 2;
    pen.strokeStyle = colour;
    pen.strokeRect(left + from * wide + 1, top + first * tall + 1, Math.max((to - from) * wide - 2, 3), Math.max((end - first) * tall - 2, 3));
  };
  for (const { kind, rows: r, columns: c } of marks)
    box(ink(kind === "operand" ? "--operand" : "--chosen"), r.map((x) => x / each[0]), c.map((x) => x / each[1]));
  if (at) box(ink("--point"), [at[0], at[0] + 1], [at[1], at[1] + 1]);
}

function writeNames(pen, rows, columns, rowName, columnName, [wide, tall, left, top], at) {
  const [quiet, loud] = [ink("--quiet"), ink("--ink")];
  const short = (name) => (String(name).length > 10 ? `${String(name).slice(0, 9)}…` : String(name));
  pen.font = "11px ui-monospace, monospace";
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (let row = 0; row < rows; row++) {
    pen.fillStyle = at?.[0] === row ? loud : quiet;
    pen.fillText(short(rowName(row)), left - 5, top + (row + 0.5) * tall);
  }
  pen.textAlign = "left";
  for (let column = 0; column < columns; column++) {
    pen.save();
    pen.fillStyle = at?.[1] === column ? loud : quiet;
    pen.translate(left + (column + 0.5) * wide, top - 5);
    pen.rotate(-Math.PI / 3);
    pen.fillText(short(columnName(column)), 0, 0);
    pen.restore();
  }
}

/** A named picture of weights: its colours above it, what is pointed at in the readout. */
export function picture({ name, title, queries, keys, readout, ...map }) {
  return h("figure", { data: { matrix: name } }, h("figcaption", {}, title, " ", map.scale.high > NOTHING && legend(map.scale)),
    heatMap({ ...map, label: title, rowName: (k) => queries[k] ?? k, columnName: (k) => keys?.[k] ?? k, read: (said) => { readout.textContent = said; } }));
}

/** Colours for differences, light at none. */
export function differenceScale(values) {
  const far = values.reduce((most, x) => Math.max(most, Math.abs(x) || 0), NOTHING);
  return scaleOf([], [-far, far]);
}

/** The colours of a scale and its ends. */
export function legend(scale, factor = 1) {
  const bar = h("canvas", { class: "scale", width: 120, height: 10, "aria-hidden": "true" });
  const values = Float32Array.from({ length: 120 }, (_, k) => scale.low + ((scale.high - scale.low) * k) / 119);
  paint(bar, values, 1, 120, scale);
  return h("span", { class: "legend" }, number(scale.low * factor), bar, number(scale.high * factor));
}
