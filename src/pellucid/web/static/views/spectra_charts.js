// All statistics of all heads, in the charts that a notebook and the offline page show too.

import { Choices, definedChart } from "../defined.js";
import { h } from "../dom.js";
import { t } from "../words.js";

export function charts(page, { figures }) {
  const choices = new Choices();
  const chart = (figure) => {
    const words = t(`spectra.figure.${figure}.text`);
    return h("div", { data: { figure } }, h("h3", {}, t(`spectra.figure.${figure}`)), h("p", { class: "quiet" }, words),
      definedChart({ words, choices, signal: page.signal, ask: () => page.call("api/spectra/figure", { ...page.asked, figure }) }));
  };
  return h("section", { class: "card all-heads" }, h("h2", {}, t("spectra.all")), h("p", { class: "quiet" }, t("spectra.all.hint")), figures.map(chart));
}
