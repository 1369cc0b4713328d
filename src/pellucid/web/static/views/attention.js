// Attention: every head small, one large, as a matrix or as lines; and what would change if it were computed otherwise.

import { calm, h, number, percent, put } from "../dom.js";
import { hasBoth, placeName, sidesOf } from "../grid.js";
import { differenceScale, paint, picture, scaleOf } from "../heat.js";
import { t } from "../words.js";
import { lines } from "./attention_lines.js";
import { badge, prediction } from "./trace.js";

const CHANGES = ["none", "temperature", "no_scaling", "keys_queries", "cosine", "distance", "relu", "mask_off", "mask_on", "positions_off"];

const settings = (state) => ({
  change: CHANGES.includes(state.change) ? state.change : "none",
  temperature: Number(state.temperature) || 1,
  written: Math.max(0, Math.min(32, Math.floor(Number(state.written)) || 0)),
});
const chosen = (state, seen) => ({
  place: Math.min(Number(state.place) || 0, seen.places.length - 1),
  head: Math.min(Number(state.head) || 0, seen.heads - 1),
});

export async function show(root, page) {
  const grid = h("section", { class: "card heads" });
  const large = h("section", { class: "card large" });
  const told = h("section", { class: "card told" });
  root.replaceChildren(controls(page), h("div", { class: "attention" }, grid, h("div", {}, large, told)));
  const own = { page, grid, large, told, seen: null, asked: "" };
  const update = async (state) => {
    const asked = { ...page.asked, ...settings(state) };
    const key = JSON.stringify(asked);
    try {
      if (key !== own.asked) {
        own.seen = await page.call("api/attention", asked);
        own.asked = key;
        sync(root, state);
        drawGrid(own);
        tell(own);
      }
      mark(own, state);
      await drawLarge(own, state);
    } catch (problem) {
      if (problem.name !== "AbortError") page.report(problem);
    }
  };
  await update(page.state());
  return update;
}

function controls(page) {
  const now = settings(page.state());
  const later = calm((changes) => page.change(changes), 200);
  return h("section", { class: "card controls" },
    h("div", { class: "field" }, h("label", { for: "field-change" }, t("attention.whatif")),
      h("select", { id: "field-change", onchange: (event) => page.change({ change: event.target.value === "none" ? "" : event.target.value }) },
        CHANGES.map((name) => h("option", { value: name, selected: name === now.change }, t(`attention.change.${name}`)))), page.problemOf("change")),
    h("div", { class: "field", id: "temperature-row", hidden: now.change !== "temperature" },
      h("label", { for: "field-temperature" }, t("attention.temperature"), " ", h("output", {}, now.temperature)),
      h("input", { id: "field-temperature", type: "range", min: -2, max: 2, step: 0.05, value: Math.log10(now.temperature),
        oninput: (event) => {
          const value = Number((10 ** Number(event.target.value)).toPrecision(2));
          event.target.previousElementSibling.querySelector("output").textContent = value;
          later({ temperature: value });
        } }), page.problemOf("temperature")),
    page.model.writes && h("div", { class: "field" },
      h("label", { for: "field-written" }, t("attention.written"), " ", h("output", {}, now.written)),
      h("input", { id: "field-written", type: "range", min: 0, max: 32, step: 1, value: now.written,
        oninput: (event) => { event.target.previousElementSibling.querySelector("output").textContent = event.target.value; later({ written: event.target.value === "0" ? "" : event.target.value }); } }),
      h("p", { class: "quiet" }, t("attention.written.hint")), page.problemOf("written")));
}

function sync(root, state) {
  const now = settings(state);
  root.querySelector("#field-change").value = now.change;
  root.querySelector("#temperature-row").hidden = now.change !== "temperature";
}

function drawGrid({ page, grid, seen }) {
  const { values, shape: [, heads, side] } = seen.arrays.changed ?? seen.arrays.own;
  const both = hasBoth(seen.places);
  const scale = scaleOf([], [0, 1]);
  const thumbnail = (place, head) => {
    const start = (place * heads + head) * side * side;
    const [rows, columns] = seen.places[place].shape.map((size) => Math.ceil(size / Math.ceil(size / side)));
    const part = Float32Array.from({ length: rows * columns }, (_, k) => values[start + Math.floor(k / columns) * side + (k % columns)]);
    return h("button", { type: "button", class: "thumb", data: { place, head }, "aria-label": `${placeName(seen.places[place], both)}, ${t("common.head", { head })}`,
      onclick: () => page.change({ place, head }) }, paint(h("canvas"), part, rows, columns, scale));
  };
  grid.replaceChildren(h("h2", {}, t("attention.heads")), h("p", { class: "quiet" }, t("attention.heads.hint")),
    h("div", { class: "thumbs" }, seen.places.map((place, row) => h("div", { class: "thumb-row" },
      h("span", { class: "quiet" }, placeName(place, both)),
      h("div", { class: "thumb-line", style: { "--across": Math.ceil(heads / Math.ceil(heads / 8)) } }, Array.from({ length: heads }, (_, head) => thumbnail(row, head)))))));
}

function mark(own, state) {
  const { place, head } = chosen(state, own.seen);
  own.grid.querySelectorAll(".thumb").forEach((thumb) =>
    thumb.setAttribute("aria-pressed", String(Number(thumb.dataset.place) === place && Number(thumb.dataset.head) === head)));
}

async function drawLarge(own, state) {
  const { page, seen, large } = own;
  const at = chosen(state, seen);
  const key = JSON.stringify([own.asked, at]);
  if (own.headKey !== key) {
    own.head = await page.call("api/attention/head", { ...page.asked, ...settings(state), ...at });
    own.headKey = key;
  }
  const place = seen.places[at.place];
  const asLines = state.shape === "lines";
  const tab = (name, active) => h("button", { type: "button", "aria-pressed": String(active), onclick: () => page.change({ shape: name === "lines" ? "lines" : "" }) }, t(`attention.${name}`));
  const { queries, keys } = sidesOf(place, seen);
  put(large, h("div", { class: "large-top" }, h("h2", {}, `${place.site.replace(/\.weights$/, "")} · ${t("common.head", { head: at.head })}`),
    badge(place.verified, place.error), h("div", { class: "switch" }, tab("matrix", !asLines), tab("lines", asLines))),
  asLines ? lines(own.head.arrays, queries, keys) : matrices(own.head.arrays, queries, keys, place.shape));
}

/** A hidden weight is none; hidden in both it stays hidden. */
const difference = (before, after) => (Number.isNaN(before) && Number.isNaN(after) ? NaN : (after || 0) - (before || 0));

function matrices(arrays, queries, keys, full) {
  const readout = h("p", { class: "readout", role: "status" });
  const share = scaleOf([], [0, 1]);
  const draw = (title, { values, shape: [rows, columns] }, scale, name) => picture({ name, title, queries, keys, readout, values, rows, columns, scale,
    each: [Math.ceil(full[0] / rows), Math.ceil(full[1] / columns)], room: arrays.changed ? 260 : 520, named: !arrays.changed, largest: 44 });
  const parts = [draw(t("attention.own"), arrays.own, share, "own")];
  if (arrays.changed) {
    const differences = arrays.own.values.map((x, k) => difference(x, arrays.changed.values[k]));
    parts.push(draw(t("attention.changed"), arrays.changed, share, "changed"),
      draw(t("attention.difference"), { values: differences, shape: arrays.own.shape }, differenceScale(differences), "difference"));
  }
  return [h("div", { class: "trio" }, parts), readout];
}

function tell({ told, seen }) {
  if (!seen.compared) {
    told.hidden = !seen.prediction?.length;
    told.replaceChildren(prediction(seen.prediction) ?? "");
    return;
  }
  told.hidden = false;
  put(told, h("h2", {}, t("attention.difference")),
    h("p", {}, t("attention.largest", { change: number(seen.largest_change) })), seen.notes.map((note) => h("p", { class: "quiet" }, note)),
    seen.compared.length ? h("table", { class: "prediction compared" },
      h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, t("attention.before")), h("th", { scope: "col" }, t("attention.after")))),
      h("tbody", {}, seen.compared.map(({ token, before, after }) => h("tr", {}, h("th", { scope: "row" }, token),
        h("td", {}, percent(before)), h("td", { class: after > before ? "up" : "down" }, `${percent(after)} ${after > before ? "▲" : "▼"}`))))) : "");
}
