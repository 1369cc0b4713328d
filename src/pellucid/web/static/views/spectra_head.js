// One head in a picture and in words: its singular values beside others, and what its numbers mean.

import { lineChart } from "../chart.js";
import { h } from "../dom.js";
import { t } from "../words.js";

export const bracket = ([low, high]) => (low === high ? String(low) : t("spectra.between", { low, high }));

export function curves({ arrays }, head, rank) {
  const { index: { values: x }, values: { values, shape: [heads, count] }, baseline } = arrays;
  const row = (k) => values.subarray(k * count, (k + 1) * count);
  const others = Array.from({ length: heads }, (_, k) => k).filter((k) => k !== head);
  return h("div", { class: "curves-chart" }, lineChart({ title: t("spectra.values"), xTitle: t("spectra.axis.place"), yTitle: t("spectra.axis.value"), log: true, rule: rank, curves: [
    ...others.map((k, n) => ({ name: n ? t("common.head", { head: k }) : t("spectra.others"), x, y: row(k), look: "other", quiet: n > 0 })),
    { name: t("spectra.random"), x, y: baseline.values, look: "random" },
    { name: t("common.head", { head }), x, y: row(head), look: "own" },
  ] }), h("p", { class: "quiet" }, t("spectra.values.text")));
}

const number = (x) => (x >= 100 ? x.toFixed(0) : x.toFixed(2));

export function statistics(found, own, random, size) {
  const rank = (tau) => [`rank.${tau.slice(2)}`, (numbers) => `${bracket([numbers[`rank_${tau}_low`], numbers[`rank_${tau}_high`]])}`];
  const rows = [rank("0.9"), rank("0.99"), ["stable", ({ stable }) => number(stable)], ["entropy", ({ entropy }) => number(entropy)],
    ["sink", ({ sink }) => `${(100 * sink).toFixed(1)} %`]];
  return h("div", {}, h("table", { class: "facts" },
    h("thead", {}, h("tr", {}, h("td"), h("th", { scope: "col" }, t("spectra.this")), h("th", { scope: "col" }, t("spectra.random")))),
    h("tbody", {}, rows.map(([name, told]) => h("tr", { data: { fact: name } },
      h("th", { scope: "row" }, t(`spectra.fact.${name}`), h("small", {}, t(`spectra.fact.${name}.text`, { size }))), h("td", {}, told(own)), h("td", {}, told(random)))))),
  h("p", { class: "quiet" }, t(found.method === "dense" ? "spectra.exact" : "spectra.free")));
}
