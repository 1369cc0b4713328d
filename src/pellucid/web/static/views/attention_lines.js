// Lines between tokens: the stronger the weight, the stronger the line.

import { h, percent, s } from "../dom.js";
import { t } from "../words.js";

const MOST = 400;
const ROW = 22;

export function lines(arrays, queries, keys) {
  const { values, shape: [rows, columns] } = arrays.changed ?? arrays.own;
  const [left, right, width] = [150, 350, 500];
  const each = [Math.ceil(queries.length / rows), Math.ceil(keys.length / columns)];
  const y = (k) => k * ROW + ROW / 2;
  const strongest = Array.from(values, (weight, k) => [weight, k]).filter(([weight]) => weight > 0.01).sort((a, b) => b[0] - a[0]).slice(0, MOST);
  const drawn = strongest.map(([weight, k]) => {
    const [query, key] = [Math.floor(k / columns), k % columns];
    return s("line", { x1: left, y1: y(query), x2: right, y2: y(key), "stroke-width": 1 + 3 * weight, "stroke-opacity": 0.08 + 0.92 * weight, "data-query": query, "data-key": key },
      s("title", {}, `${t("attention.looks", { query: queries[query * each[0]], key: keys[key * each[1]] })}: ${percent(weight)}`));
  });
  const alone = (name, k) => {
    for (const line of drawn) line.classList.toggle("faint", k !== null && line.dataset[name] !== String(k));
  };
  const word = (name, names, step, count, x, anchor) => Array.from({ length: count }, (_, k) => s("text", {
    x, y: y(k) + 5, "text-anchor": anchor, tabindex: 0, class: "word",
    onpointerenter: () => alone(name, k), onpointerleave: () => alone(name, null), onfocus: () => alone(name, k), onblur: () => alone(name, null),
  }, names[k * step].slice(0, 18)));
  return [h("p", { class: "quiet" }, t("attention.lines.hint"), strongest.length === MOST ? ` ${t("attention.lines.cut", { count: MOST })}` : ""),
    h("div", { class: "scroll" }, s("svg", { class: "lines", viewBox: `0 0 ${width} ${Math.max(rows, columns) * ROW}` }, drawn,
      word("query", queries, each[0], rows, left - 6, "end"), word("key", keys, each[1], columns, right + 6, "start")))];
}
