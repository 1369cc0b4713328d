// Small line charts as SVG: a few curves over one axis, named in words and in dashes, not in colour alone.

import { h, number, s } from "./dom.js";

const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 4", "12 4"];

const short = (x) => (Number.isInteger(x) ? String(x) : Math.abs(x) >= 100 ? x.toFixed(0) : number(x).replace(/\.?0+$/, ""));

/** curves: [{ name, x, y }]; step: as stairs. */
export function lineChart({ curves, title, xTitle, yTitle, step = false, width = 520, height = 240, names = true }) {
  const [left, right, top, bottom] = [54, 12, 12, 38];
  const xs = curves.flatMap(({ x }) => [x[0], x[x.length - 1]]);
  const ys = curves.flatMap(({ y }) => [...y].filter(Number.isFinite));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const least = ys.reduce((a, b) => Math.min(a, b), Infinity);
  const most = ys.reduce((a, b) => Math.max(a, b), -Infinity);
  const [y0, y1] = most > least ? [least, most] : [least - 1, most + 1];
  const px = (x) => left + ((x - x0) / (x1 - x0 || 1)) * (width - left - right);
  const py = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const path = ({ x, y }) => {
    let made = "";
    for (let k = 0; k < x.length; k++) {
      const point = `${px(x[k]).toFixed(1)},${py(y[k]).toFixed(1)}`;
      if (step && k) made += `H${px(x[k]).toFixed(1)}`;
      made += `${k ? "L" : "M"}${point}`;
    }
    return made;
  };
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const drawn = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title },
    ticks.map((part) => s("g", { class: "tick" },
      s("line", { x1: left, x2: width - right, y1: py(y0 + part * (y1 - y0)), y2: py(y0 + part * (y1 - y0)) }),
      s("text", { x: left - 6, y: py(y0 + part * (y1 - y0)) + 4, "text-anchor": "end" }, short(y0 + part * (y1 - y0))),
      s("text", { x: px(x0 + part * (x1 - x0)), y: height - bottom + 15, "text-anchor": "middle" }, short(Math.round(x0 + part * (x1 - x0)))))),
    s("text", { class: "axis", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xTitle),
    s("text", { class: "axis", transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yTitle),
    curves.map((curve, k) => s("path", { class: `curve c${k % 6}`, d: path(curve), "stroke-dasharray": DASHES[Math.floor(k / 6 + k) % 6] },
      s("title", {}, curve.name))));
  const key = names && curves.length > 1 ? h("ul", { class: "key" }, curves.map(({ name }, k) => h("li", {},
    s("svg", { viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" },
      s("path", { class: `curve c${k % 6}`, d: "M0,4L28,4", "stroke-dasharray": DASHES[Math.floor(k / 6 + k) % 6] })), name))) : null;
  return h("figure", { class: "plot" }, h("figcaption", {}, title), drawn, key);
}
