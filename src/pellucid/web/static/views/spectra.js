// Spectra: how low-rank every head is beside random weights; one head's curves; the head at a smaller rank; all statistics.

import { clamp, h, put } from "../dom.js";
import { bar, CellGrid, hasBoth, placeName } from "../grid.js";
import { scaleOf } from "../heat.js";
import { t } from "../words.js";
import { charts } from "./spectra_charts.js";
import { bracket, curves, statistics } from "./spectra_head.js";
import { RankView } from "./spectra_rank.js";

const whole = (x, low, high) => clamp(Math.floor(Number(x)) || low, low, high);
const settings = (state) => ({ tau: state.tau === "0.99" ? "0.99" : "0.9", against: state.against === "random" ? "random" : "length" });
const chosen = (state, found) => ({ place: whole(state.place, 0, found.places.length - 1), head: whole(state.head, 0, found.heads - 1) });

export async function show(root, page) {
  const found = await page.call("api/spectra", page.asked);
  const own = { page, found, key: "", stop: new AbortController() };
  own.both = hasBoth(found.places);
  own.grid = h("section", { class: "card" });
  own.told = h("section", { class: "card told-head" });
  own.rank = new RankView(page, found);
  root.replaceChildren(own.grid, own.told, own.rank.card);
  drawGrid(own);
  const update = async (state) => {
    own.stop.abort(); // what an older place of the slider asked for is not wanted any more
    own.stop = new AbortController();
    colourGrid(own, state);
    try {
      await choose(own, state, own.stop.signal);
    } catch (problem) {
      if (problem.name !== "AbortError") page.report(problem);
    }
  };
  await update(page.state());
  own.rank.card.after(charts(page, found)); // last: what is in sight is fetched
  return update;
}

// --- numbers of heads ---

/** By name, of a head; of random weights in its place. */
function numbersOf(found, name, place, head) {
  const start = (place * found.heads + head) * found.names.length;
  return Object.fromEntries(found.names.map((key, k) => [key, found.arrays[name].values[start + k]]));
}

const ends = (numbers, tau) => [numbers[`rank_${tau}_low`], numbers[`rank_${tau}_high`]];
const middle = ([low, high]) => (low + high) / 2;
const sizeOf = ({ queries, keys }) => Math.min(queries, keys);
const times = (x) => `×${x >= 10 ? x.toFixed(0) : Number(x.toPrecision(2))}`;

// --- the grid ---

function drawGrid(own) {
  const { found, page, grid, both } = own;
  own.readout = h("p", { class: "readout", role: "status" });
  own.summary = h("p", { class: "told" });
  own.legend = h("p", { class: "axes" });
  own.switches = h("div", { class: "switches" });
  own.cells = new CellGrid({ rows: found.places.map((place) => placeName(place, both)), columns: found.heads, label: t("spectra.grid"), point: (place, head) => say(own, place, head),
    choose: (place, head, options) => page.change({ place: place || "", head: head || "", rank: "" }, options) });
  put(grid, h("div", { class: "grid-top" }, h("h2", {}, t("spectra.grid")), own.switches), h("p", { class: "quiet" }, t("spectra.grid.hint")),
    h("div", { class: "rank-area" }, h("div", { class: "scroll" }, own.cells.node), h("div", { class: "rank-told" }, own.summary, own.legend, own.readout)));
}

function switchOf(own, key, options, active, usual) {
  return h("div", { class: "switch", role: "group", "aria-label": t(`spectra.${key}`) }, options.map((name) => h("button", { type: "button", id: `${key}-${name}`,
    "aria-pressed": String(name === active), onclick: () => own.page.change({ [key]: name === usual ? "" : name }) }, t(`spectra.${key}.${name.replace("0.", "")}`))));
}

function colourGrid(own, state) {
  const { found } = own;
  const { tau, against } = settings(state);
  const at = chosen(state, found);
  own.settings = { tau, against };
  const focused = own.switches.contains(document.activeElement) ? document.activeElement.id : "";
  put(own.switches, switchOf(own, "against", ["length", "random"], against, "length"), switchOf(own, "tau", ["0.9", "0.99"], tau, "0.9"));
  if (focused) document.getElementById(focused)?.focus();
  const heads = found.places.flatMap((place, row) => Array.from({ length: found.heads }, (_, head) => {
    const [mine, random] = ["own", "baseline"].map((name) => middle(ends(numbersOf(found, name, row, head), tau)));
    return { row, head, mine, share: mine / sizeOf(place), random: random / sizeOf(place), ratio: mine / random };
  }));
  const far = Math.max(...heads.map(({ ratio }) => Math.abs(Math.log2(ratio))), 0.5);
  const scale = against === "random" ? scaleOf([], [-far, far]) : scaleOf([], [0, 1]);
  for (const one of heads) {
    const [low, high] = ends(numbersOf(found, "own", one.row, one.head), tau);
    const text = against === "random" ? times(one.ratio) : low === high ? low : `~${Math.round(one.mine)}`;
    own.cells.fill(one.row, one.head, { colour: scale.colour(against === "random" ? Math.log2(one.ratio) : one.share), text, said: sentenceOf(own, one.row, one.head) });
  }
  own.cells.mark(at.place, at.head);
  const mean = (name) => heads.reduce((all, one) => all + one[name], 0) / heads.length;
  own.summary.textContent = t("spectra.summary", { share: tau === "0.99" ? 99 : 90, own: percent(mean("share")), random: percent(mean("random")) });
  put(own.legend, against === "random" ? bar(scale, times(2 ** -far), times(2 ** far)) : bar(scale, "0 %", "100 %"), " ", t(`spectra.legend.${against}`));
  say(own, at.place, at.head);
}

const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)} %`;

function sentenceOf({ found, settings: { tau }, both }, row, head) {
  const place = found.places[row];
  const [mine, random] = ["own", "baseline"].map((name) => ends(numbersOf(found, name, row, head), tau));
  return t("spectra.at", { name: t("spectra.name", { place: placeName(place, both), head }), rank: bracket(mine), size: sizeOf(place),
    share: percent(middle(mine) / sizeOf(place)), random: bracket(random), times: times(middle(mine) / middle(random)) });
}

function say(own, row, head) { own.readout.textContent = sentenceOf(own, row, head); }

// --- the chosen head ---

async function choose(own, state, signal) {
  const { page, found, told, both } = own;
  const at = chosen(state, found);
  const key = JSON.stringify(at);
  if (own.key !== key) {
    own.opened = await page.call("api/spectra/head", { ...page.asked, ...at }, signal);
    own.key = key;
    own.rank.open(at, own.opened);
  }
  const [mine, random] = ["own", "baseline"].map((name) => numbersOf(found, name, at.place, at.head));
  const rank = whole(state.rank ?? mine["rank_0.9_high"], 1, own.opened.ranks);
  put(told, h("h2", {}, t("spectra.curves", { name: t("spectra.name", { place: placeName(found.places[at.place], both), head: at.head }) })),
    h("div", { class: "curves" }, curves(own.opened, at.head, rank), statistics(found, mine, random, sizeOf(found.places[at.place]))));
  await own.rank.show(rank, signal);
}
