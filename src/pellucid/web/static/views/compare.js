// Compare: two models on one text; what differs in what they say, in their weights and in their heads.

import { h, put } from "../dom.js";
import { refusal, t } from "../words.js";
import { drawHeads, headsTile } from "./compare_heads.js";
import { drawPredictions, predictionsTile } from "./compare_predictions.js";
import { tile, who } from "./compare_tile.js";
import { drawWeights, weightsTile } from "./compare_weights.js";

const PARTS = ["predictions", "weights", "heads"];

export async function show(root, page) {
  const own = { page, stop: new AbortController(), choice: new AbortController(), cards: {}, tiles: {}, other: null };
  own.lead = h("section", { class: "card compare-lead" });
  for (const name of PARTS) own.cards[name] = h("section", { class: `card compare-${name}` });
  root.replaceChildren(controls(own), own.lead, ...Object.values(own.cards));
  const update = async (state) => {
    own.choice.abort(); // what an older choice asked for is not wanted any more
    own.choice = new AbortController();
    const { signal } = own.choice;
    const other = otherOf(page, state);
    try {
      if (other !== own.other) own.loaded = load(own, other);
      else if (own.found) drawPredictions(own, state);
      await own.loaded;
      if (!signal.aborted) await drawChosen(own, signal);
    } catch (problem) {
      if (problem.name === "AbortError") return;
      if (!own.found) put(own.lead, h("p", { class: "quiet" }, t("problem.above")));
      page.report(problem);
    }
  };
  await update(page.state());
  return update;
}

/** The chosen one; else the next on the list that is not the first, and not the worked example; else the first itself. */
function otherOf(page, { other }) {
  if (other) return other;
  return page.models.map(({ name }) => name).find((name) => name !== page.model.name && name !== "worked-example") ?? page.model.name;
}

function controls(own) {
  const { page } = own;
  own.pick = h("select", { id: "field-other", "aria-describedby": "problem-other", onchange: () => page.change({ other: own.pick.value, at: "", weight: "", place: "", head: "" }) },
    page.models.map(({ name }) => h("option", { value: name }, name)));
  own.names = h("p", { class: "names" });
  return h("section", { class: "card controls compare-controls" },
    h("div", { class: "field" }, h("label", { for: "field-other" }, t("compare.other")), own.pick, page.problemOf("other")),
    h("button", { type: "button", id: "swap", onclick: () => page.change({ model: own.other, other: page.model.name, weight: "", place: "", head: "" }) }, t("compare.swap")), own.names);
}

/** Another second model: what both say, then what of them can be compared. */
async function load(own, other) {
  own.stop.abort();
  own.stop = new AbortController();
  const { signal } = own.stop;
  Object.assign(own, { other, found: null, weights: null, heads: null, tiles: {}, asked: { ...own.page.asked, other } });
  own.pick.value = other;
  put(own.names, who("first", own.page.model.name), " ", who("second", other));
  for (const node of [own.lead, ...Object.values(own.cards)]) { put(node); node.hidden = true; }
  own.lead.hidden = false;
  put(own.lead, h("p", { class: "quiet loading" }, t("progress.loading")));
  own.found = await own.page.call("api/compare", own.asked, signal);
  own.tiles.predictions = predictionsTile(own);
  drawLead(own);
  drawPredictions(own, own.page.state());
  await drawChosen(own, signal);
}

async function drawChosen(own, signal) {
  await part(own, "weights", () => showWeights(own, signal));
  await part(own, "heads", () => showHeads(own, signal));
}

/** A part that cannot be shown says why, in its own card; the others stay. */
async function part(own, name, load) {
  try {
    await load();
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    own.cards[name].hidden = false;
    put(own.cards[name], h("h2", {}, t(`compare.${name}`)), h("p", { class: "problem", role: "alert" }, refusal(problem)));
  }
}

async function showWeights(own, signal) {
  if (!own.weights && !own.found.odd) own.weights = await own.page.call("api/compare/weights", own.asked, signal);
  if (!own.tiles.weights) { own.tiles.weights = weightsTile(own); drawLead(own); }
  await drawWeights(own, own.page.state(), signal);
}

async function showHeads(own, signal) {
  own.heads ??= await own.page.call("api/compare/heads", own.asked, signal);
  if (!own.tiles.heads) { own.tiles.heads = headsTile(own); drawLead(own); }
  await drawHeads(own, own.page.state(), signal);
}

// --- what differs, at a glance ---

function drawLead(own) {
  const { found, lead } = own;
  lead.hidden = false;
  put(lead, h("h2", {}, t("compare.differs")),
    found.same && [h("p", { class: "odd same" }, t("compare.same")), h("pre", {}, "pellucid explore MODEL OTHER\npellucid explore MODEL --adapter FOLDER")],
    h("div", { class: "tiles" }, PARTS.map((name) => own.tiles[name] ?? tile(name, "…"))));
}
