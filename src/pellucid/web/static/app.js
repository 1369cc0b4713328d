// The page: what is chosen at the top, the tabs, and the view that is shown. A view is a file in views/.

import { get, post, Problem } from "./api.js";
import { h, put } from "./dom.js";
import { usePalettes } from "./heat.js";
import { address, change, KEPT, read } from "./state.js";
import { browserLanguage, has, LANGUAGES, refusal, speak, t } from "./words.js";

const COMMON = ["view", "model", "text", "target", "lang"];
const THEMES = ["auto", "light", "dark"];
const top_ = document.getElementById("top");
const tabs = document.getElementById("tabs");
const main = document.getElementById("main");
const progress = document.getElementById("progress");

let start = null;
let shown = {};
let update = null;
let stop = new AbortController();
const models = new Map();

// --- sentences beside fields ---

function clearProblems() {
  document.querySelectorAll(".problem").forEach((node) => { node.textContent = ""; node.hidden = true; });
  document.querySelectorAll("[aria-invalid]").forEach((field) => field.removeAttribute("aria-invalid"));
}

/** Say what went wrong beside the field that it is about; in the page where there is none. */
function report(problem) {
  if (problem.name === "AbortError") return;
  const said = refusal(problem);
  if (!(problem instanceof Problem)) console.error(problem);
  const beside = problem.field && document.getElementById(`problem-${problem.field}`);
  if (beside) {
    put(beside, said);
    beside.hidden = false;
    document.getElementById(`field-${problem.field}`)?.setAttribute("aria-invalid", "true");
    if (!main.querySelector(".card, .step, canvas")) main.replaceChildren(h("p", { class: "quiet" }, t("problem.above")));
    return;
  }
  main.replaceChildren(h("section", { class: "card failure", role: "alert" }, h("h2", {}, t("problem.title")), h("p", {}, said),
    h("button", { type: "button", onclick: () => render(true) }, t("problem.again"))));
}

export const problemOf = (field) => h("p", { class: "problem", id: `problem-${field}`, role: "alert", hidden: true });

// --- calls with progress ---

function showProgress({ state, done, total }) {
  const said = state === "waiting" ? t("progress.waiting") : t("progress.running", { done, total: total || "?" });
  const bar = h("progress", total && state === "running" ? { max: total, value: done } : {});
  progress.replaceChildren(bar, h("span", {}, said), h("button", { type: "button", onclick: cancel }, t("progress.cancel")));
  progress.hidden = false;
}

function cancel() {
  stop.abort();
  progress.hidden = true;
  update = null; // its calls are cancelled: whatever comes next is shown anew
  main.querySelector(".loading")?.remove();
  main.append(h("section", { class: "card" }, h("p", {}, t("progress.cancelled")),
    h("button", { type: "button", onclick: () => render(true) }, t("problem.again"))));
}

async function call(path, body, signal) {
  try {
    return await post(path, body, { signal, progress: (found) => !signal.aborted && showProgress(found) });
  } finally {
    if (!signal.aborted) progress.hidden = true;
  }
}

// --- the top ---

function header(state) {
  const model = models.get(state.model);
  const pick = h("select", { id: "field-model", onchange: (event) => change({ model: event.target.value, text: "", target: "" }) },
    start.models.map(({ name }) => h("option", { value: name, selected: name === state.model }, name)));
  const text = h("textarea", { id: "field-text", rows: 1, spellcheck: "false", value: state.text ?? "", "aria-describedby": "problem-text" });
  const target = model?.two_texts
    ? h("textarea", { id: "field-target", rows: 1, spellcheck: "false", value: state.target ?? "", placeholder: t("top.target.empty") }) : null;
  const send = () => change({ text: text.value.trim() === "" ? " " : text.value, target: target?.value ?? "" });
  for (const field of [text, target]) field?.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); send(); }
  });
  const language = h("div", { class: "switch", role: "group", "aria-label": t("top.language") }, Object.entries(LANGUAGES).map(([code, name]) =>
    h("button", { type: "button", lang: code, id: `lang-${code}`, "aria-pressed": String(code === state.lang), onclick: () => change({ lang: code }) }, name)));
  const theme = state.theme ?? "auto";
  const next = THEMES[(THEMES.indexOf(theme) + 1) % 3];
  const focused = top_.contains(document.activeElement) ? document.activeElement.id : "";
  top_.replaceChildren(
    h("div", { class: "brand" }, h("h1", {}, h("a", { href: address({ view: start.views[0], lang: state.lang }) }, "Pellucid")),
      h("p", {}, t("top.motto")), language,
      h("button", { type: "button", class: "theme", id: "theme", onclick: () => change({ theme: next === "auto" ? "" : next }) }, t(`theme.${theme}`))),
    h("form", { class: "chosen", onsubmit: (event) => { event.preventDefault(); send(); } },
      h("div", { class: "field" }, h("label", { for: "field-model" }, t("top.model")), pick, problemOf("model")),
      h("div", { class: "field wide" }, h("label", { for: "field-text" }, t(model && !model.words ? "top.ids" : model?.two_texts ? "top.source" : "top.text")), text, problemOf("text")),
      target && h("div", { class: "field wide" }, h("label", { for: "field-target" }, t("top.target")), target, problemOf("target")),
      h("button", { class: "primary" }, t("top.show"))),
    model && h("p", { class: "quiet about" }, about(model)));
  if (focused) document.getElementById(focused)?.focus();
}

function about(model) {
  const own = `about.${model.name}`;
  const said = has(own) ? t(own) : start.models.find(({ name }) => name === model.name)?.description;
  const blocks = model.blocks.encoder + model.blocks.decoder;
  const facts = t("top.facts", { blocks, heads: model.heads, width: model.width, parameters: model.parameters.toLocaleString("en"), position: model.position });
  return (said ? `${said} · ` : "") + facts
    + (model.context ? ` · ${t("top.context", { context: model.context })}` : "");
}

function navigation(state) {
  const common = Object.fromEntries(Object.entries(state).filter(([key]) => KEPT.includes(key)));
  tabs.setAttribute("aria-label", t("top.views"));
  tabs.replaceChildren(...start.views.map((view) => h("a", { href: address({ ...common, view }), "aria-current": view === state.view && "page" }, t(`view.${view}`))));
}

// --- showing ---

const same = (one, other, keys) => keys.every((key) => (one[key] ?? "") === (other[key] ?? ""));

async function complete(state) {
  state.lang ??= browserLanguage();
  if (!start.views.includes(state.view)) state.view = start.views[0];
  if (!start.models.some(({ name }) => name === state.model)) {
    if (state.model) throw Object.assign(new Problem({ code: "no_model", message: state.model, field: "model", values: { name: state.model } }, 422));
    state.model = start.models[0].name;
  }
  return state;
}

async function render(force = false) {
  let state = read();
  document.documentElement.dataset.theme = state.theme ?? "auto";
  speak(state.lang ?? browserLanguage());
  if (!force && update && same(state, shown, COMMON)) {
    const repaint = (state.theme ?? "") !== (shown.theme ?? "");
    shown = state;
    navigation(state);
    if (!repaint) {
      await update(state);
      main.dataset.ready = state.view;
      return undefined;
    }
  }
  stop.abort();
  stop = new AbortController();
  const { signal } = stop;
  update = null;
  progress.hidden = true;
  document.getElementById("skip").textContent = t("top.skip");
  try {
    state = await complete(state).catch((problem) => { state.model = start.models[0].name; header(state); navigation(state); throw problem; });
    header(state);
    navigation(state);
    if (!models.has(state.model)) models.set(state.model, await call("api/model", { model: state.model }, signal));
    const model = models.get(state.model);
    if (!state.text) { state.text = model.example; history.replaceState(null, "", address(state)); }
    shown = state;
    header(state);
    navigation(state);
    document.title = `${t(`view.${state.view}`)} · ${state.model} · Pellucid`;
    main.replaceChildren(h("p", { class: "quiet loading" }, t("progress.loading")));
    const view = await import(`./views/${state.view}.js`);
    if (signal.aborted) return;
    update = await view.show(main, {
      model, models: start.models, signal, problemOf, report,
      state: () => read(),
      again: () => render(true),
      asked: { model: state.model, text: state.text, ...(model.two_texts && state.target ? { target: state.target } : {}) },
      call: (path, body, own) => call(path, body, own ? AbortSignal.any([signal, own]) : signal),
      change: (changes, options) => { clearProblems(); change(changes, options); },
    });
    main.dataset.ready = state.view;
  } catch (problem) {
    if (!signal.aborted) { progress.hidden = true; report(problem); }
  }
}

addEventListener("hashchange", () => { delete main.dataset.ready; render(); });
document.getElementById("skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
try {
  start = await get("api/start");
  usePalettes(start.palettes);
  await render();
} catch (problem) {
  main.replaceChildren(h("section", { class: "card failure", role: "alert" }, h("p", {}, refusal(problem))));
}
