// The weights of two models of one shape: by how much each differs, and how few directions the difference takes.

import { lineChart } from "../chart.js";
import { h, put } from "../dom.js";
import { bar, CellGrid } from "../grid.js";
import { scaleOf } from "../heat.js";
import { t } from "../words.js";
import { share, tile } from "./compare_tile.js";

const SHORT = { to_query: "Q", to_key: "K", to_value: "V", to_output: "O" };
const IN_BLOCK = /^(encoder|decoder)\.(\d+)\.(.+)\.weight$/;
const sizeOf = ({ relative }) => relative ?? Infinity;
const byShape = (shape) => (shape ? shape.join(" × ") : t("compare.absent"));

export function weightsTile({ found: { odd }, weights }) {
  if (odd) return tile("weights", "–", t("compare.odd", { name: odd.name, first: byShape(odd.first), second: byShape(odd.second) }));
  const { parameters } = weights;
  const differ = parameters.filter((one) => one.differs);
  if (!differ.length) return tile("weights", t("compare.count", { count: 0, all: parameters.length }), t("compare.weights.equal"));
  const most = differ.reduce((one, other) => (sizeOf(other) > sizeOf(one) ? other : one));
  const thin = differ.every(({ ranks }) => ranks?.factored) && Math.max(...differ.map(({ ranks }) => ranks.numerical));
  return tile("weights", t("compare.count", { count: differ.length, all: parameters.length }),
    t("compare.weights.differ", { name: most.name, share: relative(most) }), thin && t("compare.weights.adapter", { rank: thin }));
}

const relative = ({ relative: x, differs }) => (x === null ? "∞" : differs ? share(x) : "=");

export async function drawWeights(own, state, signal) {
  const { cards: { weights: node }, weights, page } = own;
  node.hidden = !weights;
  if (!weights) return;
  const { parameters } = weights;
  const matrices = parameters.filter(({ shape }) => shape.length === 2);
  const usual = matrices.reduce((one, other) => (sizeOf(other) > sizeOf(one) ? other : one), matrices[0]);
  const chosen = state.weight ? parameters.find(({ name }) => name === state.weight) ?? { name: state.weight, differs: true } : usual;
  if (own.drawn !== weights) {
    own.drawn = weights;
    own.grid = new WeightGrid(page, parameters);
    own.detail = h("div", { class: "weight-told" });
    own.facts = h("div", { class: "weight-facts" });
    put(node, h("div", { class: "grid-top" }, h("h2", {}, t("compare.weights")), own.grid.switches), h("p", { class: "quiet" }, t("compare.weights.hint")), page.problemOf("weight"),
      h("div", { class: "rank-area" }, h("div", { class: "weight-grid" }, own.grid.node, own.facts), own.detail));
  }
  own.grid.show(state.by === "rank" ? "rank" : "size", chosen.name);
  await tell(own, chosen, signal);
}

/** Rows are blocks, columns what a block holds; matrices that stand elsewhere, and vectors, in a list. */
class WeightGrid {
  constructor(page, parameters) {
    this.page = page;
    this.inside = parameters.filter(({ name, shape }) => shape.length === 2 && IN_BLOCK.test(name));
    const places = this.inside.map(({ name }) => IN_BLOCK.exec(name).slice(1));
    const rows = [...new Set(places.map(([stack, block]) => `${stack}.${block}`))];
    const columns = [...new Set(places.map(([, , path]) => path))].sort((x, y) => rankOf(x) - rankOf(y));
    this.at = places.map(([stack, block, path]) => [rows.indexOf(`${stack}.${block}`), columns.indexOf(path)]);
    const both = new Set(places.map(([stack]) => stack)).size > 1;
    const readout = h("p", { class: "readout", role: "status" });
    this.cells = new CellGrid({
      rows: rows.map((row) => t(both && row.startsWith("encoder") ? "attention.encoder" : "attention.block", { block: row.split(".")[1] })), columns: columns.map(short),
      label: t("compare.weights"), has: (row, column) => Boolean(this.find(row, column)), point: (row, column) => { readout.textContent = said(this.find(row, column)); },
      choose: (row, column, options) => page.change({ weight: this.find(row, column).name }, options) });
    this.legend = h("p", { class: "axes" });
    this.switches = h("div", { class: "switches" });
    const others = parameters.filter((one) => !this.inside.includes(one));
    this.node = h("div", {}, h("div", { class: "scroll" }, this.cells.node), this.legend, readout, list(page, others));
  }

  find(row, column) { return this.inside[this.at.findIndex(([r, k]) => r === row && k === column)]; }

  /** by: the size of the change, or its effective rank as a share of the largest possible. */
  show(by, chosen) {
    const focused = this.switches.contains(document.activeElement) ? document.activeElement.id : "";
    put(this.switches, h("div", { class: "switch", role: "group", "aria-label": t("compare.by") }, ["size", "rank"].map((name) => h("button", { type: "button", id: `by-${name}`,
      "aria-pressed": String(name === by), onclick: () => this.page.change({ by: name === "size" ? "" : name }) }, t(`compare.by.${name}`)))));
    if (focused) document.getElementById(focused)?.focus();
    const value = (one) => (by === "size" ? one.relative : one.differs ? one.ranks && one.ranks.effective["0.9"] / one.ranks.of : 0);
    const text = (one) => (by === "size" || !one.differs ? relative(one).replace(" %", "") : one.ranks?.effective["0.9"] ?? "?");
    const most = by === "rank" ? 1 : Math.max(...this.inside.map((one) => one.relative ?? 0), 1e-12);
    const scale = scaleOf([], [0, most], 2);
    this.inside.forEach((one, k) => this.cells.fill(...this.at[k], { colour: scale.colour(value(one) ?? most), text: text(one), said: said(one) }));
    put(this.legend, this.inside.some(({ differs }) => differs) && [t(`compare.legend.${by}`), " ", bar(scale, "0 %", share(most))]);
    this.cells.mark(...(this.at[this.inside.findIndex(({ name }) => name === chosen)] ?? [-1, -1]));
  }
}

function said(one) {
  if (!one.differs) return `${one.name}: =`;
  const size = t("compare.weight.said", { name: one.name, share: relative(one) });
  return one.ranks ? `${size} · ${t("compare.weight.rank", { rank: one.ranks.effective["0.9"], of: one.ranks.of })}` : size;
}

const ORDER = ["attention", "cross", "feed_forward"];
const rankOf = (path) => ORDER.findIndex((start) => path.startsWith(start)) >>> 0;
function short(path) {
  const [part, map] = path.split(".");
  return `${part === "cross" ? "× " : ""}${SHORT[map] ?? map ?? part}`;
}

/** Embeddings, norms and biases: those that differ. */
function list(page, others) {
  const differ = others.filter((one) => one.differs).sort((one, other) => sizeOf(other) - sizeOf(one));
  return h("details", { class: "others" }, h("summary", {}, t("compare.others", { count: differ.length, all: others.length })),
    h("ul", {}, differ.map((one) => h("li", {}, one.shape.length === 2 ? h("button", { type: "button", class: "link", onclick: () => page.change({ weight: one.name }) }, one.name) : h("code", {}, one.name), ` ${relative(one)}`))));
}

// --- one matrix ---

async function tell(own, chosen, signal) {
  const { detail, facts, page } = own;
  if (chosen.differs && (own.told?.name !== chosen.name || own.toldOf !== own.weights)) {
    try {
      own.told = await page.call("api/compare/weight", { ...own.asked, weight: chosen.name }, signal);
      own.toldOf = own.weights;
    } catch (problem) {
      if (problem.field !== "weight") throw problem;
      page.report(problem);
      return;
    }
  }
  const told = chosen.differs ? own.told : chosen;
  const title = h("h3", {}, h("code", {}, told.name));
  put(facts);
  if (!chosen.differs) put(detail, title, h("p", {}, t("compare.weight.equal")));
  else if (!told.ranks) put(detail, title, h("p", {}, t("compare.weight.vector", { share: relative(told) })));
  else {
    put(detail, title, h("p", { class: "quiet" }, t(told.ranks.factored ? "compare.weight.factored" : "compare.weight.subtracted")), curves(told.arrays));
    put(facts, table(told));
  }
}

function curves({ index: { values: x }, change, noise, own: weight }) {
  return lineChart({ title: t("compare.curves"), xTitle: t("spectra.axis.place"), yTitle: t("spectra.axis.value"), log: true, curves: [
    { name: t("compare.curve.own"), x, y: weight.values, look: "other" },
    { name: t("compare.curve.noise"), x, y: noise.values, look: "random" },
    { name: t("compare.curve.change"), x, y: change.values, look: "own" },
  ] });
}

function table(told) {
  const { ranks, noise } = told;
  const row = (name, mine, random) => h("tr", { data: { fact: name } },
    h("th", { scope: "row" }, t(`compare.fact.${name}`), h("small", {}, t(`compare.fact.${name}.text`, { of: ranks.of }))), h("td", {}, mine), h("td", {}, random));
  return h("table", { class: "facts" },
    h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, t("compare.curve.change")), h("th", { scope: "col" }, t("compare.curve.noise")))),
    h("tbody", {}, row("relative", relative(told), relative(told)), row("rank", ranks.effective["0.9"], noise.effective["0.9"]), row("numerical", ranks.numerical, noise.numerical)));
}
