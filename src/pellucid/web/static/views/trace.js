// The trace: a vertical story from tokens to probabilities. A chosen cell opens its arithmetic and marks its operands.

import { post } from "../api.js";
import { formula, h, number, percent } from "../dom.js";
import { heatMap, legend, scaleOf } from "../heat.js";
import { has, t } from "../words.js";
import { arithmetic } from "./trace_cell.js";

const TABLE = 12;

export async function show(root, page) {
  const story = await page.call("api/trace", page.asked);
  const panel = h("aside", { class: "card panel", "aria-live": "polite", "aria-label": t("trace.cell.title") });
  const drawn = new Map(); // site -> the tables and canvases of its slices
  const own = { page, story, drawn, choose: (site, index) => page.change({ cell: `${site}[${index.join(",")}]` }) };
  const groups = Map.groupBy ? [...Map.groupBy(story.steps, (step) => step.group)] : grouped(story.steps);
  const numbered = groups.map(([name]) => name).filter((name) => /\d$/.test(name));
  const shown = new Set([groups[0][0], groups.at(-1)[0], numbered[0], numbered.at(-1)]);
  root.replaceChildren(lead(own), h("div", { class: "with-panel" },
    h("div", { class: "story" }, groups.map(([name, steps]) => block(own, name, steps, shown.has(name)))), panel));
  const update = (state) => opened(own, panel, state.cell);
  const { cell } = page.state();
  await update(page.state());
  if (cell) reveal(own, cell.split("[")[0]);
  return update;
}

function grouped(steps) {
  const found = new Map();
  for (const step of steps) found.set(step.group, [...(found.get(step.group) ?? []), step]);
  return [...found];
}

export function badge(verified, error) {
  return h("span", { class: `badge ${verified ? "good" : "bad"}` },
    `${t(verified ? "common.verified" : "common.not_verified")}, ${t("common.error", { error: error.toExponential(1) })}`);
}

function lead(own) {
  const { story } = own;
  const start = () => { const { site, shape } = story.steps[0]; own.choose(site, shape.map(() => 0)); reveal(own, site); };
  const worst = story.steps.reduce((one, other) => (other.error > one.error ? other : one));
  const { note } = story;
  return h("section", { class: "card lead" },
    h("div", {},
      h("ol", { class: "hint way" }, h("li", {}, t("trace.hint.type")),
        h("li", {}, t("trace.hint.choose"), " ", h("button", { type: "button", class: "link", id: "first-number", onclick: start }, t("trace.hint.first"))),
        h("li", {}, t("trace.hint.follow"))),
      h("p", {}, t("trace.lead", { tokens: story.tokens.length, steps: story.steps.length })),
      h("p", {}, `${t("trace.worst")}: `, badge(worst.verified, worst.error), " ", h("code", {}, worst.site)),
      h("ol", { class: "chips", "aria-label": t("trace.tokens") }, story.tokens.map((token) => h("li", {}, token))),
      note && h("p", { class: "quiet" }, t("trace.note.summary", note))),
    prediction(story.prediction));
}

export function prediction(found) {
  if (!found?.length) return null;
  return h("div", {}, h("h2", {}, t("common.prediction")), h("table", { class: "prediction" }, h("tbody", {}, found.map(({ token, probability }) =>
    h("tr", {}, h("th", { scope: "row" }, token),
      h("td", { class: "bar" }, h("meter", { min: 0, max: 1, value: probability })), h("td", {}, percent(probability)))))));
}

function block(own, name, steps, open) {
  const body = h("div");
  const node = h("details", { class: "card block", open },
    h("summary", {}, name, " ", h("small", {}, t("trace.steps", { count: steps.length }))), body);
  const fill = () => { if (!body.firstChild) body.append(...steps.map((step) => card(own, step))); };
  for (const step of steps) own.drawn.set(step.site, { block: node, parts: [] });
  if (open) fill();
  node.addEventListener("toggle", () => node.open && fill());
  node.fill = fill;
  return node;
}

function card(own, step) {
  const kind = step.site.split(".").at(-1);
  const title = t(has(`trace.kind.${kind}`) ? `trace.kind.${kind}` : "trace.kind.other");
  const shape = step.axes.map((axis, k) => `${axis} ${step.shape[k]}`).join(" × ");
  const values = h("div", { class: "values" });
  const node = h("section", { class: "step", id: `step-${step.site}`, tabindex: -1 },
    h("h3", {}, title), h("p", { class: "site" }, h("code", {}, step.site), " ", badge(step.verified, step.error)),
    formula(step.formula),
    h("p", { class: "axes" }, shape, step.inputs.length ? [` · ${t("trace.from")} `, step.inputs.map((site, k) => [k ? ", " : "", link(own, site)])] : ""),
    values);
  const found = own.story.arrays[step.site];
  if (found) matrices(own, step, values, found, step.each);
  else lazily(node, () => fetchValues(own, step, values));
  return node;
}

export const link = (own, site) => h("button", { type: "button", class: "link", onclick: () => reveal(own, site) }, site);

/** Scroll to a step, whichever block it stands in. */
export function reveal(own, site) {
  const at = own.drawn.get(site);
  if (!at) return;
  at.block.open = true;
  at.block.fill();
  const node = document.getElementById(`step-${site}`);
  const covered = matchMedia("(max-width: 62rem)").matches; // the panel covers the lower half
  node.scrollIntoView({ block: covered ? "start" : "center", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  node.focus({ preventScroll: true });
}

function lazily(node, call) {
  const watch = new IntersectionObserver(([entry]) => {
    if (!entry.isIntersecting) return;
    watch.disconnect();
    call();
  }, { rootMargin: "600px" });
  watch.observe(node);
}

async function fetchValues(own, step, values) {
  values.append(h("p", { class: "quiet" }, t("progress.loading")));
  try {
    const found = await post("api/trace/values", { ...own.page.asked, site: step.site }, { signal: own.page.signal });
    values.replaceChildren();
    matrices(own, step, values, found.arrays[step.site], found.each);
    own.remark?.();
  } catch (problem) {
    own.page.report(problem);
  }
}

// --- matrices ---

const names = (own, step, side, count) => {
  if (step[side] === "tokens") return own.story.tokens;
  if (step[side] === "words" && side === "columns") return step.words;
  return Array.from({ length: count }, (_, k) => String(k));
};

function matrices(own, step, values, { values: all, shape }, each) {
  const [count, rows, columns] = shape;
  const size = rows * columns;
  const small = rows <= TABLE && columns <= TABLE;
  const scale = small ? null : scaleOf(all);
  const full = step.shape.length > 1 ? step.shape.slice(-2) : [1, step.shape[0]];
  const labels = [names(own, step, "rows", full[0]), names(own, step, "columns", full[1])];
  const readout = h("p", { class: "readout", role: "status" });
  const parts = Array.from({ length: count }, (_, slice) => {
    const part = all.subarray(slice * size, (slice + 1) * size);
    const choose = (row, column) => own.choose(step.site, [slice, row, column].slice(3 - step.shape.length));
    return small ? table(part, rows, columns, labels, choose) : heatMap({
      values: part, rows, columns, scale, each, choose, label: `${step.site} ${count > 1 ? t("common.head", { head: slice }) : ""}`,
      room: count > 1 ? 170 : 640, rowName: (k) => labels[0][k], columnName: (k) => labels[1][k], read: (said) => { readout.textContent = said; },
    });
  });
  own.drawn.get(step.site).parts = parts;
  const pooled = each[0] * each[1] > 1 ? t("trace.pooled", { rows: each[0], columns: each[1] }) : "";
  values.append(h("div", { class: count > 1 && !small ? "parts many" : "parts" },
    parts.map((part, slice) => h("figure", {}, count > 1 && h("figcaption", {}, t("common.head", { head: slice })), part)),
    notes(own, step)));
  if (!small) values.append(readout, h("p", { class: "axes" }, legend(scale), " ", pooled));
}

function table(values, rows, columns, [rowNames, columnNames], choose) {
  const cells = [];
  const body = Array.from({ length: rows }, (_, row) => h("tr", {}, h("th", { scope: "row" }, rowNames[row]),
    Array.from({ length: columns }, (_, column) => {
      const x = values[row * columns + column];
      const cell = h("td", { class: Number.isNaN(x) ? "masked" : "", onclick: () => choose(row, column) },
        h("button", { type: "button", tabindex: cells.length ? -1 : 0 }, Number.isNaN(x) ? t("common.masked") : number(x)));
      cells.push(cell);
      return cell;
    })));
  const node = h("table", { class: "numbers" },
    h("thead", {}, h("tr", {}, h("td"), Array.from({ length: columns }, (_, k) => h("th", { scope: "col" }, columnNames[k])))), h("tbody", {}, body));
  node.addEventListener("keydown", (event) => walk(event, cells, columns));
  node.mark = (marks) => {
    for (const cell of cells) cell.classList.remove("chosen", "operand");
    for (const { kind, rows: [top, bottom], columns: [left, right] } of marks)
      for (let row = top; row < bottom; row++)
        for (let column = left; column < right; column++) cells[row * columns + column]?.classList.add(kind);
  };
  return h("div", { class: "scroll" }, node);
}

/** One stop of the Tab key for a table, arrow keys inside. */
function walk(event, cells, columns) {
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
  const from = cells.indexOf(event.target.closest("td"));
  const to = cells[from + step]?.firstChild;
  if (!step || from < 0 || !to) return;
  event.preventDefault();
  cells[from].firstChild.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

/** The note's own numbers for this step; wrong ones say what is right. */
function notes(own, step) {
  const found = own.story.note?.steps.filter(({ site }) => site === step.site) ?? [];
  return found.map(({ name, times, rows }) => h("figure", { class: "note" },
    h("figcaption", {}, `${t("trace.note")}: ${name}`, times !== 1 ? ` (${t("trace.note.times", { times: number(times) })})` : ""),
    h("div", { class: "scroll" }, h("table", { class: "numbers printed" }, h("tbody", {}, rows.map((row) => h("tr", {}, row.map(({ printed, exact, mark }) =>
      h("td", { class: mark.replace(" ", "-"), title: t(`trace.note.${mark}`, { exact: number(exact) }) },
        printed, mark !== "right" && h("small", {}, number(exact)))))))))));
}

// --- a cell ---

async function opened(own, panel, cell) {
  const marks = new Map();
  own.remark = () => {
    for (const [site, { parts }] of own.drawn)
      parts.forEach((part, slice) => (part.mark ?? part.firstChild.mark)((marks.get(site) ?? []).filter(({ slices: [a, b] }) => slice >= a && slice < b)));
  };
  const asked = /^([\w.]+)\[([\d,]+)\]$/.exec(cell ?? "");
  if (!asked) {
    own.remark();
    panel.classList.remove("open");
    panel.replaceChildren(h("h2", {}, t("trace.cell.title")), h("p", { class: "quiet" }, t("trace.cell.empty")));
    return;
  }
  const index = asked[2].split(",").map(Number);
  const found = await post("api/trace/cell", { ...own.page.asked, site: asked[1], index }, { signal: own.page.signal })
    .catch((problem) => { own.page.report(problem); return null; });
  if (!found || own.page.state().cell !== cell) return;
  const [slice, row, column] = [0, 0, 0, ...index].slice(-3);
  marks.set(asked[1], [{ kind: "chosen", slices: [slice, slice + 1], rows: [row, row + 1], columns: [column, column + 1] }]);
  for (const operand of found.operands) marks.set(operand.site, [...(marks.get(operand.site) ?? []), { kind: "operand", ...operand }]);
  own.remark();
  arithmetic(own, panel, cell, found);
}
