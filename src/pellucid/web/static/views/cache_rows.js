// Pictures of what each block holds: rows of keys and values, grey where they are reused, in colour where they are new.

import { clamp, h, ink, number, put } from "../dom.js";
import { paint, scaleOf } from "../heat.js";
import { size } from "./cache_numbers.js";
import { t } from "../words.js";

const PART = 96; // pixels of a part's width
const GAP = 12;
const INKS = ["--ink", "--quiet", "--line", "--chosen"];
let inks = {}; // of the theme in force: looked up once for all pictures

/** What became of a token's row in a block: "new", "kept", "dropped" by a window, or "none" yet. */
export function fate(token, { past, read }, window) {
  const end = past + read;
  if (token >= end) return "none";
  if (window && token < end - window) return "dropped";
  return token >= past ? "new" : "kept";
}

export function rowPictures(node, found, at) {
  const readout = h("p", { class: "readout", role: "status" });
  const say = (said) => { readout.textContent = said; };
  inks = Object.fromEntries(INKS.map((name) => [name, ink(name)]));
  const blocks = found.steps[at].held.map((_, block) => own(found, at, block, say));
  put(node, h("h2", {}, t("cache.rows")),
    h("ul", { class: "key" }, [...(found.state ? [] : ["new", "kept"]), ...(found.windows.some(Boolean) ? ["dropped"] : []), "query"].map((kind) =>
      h("li", { class: `swatch ${kind}` }, t(`cache.row.${kind}`)))),
    h("div", { class: "blocks" }, blocks), readout,
    found.source && [h("h2", {}, t("cache.source")), h("p", { class: "quiet" }, t(at ? "cache.source.kept" : "cache.source.first", { bytes: size(found.steps[at].of_source) })),
      found.arrays.source_key && h("div", { class: "blocks" }, found.steps[at].held.map((_, block) => source(found, at, block, say)))]);
}

function own(found, at, block, say) {
  const step = found.steps[at];
  const window = found.windows[block];
  const tokens = found.tokens.slice(0, found.arrays.query.shape[1]);
  const state = (token) => fate(token, step, window);
  const counts = { block, kept: tokens.filter((_, k) => state(k) === "kept").length, computed: step.read };
  const asked = (token) => (state(token) === "new" ? "query" : "none");
  const parts = [{ name: "Q", state: asked, ...part(found.arrays.query, block) }];
  if (!found.state) parts.push({ name: "K", state, ...part(found.arrays.key, block) }, { name: "V", state, ...part(found.arrays.value, block) });
  const bytes = size(step.held[block]);
  const label = t(found.state ? "cache.block.state" : window ? "cache.block.window" : "cache.block", { block, bytes, window });
  return h("figure", { data: { block, ...counts } }, h("figcaption", {}, label),
    h("div", { class: "together" }, picture(parts, tokens, state, t("cache.picture", counts), say, block),
      found.state && h("div", { class: "state-box" }, t("cache.state", { heads: found.state[0], rows: found.state[1], columns: found.state[2] }))));
}

function source(found, at, block, say) {
  const state = () => (at ? "kept" : "new");
  const parts = ["key", "value"].map((name) => ({ name: name === "key" ? "K" : "V", state, ...part(found.arrays[`source_${name}`], block) }));
  return h("figure", { data: { source: block } }, h("figcaption", {}, t("cache.block.source", { block })),
    picture(parts, found.source, state, t("cache.source"), say, block));
}

const part = ({ values, shape: [, rows, columns] }, block) => ({ values: values.subarray(block * rows * columns, (block + 1) * rows * columns), rows, columns });

/** The same colours without their hue. */
const grey = (scale) => ({ colour: (x) => {
  const [red, green, blue] = scale.colour(x);
  const light = 80 + 0.45 * (0.3 * red + 0.59 * green + 0.11 * blue);
  return [light, light, light];
} });

function layers({ values, rows, columns, state }) {
  const scale = scaleOf(values);
  const only = (kinds) => values.map((x, k) => (kinds.includes(state(Math.floor(k / columns))) ? x : NaN));
  return [paint(h("canvas"), only(["kept"]), rows, columns, grey(scale)), paint(h("canvas"), only(["new", "query"]), rows, columns, scale)];
}

function picture(parts, names, state, label, say, block) {
  const tall = clamp(Math.floor(320 / names.length), 1, 14);
  const left = tall >= 9 ? 60 : 3;
  const top = 16;
  const canvas = h("canvas", { class: "rows", role: "img", "aria-label": label, width: left + parts.length * (PART + GAP), height: top + names.length * tall + 2 });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.font = "10px ui-monospace, monospace";
  if (tall >= 9) names.forEach((name, k) => {
    if (state(k) === "none") return;
    pen.fillStyle = inks[state(k) === "new" ? "--ink" : "--quiet"];
    pen.fillText(name.length > 8 ? `${name.slice(0, 7)}…` : name, 0, top + (k + 0.5) * tall + 4);
  });
  parts.forEach((one, place) => drawPart(pen, one, left + place * (PART + GAP), top, tall));
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * canvas.width - left;
    const y = ((event.clientY - box.top) / box.height) * canvas.height - top;
    const [one, row] = [parts[Math.floor(x / (PART + GAP))], Math.floor(y / tall)];
    if (!one || row < 0 || row >= names.length) return;
    const column = clamp(Math.floor(((x % (PART + GAP)) / PART) * one.columns), 0, one.columns - 1);
    const fateOf = one.state(row);
    say(t("cache.at", { block, part: one.name, token: `${row} “${names[row]}”`, fate: t(`cache.fate.${fateOf}`) })
      + (["none", "dropped"].includes(fateOf) ? "" : ` · ${number(one.values[row * one.columns + column])}`));
  });
  return canvas;
}

function drawPart(pen, one, left, top, tall) {
  pen.fillStyle = inks["--quiet"];
  pen.fillText(one.name, left, top - 5);
  for (let row = 0; row < one.rows; row++) {
    if (one.state(row) !== "dropped") continue;
    pen.fillStyle = inks["--line"];
    for (let x = 0; x < PART; x += 6) pen.fillRect(left + x, top + row * tall + tall / 2, 3, 1);
  }
  for (const layer of layers(one)) pen.drawImage(layer, left, top, PART, one.rows * tall);
  pen.lineWidth = 1;
  if (one.name !== "Q") {
    pen.strokeStyle = inks["--line"];
    pen.strokeRect(left + 0.5, top + 0.5, PART - 1, one.rows * tall);
    return;
  }
  const asked = Array.from({ length: one.rows }, (_, row) => row).filter((row) => one.state(row) === "query");
  if (!asked.length) return;
  pen.strokeStyle = inks["--chosen"];
  pen.setLineDash([4, 3]);
  pen.strokeRect(left - 1.5, top + asked[0] * tall - 1.5, PART + 3, asked.length * tall + 3);
  pen.setLineDash([]);
}
