// Training: every head while it learned, as a film of the steps that its run recorded.

import { lineChart } from "../chart.js";
import { clamp, h, number, put } from "../dom.js";
import { heatMap, legend, scaleOf } from "../heat.js";
import { player } from "../player.js";
import { t } from "../words.js";

const RUN_FILE = "[record]\npoints = 40\ntokens = 128";

export async function show(root, page) {
  const film = await page.call("api/training", { model: page.asked.model });
  if (!film.recorded) {
    root.replaceChildren(h("section", { class: "card training-none" }, h("h2", {}, t("training.none")), h("p", {}, t("training.none.text")), h("pre", {}, RUN_FILE)));
    return async () => {};
  }
  const last = film.steps.length - 1;
  const buttons = player(page, { key: "frame", pause: 400, name: (frame) => t("training.frame", { step: film.steps[frame], frame, last }) });
  const [grid, curves, loss] = ["grid", "curves", "loss"].map((name) => h("div", { class: `film-${name}` }));
  root.replaceChildren(controls(page, film, buttons), h("section", { class: "card film" }, grid, h("div", {}, curves, loss)));
  const update = async (state) => {
    const at = chosen(film, state);
    buttons.show(at.frame, last);
    root.querySelector("#field-measure").value = at.measure;
    drawGrid(grid, page, film, at);
    drawCurves(curves, film, at);
    drawLoss(loss, film, at);
  };
  await update(page.state());
  return update;
}

const whole = (x, most) => clamp(Math.floor(Number(x)) || 0, 0, most);
const chosen = (film, state) => ({
  measure: film.measures.includes(state.measure) ? state.measure : film.measures[0],
  frame: whole(state.frame, film.steps.length - 1),
  place: whole(state.place, film.places.length - 1),
  head: whole(state.head, film.heads.length - 1),
});

function controls(page, film, buttons) {
  return h("section", { class: "card controls" }, buttons,
    h("div", { class: "field measure" }, h("label", { for: "field-measure" }, t("training.measure")),
      h("select", { id: "field-measure", onchange: (event) => page.change({ measure: event.target.value }) },
        film.measures.map((name) => h("option", { value: name }, t(`training.measure.${name}`))))),
    h("p", { class: "quiet whole-row" }, t("training.lead", { frames: film.steps.length })));
}

const placeName = ({ stack, block, kind }) => t(kind === "cross" ? "training.cross" : stack === "encoder" ? "training.encoder" : "training.block", { block });
const valueOf = (film, { measure }, frame, place, head) =>
  film.arrays[measure].values[(frame * film.places.length + place) * film.heads.length + head];

function drawGrid(node, page, film, at) {
  const { values, shape: [, rows, columns] } = film.arrays[at.measure];
  const scale = scaleOf(values, undefined, 1);
  const focused = node.contains(document.activeElement);
  const name = placeName(film.places[at.place]);
  const head = (k) => t("common.head", { head: film.heads[k] });
  const readout = h("p", { class: "readout", role: "status" });
  const map = heatMap({ values: values.subarray(at.frame * rows * columns, (at.frame + 1) * rows * columns), rows, columns, scale, room: 460, named: true, largest: 40,
    label: t("training.grid", { step: film.steps[at.frame] }), rowName: (k) => placeName(film.places[k]), columnName: (k) => String(film.heads[k]),
    read: (_, [place, own]) => { readout.textContent = `${placeName(film.places[place])}, ${head(own)}: ${number(valueOf(film, at, at.frame, place, own))}`; }, choose: (place, own) => page.change({ place: place || "", head: own || "" }, { replace: true }) });
  map.mark([{ kind: "chosen", rows: [at.place, at.place + 1], columns: [at.head, at.head + 1] }]);
  put(node, h("h3", {}, t("training.grid", { step: film.steps[at.frame] })), h("p", { class: "quiet" }, t("training.grid.hint")), h("p", {}, legend(scale)), map,
    h("p", { id: "chosen-head" }, t("training.chosen", { place: name, head: head(at.head), value: number(valueOf(film, at, at.frame, at.place, at.head)) })), readout);
  if (focused) map.focus();
}

function drawCurves(node, film, at) {
  const measure = t(`training.measure.${at.measure}`);
  const curves = film.heads.map((name, head) => ({ head, name: t("common.head", { head: name }),
    x: film.steps, y: film.steps.map((_, frame) => valueOf(film, at, frame, at.place, head)) })).filter(({ y }) => y.some(Number.isFinite));
  const title = t("training.curves", { measure, place: placeName(film.places[at.place]) });
  const strong = curves.findIndex(({ head }) => head === at.head);
  const plot = curves.length ? lineChart({ curves, title, xTitle: t("training.axis"), yTitle: "", rule: film.steps[at.frame], early: true }) : null;
  plot?.querySelectorAll(".chart .curve")[strong]?.classList.add("strong");
  put(node, h("h3", {}, title), plot, strong < 0 && h("p", { class: "quiet" }, t("training.nothing")));
}

function drawLoss(node, film, at) {
  if (film.losses.every((loss) => loss === null)) return put(node);
  const now = film.losses[at.frame];
  return put(node, h("h3", {}, t("training.loss")), h("p", { id: "loss-now" }, now === null ? t("training.loss.none") : t("training.loss.at", { loss: number(now) })),
    lineChart({ curves: [{ name: t("training.loss"), x: film.steps, y: film.losses.map((loss) => loss ?? NaN) }], title: t("training.loss"), xTitle: t("training.axis"), yTitle: "", rule: film.steps[at.frame], early: true, height: 180 }));
}
