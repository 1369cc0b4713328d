// The map: one head at any length. Tiles are fetched as they come into sight; a coarser one stands in until they are there.

import { get, Problem } from "../api.js";
import { clamp, h, number } from "../dom.js";
import { legend, paint, scaleOf } from "../heat.js";
import { t } from "../words.js";
import { profileAcross, profileDown } from "./map_profiles.js";

const ROOM = 640;
const KEPT = 256;

const placesOf = ({ blocks, two_texts: two }) => [
  ...Array.from({ length: blocks.encoder }, (_, block) => ({ stack: "encoder", block, kind: "self" })),
  ...Array.from({ length: blocks.decoder }, (_, block) => [{ stack: "decoder", block, kind: "self" }, ...(two ? [{ stack: "decoder", block, kind: "cross" }] : [])]).flat(),
];

export async function show(root, page) {
  const state = page.state();
  const places = placesOf(page.model);
  const place = clamp(Math.floor(Number(state.place)) || 0, 0, places.length - 1);
  const head = clamp(Math.floor(Number(state.head)) || 0, 0, page.model.heads - 1);
  const frame = h("section", { class: "card" });
  const key = (now) => JSON.stringify([now.place ?? "", now.head ?? "", now.tokens ?? ""]);
  const opened = key(state);
  root.replaceChildren(controls(page, places, place, head, state), frame);
  const found = await page.call("api/map", { ...page.asked, ...places[place], head, tokens: Math.max(0, Math.floor(Number(state.tokens)) || 0) });
  const view = new View(page, found, frame);
  view.goTo(state.at);
  return (now) => (key(now) === opened ? view.goTo(now.at) : page.again());
}

function controls(page, places, place, head, state) {
  const name = ({ stack, block, kind }) => `${stack}.${block}${kind === "cross" ? ".cross" : ""}`;
  const tokens = h("input", { id: "field-tokens", type: "number", min: 0, max: 65536, value: state.tokens ?? "", inputmode: "numeric" });
  const go = () => page.change({ tokens: tokens.value === "0" ? "" : tokens.value, at: "" });
  return h("form", { class: "card controls", onsubmit: (event) => { event.preventDefault(); go(); } },
    h("div", { class: "field" }, h("label", { for: "field-place" }, t("map.place")),
      h("select", { id: "field-place", onchange: (event) => page.change({ place: event.target.value, at: "" }) },
        places.map((one, k) => h("option", { value: k, selected: k === place }, name(one)))), page.problemOf("place")),
    h("div", { class: "field" }, h("label", { for: "field-head" }, t("map.head")),
      h("select", { id: "field-head", onchange: (event) => page.change({ head: event.target.value, at: "" }) },
        Array.from({ length: page.model.heads }, (_, k) => h("option", { value: k, selected: k === head }, k))), page.problemOf("head")),
    h("div", { class: "field" }, h("label", { for: "field-tokens" }, t("map.tokens")), h("div", { class: "together" }, tokens, h("button", {}, t("top.show"))),
      h("p", { class: "quiet" }, t("map.tokens.hint")), page.problemOf("tokens")));
}

/** What is seen: `zoom` screen pixels per weight, and the weight at the upper left corner. */
class View {
  constructor(page, found, frame) {
    Object.assign(this, { page, found, tiles: new Map(), asked: new Set() });
    this.canvas = h("canvas", { class: "deep", width: ROOM, height: ROOM, tabindex: 0, role: "application", "aria-label": t("map.canvas") });
    this.readout = h("p", { class: "readout", role: "status" });
    this.scale = scaleOf([], [0, this.brightest(found.arrays.tile.values)]);
    this.keep("0/0/0", found.arrays.tile);
    this.down = h("canvas", { class: "profile down", width: 120, height: ROOM, "aria-label": `${t("map.entropy")}, ${t("map.sink")}`, role: "img" });
    this.across = h("canvas", { class: "profile across", width: ROOM, height: 60, "aria-label": t("map.received"), role: "img" });
    const button = (name, text, call) => h("button", { type: "button", "aria-label": t(name), title: t(name), onclick: call }, text);
    frame.replaceChildren(
      h("div", { class: "map-top" }, h("p", { class: "quiet" }, t("map.size", found)), h("div", { class: "switch" },
        button("map.zoom.in", "+", () => this.zoomBy(2)), button("map.zoom.out", "−", () => this.zoomBy(0.5)), button("map.whole", t("map.whole"), () => this.settle(this.whole())))),
      h("div", { class: "map-area" }, h("div", { class: "map-frame" }, this.canvas, this.down, this.across),
        h("div", { class: "map-told" }, this.readout, h("p", { class: "axes" }, legend(this.scale, 1 / found.scale)),
          h("ul", { class: "key" }, [["a", "entropy"], ["b", "sink"], ["c", "received"]].map(([colour, name]) => h("li", {}, h("span", { class: `ink-${colour}` }, "━ "), t(`map.${name}`)))),
          h("p", { class: "quiet" }, t("map.hint")))));
    this.listen();
  }

  brightest(values) { return Math.max(1, values.reduce((most, x) => Math.max(most, x), 0)); }

  whole() { const size = Math.max(this.found.queries, this.found.keys); return { x: 0, y: 0, zoom: ROOM / size }; }

  goTo(at) {
    const [x, y, zoom] = (at ?? "").split(",").map(Number);
    this.at = Number.isFinite(zoom) && zoom > 0 ? { x, y, zoom } : this.whole();
    this.draw();
  }

  /** Keep within the matrix, and write the place into the address. */
  settle({ x, y, zoom }) {
    const least = this.whole().zoom;
    zoom = clamp(zoom, least, Math.max(48, least));
    const span = ROOM / zoom;
    const [queries, keys] = [this.found.queries, this.found.keys];
    this.at = { zoom, x: clamp(x, 0, Math.max(0, keys - span)), y: clamp(y, 0, Math.max(0, queries - span)) };
    this.draw();
    clearTimeout(this.writing);
    const whole = zoom === least;
    this.writing = setTimeout(() => this.page.change({ at: whole ? "" : [this.at.x, this.at.y, zoom].map((k) => Number(k.toPrecision(6))).join(",") }, { replace: true }), 300);
  }

  zoomBy(factor, px = ROOM / 2, py = ROOM / 2) {
    const { x, y, zoom } = this.at;
    const next = clamp(zoom * factor, this.whole().zoom, Math.max(48, this.whole().zoom));
    this.settle({ x: x + px / zoom - px / next, y: y + py / zoom - py / next, zoom: next });
  }

  keep(name, { values, shape: [rows, columns] }) {
    // Nothing at all is see-through: the future of a causal head is not a light triangle on a dark page.
    const image = paint(h("canvas"), values.map((x) => x || NaN), rows, columns, this.scale);
    this.tiles.set(name, { image, values, rows, columns });
    if (this.tiles.size > KEPT) this.tiles.delete([...this.tiles.keys()].find((key) => key !== "0/0/0"));
  }

  /** The level whose pixels are about as large as the screen's. */
  level() { return clamp(this.found.levels - 1 - Math.floor(Math.log2(Math.max(1, 1 / this.at.zoom))), 0, this.found.levels - 1); }

  draw() {
    const pen = this.canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.clearRect(0, 0, ROOM, ROOM);
    const level = this.level();
    for (let coarse = Math.max(0, level - 3); coarse <= level; coarse++) this.drawLevel(pen, coarse, coarse === level);
    if (level > 3) this.drawLevel(pen, 0, false, "destination-over");
    profileDown(this.down, this.found, this.at, ROOM);
    profileAcross(this.across, this.found, this.at, ROOM);
    this.canvas.dataset.level = level;
    this.canvas.dataset.missing = this.asked.size;
  }

  drawLevel(pen, level, fetch, mode = "source-over") {
    const { side, levels, queries, keys } = this.found;
    const cell = 2 ** (levels - 1 - level);
    const size = side * cell;
    const { x, y, zoom } = this.at;
    const last = (start, length) => Math.floor(Math.min(start + ROOM / zoom, length - 1) / size);
    pen.globalCompositeOperation = mode;
    for (let row = Math.floor(y / size); row <= last(y, queries); row++)
      for (let column = Math.floor(x / size); column <= last(x, keys); column++) {
        const name = `${level}/${row}/${column}`;
        const tile = this.tiles.get(name);
        if (tile) pen.drawImage(tile.image, (column * size - x) * zoom, (row * size - y) * zoom, tile.columns * cell * zoom, tile.rows * cell * zoom);
        else if (fetch) this.fetch(name);
      }
    pen.globalCompositeOperation = "source-over";
  }

  async fetch(name) {
    if (this.asked.has(name)) return;
    this.asked.add(name);
    try {
      const model = encodeURIComponent(this.page.asked.model);
      const { arrays } = await get(`api/map/tile/${model}/${this.found.map}/${name}`, { signal: this.page.signal });
      this.keep(name, arrays.tile);
    } catch (problem) {
      if (!(problem instanceof Problem) || problem.status !== 410) this.page.report(problem);
      else this.page.again(); // the server made room for other maps
    } finally {
      this.asked.delete(name);
      this.draw();
    }
  }

  listen() {
    const { canvas } = this;
    const place = (event) => { const box = canvas.getBoundingClientRect(); return [((event.clientX - box.left) / box.width) * ROOM, ((event.clientY - box.top) / box.height) * ROOM]; };
    let from = null;
    canvas.addEventListener("pointerdown", (event) => { from = [...place(event), { ...this.at }]; canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", () => { from = null; });
    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = place(event);
      if (from) this.settle({ ...from[2], x: from[2].x - (px - from[0]) / from[2].zoom, y: from[2].y - (py - from[1]) / from[2].zoom });
      this.say(px, py);
    });
    canvas.addEventListener("wheel", (event) => { event.preventDefault(); this.zoomBy(2 ** (-event.deltaY / 200), ...place(event)); }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
      if (["+", "=", "-"].includes(event.key)) this.zoomBy(event.key === "-" ? 0.5 : 2);
      else if (step) this.settle({ ...this.at, x: this.at.x + (step[0] * ROOM) / 8 / this.at.zoom, y: this.at.y + (step[1] * ROOM) / 8 / this.at.zoom });
      else return;
      event.preventDefault();
      this.say(ROOM / 2, ROOM / 2);
    });
  }

  say(px, py) {
    const { tokens, keys_tokens: keyTokens, side, levels, scale, queries, keys } = this.found;
    const [query, key] = [Math.floor(this.at.y + py / this.at.zoom), Math.floor(this.at.x + px / this.at.zoom)];
    if (query < 0 || key < 0 || query >= queries || key >= keys) return;
    for (let level = this.level(); level >= 0; level--) {
      const cell = 2 ** (levels - 1 - level);
      const tile = this.tiles.get(`${level}/${Math.floor(query / cell / side)}/${Math.floor(key / cell / side)}`);
      if (!tile) continue;
      const weight = tile.values[(Math.floor(query / cell) % side) * tile.columns + (Math.floor(key / cell) % side)] / scale;
      const named = (list, k) => (list?.[k] === undefined ? String(k) : `${k} “${list[k]}”`);
      this.readout.textContent = t("map.at", { query: named(tokens, query), key: named(keyTokens ?? tokens, key), weight: number(weight) })
        + (cell > 1 ? ` (${t("map.means", { cell })})` : "");
      return;
    }
  }
}
