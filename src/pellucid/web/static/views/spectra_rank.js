// A head at a smaller rank: a slider, the matrix, the head's output and what the model then says.

import { calm, h, number, percent, put } from "../dom.js";
import { sidesOf } from "../grid.js";
import { differenceScale, picture, scaleOf } from "../heat.js";
import { t } from "../words.js";
import { badge } from "./trace.js";

const whole = (x) => x.toLocaleString("en");

export class RankView {
  constructor(page, found) {
    Object.assign(this, { page, found, key: "" });
    this.label = h("output", { for: "field-rank" });
    this.slider = h("input", { id: "field-rank", type: "range", "aria-label": t("spectra.rank"), min: 1, step: 1 });
    const later = calm((rank) => page.change({ rank }, { replace: true }), 40);
    this.slider.addEventListener("input", () => { this.say(Number(this.slider.value)); later(this.slider.value); });
    this.note = h("p", { class: "quiet" });
    this.readout = h("p", { class: "readout", role: "status" });
    this.body = h("div", { class: "rank-body" });
    this.card = h("section", { class: "card" }, h("h2", {}, t("spectra.rank")), h("p", { class: "quiet" }, t("spectra.rank.hint")),
      h("div", { class: "rank-slider" }, h("label", { for: "field-rank" }, this.label), this.slider), page.problemOf("rank"), this.note, this.body);
  }

  /** Another head: its ranks, its matrix. */
  open(at, opened) {
    Object.assign(this, { at, opened, key: "", full: null });
    this.slider.max = opened.ranks;
    const [rows, columns] = opened.shape;
    this.note.textContent = opened.exact ? "" : t("spectra.rank.limited", { ranks: opened.ranks, size: Math.min(rows, columns) });
    Object.assign(this, sidesOf(this.found.places[at.place], this.found));
  }

  say(rank) { this.label.textContent = t("spectra.rank.now", { rank, size: Math.min(...this.opened.shape) }); }

  async show(rank, signal) {
    this.slider.value = rank;
    this.say(rank);
    const key = JSON.stringify([this.at, rank]);
    if (this.key === key) return;
    const found = await this.page.call("api/spectra/rank", { ...this.page.asked, ...this.at, rank }, signal);
    this.key = key;
    this.draw(found);
  }

  draw(found) {
    this.body.dataset.rank = found.rank;
    put(this.body, this.pictures(found.arrays.picture), h("div", { class: "tiles" },
      this.tile("matrix", percent(found.error), badge(found.verified, Math.abs(found.error - found.again))),
      this.tile("output", percent(found.output)), this.said(found.outcome)), this.odd(found));
  }

  tile(name, value, ...more) {
    return h("div", { class: "tile", data: { tile: name } }, h("h3", {}, t(`spectra.tile.${name}`)), h("p", { class: "big" }, value), more,
      h("p", { class: "quiet" }, t(`spectra.tile.${name}.text`)));
  }

  /** A truncated softmax is none any more. */
  odd({ negative, lowest, appeared, appeared_share: share, row_sum: rowSum }) {
    if (!negative && !appeared && rowSum < 1e-6) return h("p", { class: "quiet fine" }, t("spectra.fine"));
    const cells = this.opened.shape[0] * this.opened.shape[1];
    return h("p", { class: "odd", data: { negative } }, t("spectra.odd", { negative: whole(negative), cells: whole(cells), lowest: number(Math.min(lowest, 0)),
      appeared: whole(appeared), share: percent(share), sum: number(rowSum) }));
  }

  /** A picture of this head: its name, its values, its colours. */
  picture(name, values, scale) {
    const { each, arrays: { picture: { shape: [rows, columns] } } } = this.opened;
    return picture({ name, title: t(`spectra.matrix.${name}`), queries: this.queries, keys: this.keys, readout: this.readout,
      values, rows, columns, scale, each, room: 300, named: columns <= 24, largest: 36 });
  }

  pictures({ values: near }) {
    const { each, arrays: { picture: { values: full } } } = this.opened;
    const most = full.reduce((high, x) => (x > high ? x : high), 1e-9);
    const share = scaleOf([], [0, most]);
    const both = scaleOf([], [-1, 1]);
    // Below zero: the blue side, by the same cube root as above it.
    const signed = { ...share, colour: (x) => (x < 0 ? both.colour(-(Math.min(-x / most, 1) ** (1 / 3))) : share.colour(x)) };
    const difference = near.map((x, k) => x - (full[k] || 0));
    this.full ??= this.picture("full", full, share);
    return [h("div", { class: "trio" }, this.full, this.picture("near", near, signed), this.picture("difference", difference, differenceScale(difference))),
      each[0] * each[1] > 1 && h("p", { class: "quiet" }, t("trace.pooled", { rows: each[0], columns: each[1] })), this.readout];
  }

  said({ kind, place, entries, variation, divergence, changed, places, vector }) {
    if (kind === "vector") return this.tile("vector", percent(vector));
    const words = kind === "token" ? { place, token: this.found.tokens[place] } : {};
    return h("div", { class: "tile wide", data: { tile: "prediction" } }, h("h3", {}, t(`spectra.says.${kind}`, words)),
      h("p", { class: "big" }, percent(variation)), h("p", { class: "quiet" }, t("spectra.variation", { divergence: number(divergence) })),
      places > 0 && h("p", { class: "quiet" }, t("spectra.changed", { changed, places })),
      h("table", { class: "prediction compared" },
        h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, t("attention.before")), h("th", { scope: "col" }, t("attention.after")))),
        h("tbody", {}, entries.map(({ token, before, after }) => h("tr", {}, h("th", { scope: "row" }, token), h("td", {}, percent(before)), changes(before, after))))));
  }
}

function changes(before, after) {
  const way = percent(before) === percent(after) ? "same" : after > before ? "up" : "down";
  return h("td", { class: way }, `${percent(after)} ${{ same: "＝", up: "▲", down: "▼" }[way]}`);
}
