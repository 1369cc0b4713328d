// Spectra: how low-rank every head is beside random weights; one head's curves; and the head at a smaller rank.

import { clamp, h, put } from "../dom.js";
import { paint, scaleOf } from "../heat.js";
import { t } from "../words.js";
import { bracket, curves, statistics } from "./spectra_head.js";
import { RankView } from "./spectra_rank.js";

const whole = (x, low, high) => clamp(Math.floor(Number(x)) || low, low, high);
const settings = (state) => ({ tau: state.tau === "0.99" ? "0.99" : "0.9", against: state.against === "random" ? "random" : "length" });
const chosen = (state, found) => ({ place: whole(state.place, 0, found.places.length - 1), head: whole(state.head, 0, found.heads - 1) });

export async function show(root, page) {
  const found = await page.call("api/spectra", page.asked);
  const own = { page, found, key: "", stop: new AbortController() };
  own.both = new Set(found.places.map(({ stack }) => stack)).size > 1;
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

const nameOf = ({ stack, block, kind }, both) => t(kind === "cross" ? "attention.block.cross" : both && stack === "encoder" ? "attention.encoder" : "attention.block", { block });

// --- the grid ---

function drawGrid(own) {
  const { found, page, grid, both } = own;
  const cell = (place, head) => h("button", { type: "button", class: "rank-cell", data: { place, head },
    onclick: () => page.change({ place: place || "", head: head || "", rank: "" }),
    onpointerenter: () => say(own, place, head), onfocus: () => say(own, place, head) });
  own.cells = found.places.map((_, place) => Array.from({ length: found.heads }, (_, head) => cell(place, head)));
  own.readout = h("p", { class: "readout", role: "status" });
  own.summary = h("p", { class: "told" });
  own.legend = h("p", { class: "axes" });
  own.switches = h("div", { class: "switches" });
  const table = h("div", { class: `rank-grid${found.heads > 16 ? " small" : ""}`, style: { "--heads": found.heads }, onkeydown: (event) => walk(own, event) },
    found.places.map((place, row) => [h("span", { class: "quiet" }, nameOf(place, both)), own.cells[row]]));
  put(grid, h("div", { class: "grid-top" }, h("h2", {}, t("spectra.grid")), own.switches), h("p", { class: "quiet" }, t("spectra.grid.hint")),
    h("div", { class: "rank-area" }, h("div", { class: "scroll" }, table), h("div", { class: "rank-told" }, own.summary, own.legend, own.readout)));
}

/** Arrow keys choose the neighbour. */
function walk(own, event) {
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
  if (!step || !event.target.dataset.place) return;
  event.preventDefault();
  const place = clamp(Number(event.target.dataset.place) + step[0], 0, own.found.places.length - 1);
  const head = clamp(Number(event.target.dataset.head) + step[1], 0, own.found.heads - 1);
  own.cells[place][head].focus();
  own.page.change({ place: place || "", head: head || "", rank: "" }, { replace: true });
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
    const button = own.cells[one.row][one.head];
    const [low, high] = ends(numbersOf(found, "own", one.row, one.head), tau);
    const colour = scale.colour(against === "random" ? Math.log2(one.ratio) : one.share);
    button.style.setProperty("background", `rgb(${colour.join(" ")})`);
    button.style.setProperty("color", light(colour) > 0.18 ? "#000" : "#fff");
    button.textContent = found.heads > 16 ? "" : against === "random" ? times(one.ratio) : low === high ? low : `~${Math.round(one.mine)}`;
    const here = one.row === at.place && one.head === at.head;
    button.setAttribute("aria-pressed", String(here));
    button.setAttribute("aria-label", sentenceOf(own, one.row, one.head));
    button.tabIndex = here ? 0 : -1;
  }
  const mean = (name) => heads.reduce((all, one) => all + one[name], 0) / heads.length;
  own.summary.textContent = t("spectra.summary", { share: tau === "0.99" ? 99 : 90, own: percent(mean("share")), random: percent(mean("random")) });
  put(own.legend, against === "random" ? bar(scale, times(2 ** -far), times(2 ** far)) : bar(scale, "0 %", "100 %"), " ", t(`spectra.legend.${against}`));
  say(own, at.place, at.head);
}

const percent = (x) => `${(100 * x).toFixed(x < 0.1 ? 1 : 0)} %`;

/** The luminance of a colour, for black or white letters on it. */
function light(colour) {
  const linear = colour.map((x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
}

function bar(scale, low, high) {
  const values = Float32Array.from({ length: 120 }, (_, k) => scale.low + ((scale.high - scale.low) * k) / 119);
  return h("span", { class: "legend" }, low, paint(h("canvas", { class: "scale", "aria-hidden": "true" }), values, 1, 120, scale), high);
}

function sentenceOf({ found, settings: { tau }, both }, row, head) {
  const place = found.places[row];
  const [mine, random] = ["own", "baseline"].map((name) => ends(numbersOf(found, name, row, head), tau));
  return t("spectra.at", { name: t("spectra.name", { place: nameOf(place, both), head }), rank: bracket(mine), size: sizeOf(place),
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
  put(told, h("h2", {}, t("spectra.curves", { name: t("spectra.name", { place: nameOf(found.places[at.place], both), head: at.head }) })),
    h("div", { class: "curves" }, curves(own.opened, at.head, rank), statistics(found, mine, random, sizeOf(found.places[at.place]))));
  await own.rank.show(rank, signal);
}
