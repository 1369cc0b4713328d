// The heads of two models: a number of each in three grids (the first, the second, the difference), and one head's weights.

import { h, number, put } from "../dom.js";
import { bar, CellGrid, hasBoth, placeName, sidesOf } from "../grid.js";
import { differenceScale, picture, scaleOf } from "../heat.js";
import { t } from "../words.js";
import { mean, share, tile, who } from "./compare_tile.js";
import { badge } from "./trace.js";

const MEASURES = { "rank.9": ["rank_0.9_low", "rank_0.9_high"], stable: ["stable"], entropy: ["entropy"], sink: ["sink"] };
const SIDES = ["first", "second"];
const brief = (x) => (Number.isInteger(x) ? String(x) : x.toFixed(Math.abs(x) < 10 ? 2 : 1));
const signed = (x) => (x === 0 ? "=" : `${x > 0 ? "+" : "−"}${brief(Math.abs(x))}`);

/** A number of every head [places][heads], the middle where two ends are known. */
function values({ heads: { models, arrays } }, side, which, measure) {
  const { names, heads, places } = models[SIDES.indexOf(side)];
  const numbers = arrays[`${side}_${which}`].values;
  const index = MEASURES[measure].map((name) => names.indexOf(name));
  return places.map((_, place) => Array.from({ length: heads }, (_, head) => mean(index.map((k) => numbers[(place * heads + head) * names.length + k]))));
}

const differences = (first, second) => first.map((line, place) => line.map((x, head) => second[place][head] - x));

function farthest(found) {
  let at = { place: 0, head: 0 };
  found.forEach((line, place) => line.forEach((x, head) => { if (Math.abs(x) > Math.abs(found[at.place][at.head])) at = { place, head }; }));
  return at;
}

export function headsTile(own) {
  const [first, second] = SIDES.map((side) => values(own, side, "own", "rank.9"));
  const [before, after, random] = [first, second, values(own, "first", "baseline", "rank.9")].map((found) => mean(found.flat()).toFixed(2));
  if (!own.heads.matched) return tile("heads", `${before} · ${after}`, t("compare.heads.mean"), t("compare.heads.random", { random }));
  const big = before === after ? before : `${before} → ${after}`;
  const change = differences(first, second);
  const at = farthest(change);
  const { places } = own.heads.models[0];
  return tile("heads", big, t("compare.heads.mean"), change.flat().every((x) => x === 0) ? t("compare.heads.equal")
    : t("compare.heads.most", { name: t("spectra.name", { place: placeName(places[at.place], hasBoth(places)), head: at.head }), first: brief(first[at.place][at.head]), second: brief(second[at.place][at.head]) }),
  t("compare.heads.random", { random }));
}

export async function drawHeads(own, state, signal) {
  const { cards: { heads: node }, heads: { matched }, page } = own;
  node.hidden = false;
  const measure = state.measure in MEASURES ? state.measure : "rank.9";
  const sides = SIDES.map((side) => values(own, side, "own", measure));
  const change = matched ? differences(...sides) : null;
  const { place, head } = chosen(state, sides[0], change);
  if (own.headsDrawn !== own.heads || own.measure !== measure) {
    Object.assign(own, { headsDrawn: own.heads, measure, grids: grids(own, sides, change, measure) });
    own.pictures = h("div", { class: "compare-pictures" });
    put(node, h("div", { class: "grid-top" }, h("h2", {}, t("compare.heads")), h("div", { class: "field switches" }, h("label", { for: "field-measure" }, t("training.measure")),
      h("select", { id: "field-measure", onchange: (event) => page.change({ measure: event.target.value === "rank.9" ? "" : event.target.value }) },
        Object.keys(MEASURES).map((name) => h("option", { value: name, selected: name === measure }, t(`spectra.fact.${name}`)))))),
    h("p", { class: "quiet" }, t(matched ? "compare.heads.hint" : "compare.heads.unmatched")), own.grids.node, own.grids.legend, own.grids.readout, matched && own.pictures);
  }
  own.grids.mark(place, head);
  if (matched) await pair(own, place, head, signal);
}

function chosen(state, first, change) {
  const given = /^\d+$/.test(state.place ?? "") && /^\d+$/.test(state.head ?? "");
  const at = given ? { place: Number(state.place), head: Number(state.head) } : change ? farthest(change) : { place: 0, head: 0 };
  return { place: Math.min(at.place, first.length - 1), head: Math.min(at.head, first[0].length - 1) };
}

function grids(own, sides, change, measure) {
  const { models } = own.heads;
  const readout = h("p", { class: "readout", role: "status" });
  const most = Math.max(...sides.flat(2), 1e-9);
  const plain = scaleOf([], [0, most], 1);
  const two = change && differenceScale(change.flat());
  const nameOf = (side, place, head) => t("spectra.name", { place: placeName(models[side].places[place], hasBoth(models[side].places)), head });
  const said = (side, place, head) => (change
    ? t("compare.head.said", { name: nameOf(0, place, head), first: brief(sides[0][place][head]), second: brief(sides[1][place][head]), change: signed(change[place][head]) })
    : `${nameOf(side, place, head)}: ${brief(sides[side][place][head])}`);
  const draw = (found, side, scale, text, title) => {
    const grid = new CellGrid({ rows: models[side].places.map((place) => placeName(place, hasBoth(models[side].places))), columns: models[side].heads, label: title,
      point: (place, head) => { readout.textContent = said(side, place, head); }, choose: (place, head, options) => change && own.page.change({ place, head }, options) });
    found.forEach((line, place) => line.forEach((x, head) => grid.fill(place, head, { colour: scale.colour(x), text: text(x), said: said(side, place, head) })));
    return grid;
  };
  const drawn = [draw(sides[0], 0, plain, brief, t("compare.first")), draw(sides[1], 1, plain, brief, t("compare.second"))];
  if (change) drawn.push(draw(change, 0, two, signed, t("compare.difference")));
  const titles = [who("first"), who("second"), h("span", { class: "who" }, t("compare.difference"))];
  return {
    readout,
    node: h("div", { class: "compare-grids" }, drawn.map((grid, k) => h("figure", { data: { grid: k } }, h("figcaption", {}, titles[k]), h("div", { class: "scroll" }, grid.node)))),
    legend: h("p", { class: "axes" }, `${t(`spectra.fact.${measure}`)} `, bar(plain, "0", brief(most)), change?.flat().some((x) => x !== 0) && [" · ", `${t("compare.difference")} `, bar(two, signed(two.low), signed(two.high))]),
    mark: (place, head) => drawn.forEach((grid) => (change ? grid.mark(place, head) : grid.mark(-1, -1))),
  };
}

// --- one head ---

async function pair(own, place, head, signal) {
  const key = JSON.stringify([own.asked, place, head]);
  if (own.pairKey !== key) {
    own.pair = await own.page.call("api/compare/head", { ...own.asked, place, head }, signal);
    own.pairKey = key;
  }
  const { models } = own.heads;
  const { arrays, shape: [rows, columns], site, errors, verified, largest, relative } = own.pair;
  const readout = h("p", { class: "readout", role: "status" });
  const sides = sidesOf(models[0].places[place], models[0]);
  const shares = scaleOf([], [0, 1]);
  const draw = (name, scale) => picture({ name, title: t(`compare.${name}`), ...sides, readout, values: arrays[name].values, rows, columns, scale, room: 300, named: columns <= 24, largest: 36 });
  put(own.pictures, h("div", { class: "large-top" }, h("h3", {}, `${site.replace(/\.weights$/, "")} · ${t("common.head", { head })}`), badge(verified, Math.max(...errors))),
    h("p", {}, largest === 0 ? t("compare.head.equal") : t("compare.head.differs", { share: share(relative), largest: number(largest) })),
    h("div", { class: "trio" }, draw("first", shares), draw("second", shares), draw("difference", differenceScale(arrays.difference.values))), readout);
}
