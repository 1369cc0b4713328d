// Start, back, step, play and a slider over the steps of something; arrow keys, Home, End and the space bar do the same.

import { clamp, h } from "./dom.js";
import { t } from "./words.js";

/** The step stands in the address as `key`. node.show(step, last): where it is; name(step): what the output says. */
export function player(page, { key = "step", pause = 700, name }) {
  let [at, last, timer] = [0, 0, 0];
  const go = (step) => {
    const next = clamp(step, 0, last);
    if (next !== at) page.change({ [key]: next || "" }, { replace: true });
  };
  const stop = () => { clearInterval(timer); timer = 0; draw(); };
  const play = () => {
    if (timer) return stop();
    if (at === last) go(0);
    timer = setInterval(() => (at < last ? go(at + 1) : stop()), pause);
    return draw();
  };
  const button = (word, call, primary) => h("button", { type: "button", class: primary ? "primary" : null, data: { player: word }, onclick: call });
  const buttons = {
    start: button("start", () => { stop(); go(0); }),
    back: button("back", () => { stop(); go(at - 1); }),
    step: button("step", () => { stop(); go(at + 1); }, true),
    play: button("play", play),
  };
  const slider = h("input", { id: `field-${key}`, type: "range", "aria-label": t("player.name"), min: 0, max: 0, step: 1, oninput: () => { stop(); go(Number(slider.value)); } });
  const said = h("output", {});
  const node = h("div", { class: "player", role: "group", "aria-label": t("player.name") }, h("div", { class: "together" }, Object.values(buttons)),
    h("div", { class: "field wide" }, h("label", { for: `field-${key}` }, said), slider));

  function draw() {
    for (const [word, own] of Object.entries(buttons)) own.textContent = t(word === "play" && timer ? "player.pause" : `player.${word}`);
    for (const word of ["start", "back"]) buttons[word].setAttribute("aria-disabled", String(at === 0));
    buttons.step.setAttribute("aria-disabled", String(at === last));
    buttons.play.setAttribute("aria-pressed", String(timer !== 0));
    Object.assign(slider, { max: last, value: at });
    said.textContent = name(at, last);
  }
  node.show = (step, end) => {
    [at, last] = [step, end];
    draw();
    if (timer && at === last) stop();
  };
  const keys = { ArrowRight: () => go(at + 1), ArrowLeft: () => go(at - 1), Home: () => go(0), End: () => go(last), " ": play };
  document.addEventListener("keydown", (event) => {
    const busy = event.target.closest("input, select, textarea, canvas, .scroll") || (event.key === " " && event.target.closest("button, a, summary"));
    if (busy || event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    if (event.key !== " ") stop();
    keys[event.key]();
  }, { signal: page.signal });
  page.signal.addEventListener("abort", () => clearInterval(timer));
  return node;
}
