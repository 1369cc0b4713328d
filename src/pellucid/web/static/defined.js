// Charts that the library defines, drawn by Vega in the page's room, colours and language. Vega is fetched when the first
// of them is seen; it interprets expressions, since the page's policy forbids to compile them.

import { calm, h, put } from "./dom.js";
import { fitted, look } from "./fit.js";
import { has, refusal, t } from "./words.js";

const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => ({ light: false, dark: true })[document.documentElement.dataset.theme] ?? system.matches;

/** What the lists beside some charts hold: charts with the same list follow each other. */
export class Choices {
  held = {};
  views = new Map();

  join(place, view, names) {
    this.views.set(place, view);
    for (const name of names) {
      if (name in this.held) view.signal(name, this.held[name]);
      view.addSignalListener(name, (_, value) => this.hold(name, value));
    }
    return view.runAsync();
  }

  hold(name, value) {
    if (this.held[name] === value) return;
    this.held[name] = value;
    for (const view of this.views.values()) if (name in view.getState().signals) view.signal(name, value).runAsync();
  }
}

/** A place for a chart. ask: gives its definition; words: what it shows; signal: when it is over. */
export function definedChart({ ask, words, choices, signal }) {
  const [lists, stage] = [h("div", { class: "vega-bindings" }), h("div")];
  const box = h("div", { class: "defined scroll" }, h("p", { class: "quiet" }, t("progress.loading")));
  const fail = (problem) => { if (!signal.aborted) put(box, h("p", { class: "problem" }, refusal(problem))); };
  const draw = async (embed, spec, room) => {
    put(lists);
    const drawn = await embed(stage, { ...translated(fitted(spec, room, isDark())), description: words }, {
      ast: true, actions: false, renderer: "svg", defaultStyle: false, bind: lists, config: look((name) => `var(${name})`),
      tooltip: { disableDefaultStyle: true, theme: "page", sanitize: (value) => escaped(translate(String(value))) },
    });
    await choices.join(stage, drawn.view, (spec.params ?? []).map(({ name }) => name));
    return drawn;
  };
  whenSeen(box, signal, async () => {
    try {
      const [{ default: embed }, spec] = await Promise.all([import("./vega.js"), ask()]);
      put(box, lists, stage);
      follow(box, signal, fail, (room) => draw(embed, spec, room));
    } catch (problem) {
      fail(problem);
    }
  });
  return box;
}

function whenSeen(node, signal, call) {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    observer.disconnect();
    call();
  }, { rootMargin: "300px" });
  observer.observe(node);
  signal.addEventListener("abort", () => observer.disconnect());
}

/** Draw, and again whenever the room or the theme is another; what was drawn before is let go. */
function follow(box, signal, fail, draw) {
  let shown = "";
  let last = Promise.resolve(null);
  const again = () => {
    const now = `${box.clientWidth} ${isDark()}`;
    if (!box.clientWidth || now === shown || signal.aborted) return;
    shown = now;
    last = last.then((old) => { old?.finalize(); return draw(box.clientWidth); }).catch(fail);
  };
  const observer = new ResizeObserver(calm(again, 100));
  observer.observe(box);
  system.addEventListener("change", again, { signal });
  signal.addEventListener("abort", () => { observer.disconnect(); last.then((old) => old?.finalize()); });
  again();
}

// --- words of definitions, which are English ---

const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
const known = (word) => (has(`chart.${word}`) ? t(`chart.${word}`) : word);

/** As a whole, or else word by word: "decoder 0 cross". */
const translate = (text) => (has(`chart.${text}`) ? known(text) : text.split(" ").map(known).join(" "));

function translated(part) {
  if (Array.isArray(part)) return part.map(translated);
  if (part === null || typeof part !== "object") return part;
  return Object.fromEntries(Object.entries(named(part)).map(([key, value]) => [key, key === "datasets" ? value : translated(value)]));
}

function named({ ...part }) {
  for (const key of ["title", "text", "subtitle"]) if (typeof part[key] === "string") part[key] = translate(part[key]);
  if (part.bind?.options) part.bind = { ...part.bind, name: translate(part.bind.name.trim()), labels: part.bind.options.map(translate) };
  const names = part.scale?.domain?.filter((value) => typeof value === "string");
  if (part.legend && names?.length)
    part.legend = { ...part.legend, labelExpr: `${JSON.stringify(Object.fromEntries(names.map((name) => [name, translate(name)])))}[datum.label]` };
  return part;
}
