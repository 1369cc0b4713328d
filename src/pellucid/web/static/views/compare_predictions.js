// What two models say at every token of a text, side by side: where they differ, and which words each holds likeliest.

import { clamp, h, number, percent, put } from "../dom.js";
import { bar, colourIn } from "../grid.js";
import { scaleOf } from "../heat.js";
import { t } from "../words.js";
import { mean, share, tile, who } from "./compare_tile.js";
import { prediction } from "./trace.js";

const FARTHEST = 5;

export function predictionsTile({ found: { together, apart } }) {
  if (apart) return tile("predictions", "–", t(`compare.apart.${apart}`));
  if (together.identical) return tile("predictions", share(0), t("compare.identical"));
  if (together.kind === "vector") return tile("predictions", share(together.distance), t("compare.vector"));
  const { places, losses } = together;
  const changed = places.filter((place) => place.changed).length;
  return tile("predictions", share(mean(places.map(({ variation }) => variation))),
    places.length > 1 ? t("compare.moved", { changed, places: places.length }) : t(changed ? "compare.moved.other" : "compare.moved.same"),
    losses && t(losses[0] === losses[1] ? "compare.loss.same" : losses[1] < losses[0] ? "compare.loss.second" : "compare.loss.first",
      { first: losses[0].toFixed(3), second: losses[1].toFixed(3) }));
}

export function drawPredictions(own, state) {
  const { found: { together, apart }, cards: { predictions: node } } = own;
  node.hidden = !apart && together.kind === "vector";
  if (node.hidden) return;
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.chip : undefined;
  put(node, h("h2", {}, t("compare.predictions")), apart ? alone(own, state) : sideBySide(own, state));
  if (focused !== undefined) node.querySelector(`.chip[aria-pressed="true"]`)?.focus();
}

const at = (value, usual, count) => (/^\d+$/.test(value ?? "") ? clamp(Number(value), 0, count - 1) : usual);

// --- one table for both ---

function sideBySide({ page, found: { together, tokens: [tokens] } }, state) {
  const { kind, places, farthest } = together;
  if (kind === "text") return [h("p", { class: "quiet" }, t("compare.of.text")), duel(places[0])];
  const chosen = at(state.at, farthest[0], places.length);
  const choose = (place) => page.change({ at: place });
  const scale = scaleOf([], [0, Math.max(places[farthest[0]].variation, 1e-9)], 1);
  return [
    h("p", { class: "quiet" }, t(kind === "next" ? "compare.chips.next" : "compare.chips.token"), !together.identical && [" ", bar(scale, share(0), share(places[farthest[0]].variation))]),
    chips({ tokens, chosen, choose, said: (k) => t("compare.chip", { token: tokens[k], share: share(places[k].variation) }), colour: (k) => scale.colour(places[k].variation) }),
    h("div", { class: "duel-area" },
      h("div", {}, h("h3", { class: "after" }, t(kind === "next" ? "compare.after" : "compare.at", { token: tokens[chosen], place: chosen })),
        h("p", { class: "quiet" }, t("compare.place", { share: share(places[chosen].variation), divergence: number(places[chosen].divergence) })),
        duel(places[chosen], kind === "next" ? tokens[chosen + 1] : undefined)),
      places.length > 1 && !together.identical && h("div", {}, h("h3", {}, t("compare.farthest")), h("ol", { class: "farthest" }, farthest.slice(0, FARTHEST).map((place) => far(tokens, places, place, choose))))),
  ];
}

function far(tokens, places, place, choose) {
  const best = (side) => places[place].entries.reduce((most, entry) => (entry[side] > most[side] ? entry : most)).token;
  return h("li", {}, h("button", { type: "button", class: "link", onclick: () => choose(place) }, tokens[place]), ` ${share(places[place].variation)}: `,
    h("code", {}, best("first")), " → ", h("code", {}, best("second")));
}

/** Tokens as buttons, one of them chosen; arrow keys go along. */
function chips({ tokens, chosen, choose, said = (k) => tokens[k], colour }) {
  const chip = (token, k) => {
    const button = h("button", { type: "button", class: "chip", data: { chip: k }, "aria-pressed": String(k === chosen), "aria-label": said(k), title: said(k), tabindex: k === Math.max(chosen, 0) ? 0 : -1, onclick: () => choose(k) }, token);
    if (colour) colourIn(button, colour(k));
    return h("li", {}, button);
  };
  return h("ol", { class: "chip-row", "aria-label": t("trace.tokens"), onkeydown: (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.target.dataset.chip === undefined) return;
    event.preventDefault();
    choose(clamp(Number(event.target.dataset.chip) + step, 0, tokens.length - 1));
  } }, tokens.map(chip));
}

function duel({ entries }, next) {
  const most = Math.max(...entries.flatMap(({ first, second }) => [first, second]));
  const line = (side, value) => h("span", { class: `share ${side}`, style: { width: `${Math.max((100 * value) / most, 0.5)}%` } });
  const way = ({ first, second }) => (percent(first) === percent(second) ? ["same", "＝"] : second > first ? ["up", "▲"] : ["down", "▼"]);
  return h("table", { class: "prediction duel" },
    h("thead", {}, h("tr", {}, h("td"), h("td"), h("th", { scope: "col" }, who("first")), h("th", { scope: "col" }, who("second")))),
    h("tbody", {}, entries.map((entry) => h("tr", {}, h("th", { scope: "row" }, entry.token, entry.token === next && h("small", {}, ` ${t("compare.next")}`)),
      h("td", { class: "shares", "aria-hidden": "true" }, line("first", entry.first), line("second", entry.second)),
      h("td", {}, percent(entry.first)), h("td", { class: way(entry)[0] }, `${percent(entry.second)} ${way(entry)[1]}`)))));
}

// --- each by itself ---

function alone({ page, found: { alone: both, tokens, apart } }, state) {
  return [h("p", { class: "odd" }, t(`compare.apart.${apart}`)), h("div", { class: "apart" }, ["first", "second"].map((which, k) => {
    const { kind, places } = both[k];
    const key = k ? "at2" : "at";
    const chosen = at(state[key], places.length - 1, places.length);
    return h("div", { data: { alone: which } }, h("p", {}, who(which), " ", h("span", { class: "quiet" }, t("compare.tokens", { count: tokens[k].length }))),
      chips({ tokens: tokens[k], chosen: places.length > 1 ? chosen : -1, choose: (place) => page.change({ [key]: place }) }),
      kind === "vector" ? h("p", { class: "quiet" }, t("compare.of.vector")) : kind === "text" ? h("p", { class: "quiet" }, t("compare.of.text"))
        : h("h3", { class: "after" }, t(kind === "next" ? "compare.after" : "compare.at", { token: tokens[k][chosen], place: chosen })),
      prediction(places[chosen]));
  }))];
}
