// Positions: every scheme side by side, at the length that the user asks for.

import { lineChart } from "../chart.js";
import { clamp, h, s } from "../dom.js";
import { heatMap, scaleOf } from "../heat.js";
import { t } from "../words.js";

const FIELDS = { length: [64, 2, 65536], width: [32, 4, 256], heads: [8, 1, 32], base: [10000, 2, 1e9] };
const settings = (state) => Object.fromEntries(Object.entries(FIELDS).map(([name, [usual]]) => [name, state[name] ? Number(state[name]) : usual]));

export async function show(root, page) {
  const body = h("div", { class: "schemes" });
  root.replaceChildren(controls(page), body);
  const own = { page, key: "" };
  const update = async (state) => {
    const asked = settings(state);
    try {
      if (own.key !== JSON.stringify(asked)) {
        own.found = await page.call("api/positions", { model: page.asked.model, ...asked });
        own.key = JSON.stringify(asked);
        draw(page, body, own.found, asked);
      }
      turn(body, own.found, clamp(Math.floor(Number(state.place)) || 0, 0, asked.length - 1));
    } catch (problem) {
      if (problem.name !== "AbortError") page.report(problem);
    }
  };
  await update(page.state());
  return update;
}

function controls(page) {
  const now = settings(page.state());
  const inputs = Object.entries(FIELDS).map(([name, [usual, least, most]]) => {
    const input = h("input", { id: `field-${name}`, type: "number", min: least, max: most, step: name === "width" ? 2 : 1, value: now[name], inputmode: "numeric" });
    input.addEventListener("change", () => page.change({ [name]: Number(input.value) === usual ? "" : input.value }));
    return h("div", { class: "field" }, h("label", { for: `field-${name}` }, t(`positions.${name}`)), input, page.problemOf(name));
  });
  return h("form", { class: "card controls", onsubmit: (event) => event.preventDefault() }, inputs);
}

const card = (name, values, ...children) => h("section", { class: "card scheme", id: `scheme-${name}` },
  h("h2", {}, t(`positions.${name}`, values)), children);
const explain = (key, values) => h("p", { class: "quiet" }, t(key, values));

function heat({ values, shape: [rows, columns] }, places, label) {
  const readout = h("p", { class: "readout", role: "status" });
  return [heatMap({ values, rows, columns, scale: scaleOf(values), label, room: 360,
    rowName: (k) => `${t("positions.axis.place")} ${places[k] ?? k}`, columnName: (k) => t("positions.axis.column", { column: k }),
    read: (said) => { readout.textContent = said; } }), readout];
}

function draw(page, body, found, asked) {
  const { arrays } = found;
  const places = arrays.places.values;
  const row = ({ values, shape: [, columns] }, k) => values.subarray(k * columns, (k + 1) * columns);
  const near = { xTitle: t("positions.axis.apart"), yTitle: t("positions.axis.bias") };
  body.replaceChildren(
    h("p", { class: "hint whole" }, t("positions.lead", { length: asked.length })),
    card("sinusoidal", {}, explain("positions.sinusoidal.text"), heat(arrays.sinusoidal, places, t("positions.sinusoidal"))),
    rotary(page, found, asked),
    card("alibi", {}, explain("positions.alibi.text"), lineChart({ ...near, title: t("positions.alibi"),
      curves: found.slopes.map((slope, k) => ({ name: t("common.head", { head: k }), x: places, y: row(arrays.alibi, k) })) })),
    card("t5", {}, explain("positions.t5.text", { max: found.max_distance }), lineChart({ title: t("positions.t5"), step: true, xTitle: t("positions.axis.distance"), yTitle: t("positions.axis.bucket"),
      curves: ["causal", "both"].map((kind) => ({ name: t(`positions.t5.${kind}`), x: arrays.distances.values, y: arrays[`t5_${kind}`].values })) })),
    card("decay", {}, explain("positions.decay.text"), lineChart({ title: t("positions.decay"), xTitle: t("positions.axis.apart"), yTitle: t("positions.axis.left"),
      curves: ["sinusoidal", "rotary", "alibi"].map((kind) => ({ name: t(`positions.decay.${kind}`), x: places, y: arrays[`decay_${kind}`].values })) })),
    own(found, row));
}

function own(found, row) {
  const { arrays } = found;
  const title = { kind: found.own };
  if (arrays.own_bias) return card("own", title, lineChart({ title: t("positions.own.bias"), xTitle: t("positions.axis.distance"), yTitle: t("positions.axis.bias"),
    curves: Array.from({ length: arrays.own_bias.shape[0] }, (_, k) => ({ name: t("common.head", { head: k }), x: arrays.own_distances.values, y: row(arrays.own_bias, k) })) }));
  if (arrays.own_vectors) return card("own", title, explain("positions.own.vectors", { count: found.own_length }), heat(arrays.own_vectors, [], t("positions.own", title)));
  return card("own", title, explain("positions.own.none"));
}

// --- rotary: hands that turn ---

const HANDS = 8;

function rotary(page, found, asked) {
  const pairs = found.arrays.rotary.shape[1];
  const shown = Array.from({ length: Math.min(HANDS, pairs) }, (_, k) => Math.round((k * (pairs - 1)) / Math.max(1, Math.min(HANDS, pairs) - 1)));
  const slider = h("input", { id: "field-place", type: "range", "aria-label": t("positions.axis.place"), min: 0, max: asked.length - 1, step: 1, value: page.state().place ?? 0,
    oninput: () => page.change({ place: slider.value === "0" ? "" : slider.value }, { replace: true }) });
  return card("rotary", {}, explain("positions.rotary.text"),
    h("label", { for: "field-place" }, h("output", { id: "rotary-place" })), slider,
    h("div", { class: "dials" }, shown.map((pair) => h("figure", {},
      s("svg", { viewBox: "-50 -50 100 100", class: "dial", role: "img", "aria-label": t("positions.rotary.pair", { pair }) },
        s("circle", { r: 44 }), s("line", { class: "start", x1: 0, y1: 0, x2: 44, y2: 0 }), s("line", { class: "hand", x1: 0, y1: 0, x2: 44, y2: 0, "data-pair": pair })),
      h("figcaption", {}, t("positions.rotary.pair", { pair }))))));
}

/** The hands at a place: the nearest one that was sent. */
function turn(body, found, place) {
  const { places, rotary: angles } = found.arrays;
  const last = places.values.length - 1;
  const at = places.values[last] === last ? place : Math.round((place / places.values[last]) * last);
  body.querySelector("#rotary-place").textContent = t("positions.rotary.place", { place: places.values[at] });
  body.querySelectorAll(".hand").forEach((hand) => {
    const angle = angles.values[at * angles.shape[1] + Number(hand.dataset.pair)];
    hand.setAttribute("x2", 44 * Math.cos(angle));
    hand.setAttribute("y2", -44 * Math.sin(angle));
  });
}
