// Bytes and operations of every step, with the cache and without: a table and curves.

import { lineChart } from "../chart.js";
import { h } from "../dom.js";
import { t } from "../words.js";

const units = (names, base) => (x) => {
  let place = 0;
  while (Math.abs(x) >= base && place < names.length - 1) { x /= base; place++; }
  return `${Number.isInteger(x) ? x : x.toPrecision(x >= 100 ? 4 : 3)} ${names[place]}`;
};
export const size = units(["B", "KiB", "MiB", "GiB"], 1024);
export const work = units(["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 1000);

/** A scale for a whole curve: the unit of its largest number. */
function scaled(largest, names, base) {
  let [place, each] = [0, 1];
  while (largest / each >= base && place < names.length - 1) { each *= base; place++; }
  return { unit: names[place], of: (x) => x / each };
}

const sum = (values) => values.reduce((all, x) => all + x, 0);
const bytes = ({ held, of_source: source }) => sum(held) + source;
function running(values) {
  let all = 0;
  return values.map((x) => (all += x));
}

function columns({ steps }) {
  const [own, without] = [0, 1].map((way) => steps.map(({ flops }) => flops[way]));
  return { own, without, all: running(own), allWithout: running(without) };
}

export function stepTable(found, at) {
  const { own, without, all, allWithout } = columns(found);
  const head = ["step", "reads", "reused", "computed", "bytes", "with", "without", "all.with", "all.without"];
  const row = (step, k) => h("tr", { "aria-current": k === at && "step", data: { step: k } },
    h("th", { scope: "row" }, k), h("td", { class: "word" }, k ? found.tokens[step.past] : t("cache.table.prompt")),
    [step.past, step.read, size(bytes(step)), work(own[k]), work(without[k]), work(all[k]), work(allWithout[k])].map((x) => h("td", {}, x)));
  const last = found.steps.length - 1;
  const node = h("div", { class: "scroll steps", tabindex: 0, role: "region", "aria-label": t("cache.numbers") },
    h("table", { class: "figures" }, h("thead", {}, h("tr", {}, head.map((name) => h("th", { scope: "col" }, t(`cache.table.${name}`))))),
      h("tbody", {}, found.steps.map(row))));
  requestAnimationFrame(() => {
    const now = node.querySelector("[aria-current]");
    if (now) node.scrollTop = now.offsetTop - node.clientHeight / 2;
  });
  return [node, h("p", { id: "saved" }, t("cache.saved", { times: (allWithout[last] / all[last]).toFixed(1), steps: last + 1 }))];
}

export function charts(found, at) {
  const { own, without, all, allWithout } = columns(found);
  const x = found.steps.map((_, k) => k);
  const held = found.steps.map(bytes);
  const store = scaled(Math.max(...held), ["B", "KiB", "MiB", "GiB"], 1024);
  const names = { with: t("cache.with"), without: t("cache.without") };
  const curve = (name, values, { of }) => ({ name: names[name], x, y: values.map(of) });
  const work_ = (one, other) => scaled(Math.max(...one, ...other), ["FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"], 1000);
  const [each, total] = [work_(own, without), work_(all, allWithout)];
  const common = { xTitle: t("cache.table.step"), rule: at, height: 200 };
  const plot = (key, unit, curves) => h("div", { data: { chart: key } }, h("h3", {}, t(`cache.chart.${key}`, { unit })),
    lineChart({ ...common, title: t(`cache.chart.${key}`, { unit }), yTitle: "", curves }));
  return h("div", { class: "charts" },
    plot("bytes", store.unit, [curve("with", held, store), curve("without", held.map(() => 0), store)]),
    plot("each", each.unit, [curve("with", own, each), curve("without", without, each)]),
    plot("all", total.unit, [curve("with", all, total), curve("without", allWithout, total)]));
}
