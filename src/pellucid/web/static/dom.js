// Elements in one call: h("p", { class: "axes" }, "text", child). Text is always text, never markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "style") for (const [name, own] of Object.entries(value)) node.style.setProperty(name, own);
    else if (key === "value" || key === "checked" || key === "open") node[key] = value;
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Replace what an element holds. */
export function put(node, ...children) {
  node.replaceChildren();
  return fill(node, {}, children);
}

/** A colour of the style sheet as a canvas takes it: the one of the theme in force. */
export function ink(name) {
  const probe = document.body.appendChild(h("i", { hidden: true, style: { color: `var(${name})` } }));
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** A formula that our server made. */
export function formula(mathml) {
  const parsed = new DOMParser().parseFromString(mathml, "text/html").querySelector("math");
  return h("div", { class: "formula" }, parsed ? document.adoptNode(parsed) : "");
}

/** A number in at most nine characters. */
export function number(x) {
  if (x === null || Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  return size >= 1e-3 && size < 1e4 ? x.toFixed(4) : x.toExponential(2);
}

export const percent = (x) => `${(100 * x).toFixed(2)} %`;
export const clamp = (x, low, high) => Math.max(low, Math.min(high, x));

/** Call at most once in so many milliseconds, with the last arguments. */
export function calm(call, wait = 250) {
  let timer = 0;
  return (...args) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...args), wait);
  };
}
