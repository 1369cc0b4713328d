// The whole state of the page is its address: #/view?model=...&text=...&...  Whoever opens it sees the same.

/** What goes along from view to view: what all of them show, and the second model, which one may come back to. */
export const KEPT = ["model", "text", "target", "other", "lang", "theme"];

export function read() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { view: path || "", ...Object.fromEntries(new URLSearchParams(query)) };
}

export function address({ view, ...rest }) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(rest))
    if (value !== undefined && value !== null && value !== "") query.set(key, value);
  return `#/${view}?${query}`;
}

/** Change some of the state; what only one view knows is dropped when the view changes. */
export function change(changes, { replace = false } = {}) {
  const old = read();
  const kept = changes.view && changes.view !== old.view
    ? Object.fromEntries(Object.entries(old).filter(([key]) => KEPT.includes(key)))
    : old;
  const next = address({ ...kept, ...changes });
  if (next === location.hash) return;
  if (replace) {
    history.replaceState(null, "", next);
    dispatchEvent(new HashChangeEvent("hashchange"));
  } else location.hash = next;
}
