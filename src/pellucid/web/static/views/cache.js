// The cache: a text written step by step; what each step computes and what it reuses, and that it makes no difference.

import { calm, clamp, formula, h, number, put } from "../dom.js";
import { player } from "../player.js";
import { t } from "../words.js";
import { charts, stepTable } from "./cache_numbers.js";
import { rowPictures } from "./cache_rows.js";
import { badge, prediction } from "./trace.js";

const settings = (state) => ({
  written: clamp(Math.floor(Number(state.written)) || 16, 1, 64),
  group: Math.max(0, Math.floor(Number(state.kv)) || 0),
});

export async function show(root, page) {
  const parts = Object.fromEntries(["lead", "rows", "why", "numbers", "charts"].map((name) => [name, h("section", { class: `card cache-${name}` })]));
  const own = { page, parts, asked: "", found: null, player: player(page, { name: (step, last) => t("cache.step", { step, last }) }) };
  const update = async (state) => {
    const asked = { ...page.asked, ...settings(state) };
    try {
      if (JSON.stringify(asked) !== own.asked) {
        own.found = await page.call("api/cache", asked);
        own.asked = JSON.stringify(asked);
        if (own.found.why) root.replaceChildren(nothing(own.found.why));
        else root.replaceChildren(controls(own, asked), parts.lead, parts.rows, h("div", { class: "two" }, parts.why, parts.numbers), parts.charts);
      }
      if (!own.found.why) draw(own, clamp(Math.floor(Number(state.step)) || 0, 0, own.found.steps.length - 1));
    } catch (problem) {
      if (problem.name !== "AbortError") page.report(problem);
    }
  };
  root.replaceChildren(h("p", { class: "quiet loading" }, t("progress.loading")));
  await update(page.state());
  return update;
}

const nothing = (why) => h("section", { class: "card cache-none" }, h("h2", {}, t("cache.none")), h("p", {}, t(`cache.none.${why}`)));

function controls({ page, found, player: buttons }, { written, group }) {
  const later = calm((changes) => page.change({ ...changes, step: "" }), 300);
  const count = h("input", { id: "field-written", type: "number", min: 1, max: 64, value: written, inputmode: "numeric",
    onchange: () => later({ written: clamp(Math.floor(Number(count.value)) || 16, 1, 64) === 16 ? "" : count.value }) });
  return h("section", { class: "card controls" }, buttons,
    h("div", { class: "field" }, h("label", { for: "field-written" }, t("cache.written")), count, page.problemOf("written")),
    found.groups > 1 && h("div", { class: "field" }, h("label", { for: "field-group" }, t("cache.group")),
      h("select", { id: "field-group", onchange: (event) => page.change({ kv: event.target.value === "0" ? "" : event.target.value }) },
        Array.from({ length: found.groups }, (_, k) => h("option", { value: k, selected: k === group }, t("common.head", { head: k })))), page.problemOf("group")),
    h("p", { class: "quiet whole-row" }, t("cache.keys")));
}

function draw(own, at) {
  const { found, parts } = own;
  own.player.show(at, found.steps.length - 1);
  lead(parts.lead, found, at);
  rowPictures(parts.rows, found, at);
  why(parts.why, found, at);
  put(parts.numbers, h("h2", {}, t("cache.numbers")), h("p", { class: "quiet" }, t("cache.numbers.text", { dtype: found.dtype })), stepTable(found, at));
  put(parts.charts, charts(found, at));
}

/** The text so far: what was read before, what this step reads, what it writes. */
function lead(node, found, at) {
  const { past, read, candidates } = found.steps[at];
  const end = past + read;
  const chip = (token, k) => h("li", { class: k === end ? "next" : k >= past ? "now" : k >= found.prompt ? "written" : "" }, token);
  const values = { past, read, token: found.tokens[past], next: found.tokens[end] };
  const last = at === found.steps.length - 1;
  const [later, first] = [found.state ? "state" : found.windows.some(Boolean) ? "window" : "all", found.source ? "source" : "text"];
  put(node, h("div", { class: "lead" },
    h("div", {},
      h("p", { class: "said", role: "status" }, t(at ? `cache.says.${later}` : `cache.says.first.${first}`, values)),
      h("ol", { class: "chips", "aria-label": t("cache.text") }, found.tokens.slice(0, end + 1).map(chip)),
      h("ul", { class: "key" }, ["now", "next"].map((kind) => h("li", { class: `swatch ${kind}` }, t(`cache.chip.${kind}`)))),
      last && h("p", { class: "quiet" }, t(found.end ? "cache.end" : "cache.last"))),
    prediction(candidates)));
}

function why(node, found, at) {
  const { past, read, queries, change, largest, row_change: rows } = found.steps[at];
  const length = past + read;
  const same = change <= found.allowed * largest;
  const linear = Boolean(found.state);
  put(node, h("h2", {}, t("cache.why")),
    h("p", {}, t(linear ? "cache.why.linear" : "cache.why.text")), found.formulas.map(formula),
    h("p", {}, t(!at ? "cache.why.first" : linear ? "cache.why.now.linear" : "cache.why.now", { t: length, past, read })),
    !linear && found.windows.some(Boolean) && h("p", {}, t("cache.why.window", { windows: [...new Set(found.windows.filter(Boolean))].join(", ") })),
    h("h3", {}, t("cache.checked")),
    h("dl", { class: "pairs" },
      h("dt", {}, t("cache.checked.queries")), h("dd", { id: "query-rows" }, t("cache.checked.rows", { with: queries[0], without: queries[1] })),
      h("dt", {}, t("cache.checked.logits")), h("dd", { id: "logit-change" }, `${number(change)} `, badge(same, largest ? change / largest : 0)),
      rows !== null && [h("dt", {}, t("cache.checked.kept")), h("dd", { id: "row-change" }, number(rows))]),
    h("p", { class: "quiet" }, t(same ? "cache.checked.same" : "cache.checked.differs", { allowed: number(found.allowed) })));
}
