// Small line charts as SVG: a few curves over one axis, named in words and in dashes, not in colour alone.
// For live charts that follow a slider or a player; charts of results that stand still are defined by the library: defined.js.

import { h, number, s } from "./dom.js";

const DASHES = ["", "6 3", "2 3", "9 3 2 3", "1 4", "12 4"];

const short = (x) => (Number.isInteger(x) ? String(x) : Math.abs(x) >= 100 ? x.toFixed(0) : number(x).replace(/\.?0+$/, ""));

const raised = (power) => `10${[...String(power)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
const looks = ({ look }, k) => (look ? { class: `curve ${look}` } : { class: `curve c${k % 6}`, "stroke-dasharray": DASHES[Math.floor(k / 6 + k) % 6] });

/** curves: [{ name, x, y, look }], look: a class of its own, quiet: not in the key; step: as stairs; log: y by powers of ten; rule: a line up at x;
 *  early: the first places take the most room. */
export function lineChart({ curves, title, xTitle, yTitle, step = false, log = false, early = false, rule = null, width = 520, height = 240, names = true }) {
  const [left, right, top, bottom] = [54, 12, 12, 38];
  const xs = curves.flatMap(({ x }) => [x[0], x[x.length - 1]]);
  const up = log ? Math.log10 : (y) => y;
  const ys = curves.flatMap(({ y }) => Array.from(y, up).filter(Number.isFinite));
  const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
  const least = ys.reduce((a, b) => Math.min(a, b), Infinity);
  const most = ys.reduce((a, b) => Math.max(a, b), -Infinity);
  const [y0, y1] = log ? [Math.floor(least), Math.max(Math.ceil(most), Math.floor(least) + 1)] : most > least ? [least, most] : [least - 1, most + 1];
  const [along, back] = early ? [Math.log1p, Math.expm1] : [(x) => x, (x) => x];
  const px = (x) => left + ((along(x) - along(x0)) / (along(x1) - along(x0) || 1)) * (width - left - right);
  const at = (y) => height - bottom - ((y - y0) / (y1 - y0)) * (height - top - bottom);
  const py = (y) => at(up(y));
  const path = ({ x, y }) => {
    let made = "";
    let drawn = false; // a gap where there is no number
    for (let k = 0; k < x.length; k++) {
      const known = Number.isFinite(up(y[k]));
      const point = `${px(x[k]).toFixed(1)},${py(y[k]).toFixed(1)}`;
      if (known && step && drawn) made += `H${px(x[k]).toFixed(1)}`;
      if (known) made += `${drawn ? "L" : "M"}${point}`;
      drawn = known;
    }
    return made;
  };
  const parts = [0, 0.25, 0.5, 0.75, 1];
  const across = [...new Set(parts.map((part) => Math.round(back(along(x0) + part * (along(x1) - along(x0))))))];
  const rising = log ? Array.from({ length: y1 - y0 + 1 }, (_, k) => y0 + k) : parts.map((part) => y0 + part * (y1 - y0));
  const drawn = s("svg", { viewBox: `0 0 ${width} ${height}`, class: "chart", role: "img", "aria-label": title },
    rising.map((y) => s("g", { class: "tick" }, s("line", { x1: left, x2: width - right, y1: at(y), y2: at(y) }),
      s("text", { x: left - 6, y: at(y) + 4, "text-anchor": "end" }, log ? raised(y) : short(y)))),
    across.map((x) => s("g", { class: "tick" }, s("text", { x: px(x), y: height - bottom + 15, "text-anchor": x === across.at(-1) ? "end" : "middle" }, short(x)))),
    rule !== null && s("line", { class: "rule", x1: px(rule), x2: px(rule), y1: top, y2: height - bottom }),
    s("text", { class: "axis", x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xTitle),
    s("text", { class: "axis", transform: `translate(11 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yTitle),
    curves.map((curve, k) => s("path", { ...looks(curve, k), d: path(curve) }, s("title", {}, curve.name))));
  const key = names && curves.length > 1 ? h("ul", { class: "key" }, curves.map((curve, k) => !curve.quiet && h("li", {},
    s("svg", { viewBox: "0 0 28 8", width: 28, height: 8, "aria-hidden": "true" },
      s("path", { ...looks(curve, k), d: "M0,4L28,4" })), curve.name))) : null;
  return h("figure", { class: "plot" }, h("figcaption", {}, title), drawn, key);
}
