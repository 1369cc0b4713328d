// How a chart takes the room and the colours of its page.

const EDGE = 72; // room for the axis of a panel

/** A definition for so many pixels across: panels side by side where they fit, one below the other where not. */
export function fitted(spec, room, dark) {
  const made = structuredClone(spec);
  const wide = made.hconcat.reduce((sum, panel) => sum + panel.width + EDGE, 0);
  if (wide > room) {
    made.vconcat = made.hconcat;
    delete made.hconcat;
    made.vconcat.forEach((panel) => (panel.width = Math.min(panel.width, room - EDGE)));
  } else {
    const count = made.hconcat.length;
    const each = Math.floor((room - (made.spacing ?? 0) * (count - 1)) / count) - EDGE;
    made.hconcat.filter((panel) => panel.width >= 400).forEach((panel) => (panel.width = Math.min(each, 520)));
  }
  adapt(made, wide > room ? Math.max(3, Math.floor((room - EDGE) / 40)) : 12, dark);
  return made;
}

function adapt(part, columns, dark) {
  if (part === null || typeof part !== "object") return;
  if (part.legend && part.legend.columns) part.legend.columns = Math.min(part.legend.columns, columns);
  // On a dark ground the light end of the colours can be seen, and the dark end cannot.
  if (dark && part.scheme && part.scheme.extent) part.scheme.extent = [0.4, 1];
  for (const key of Object.keys(part)) if (key !== "datasets" && key !== "values") adapt(part[key], columns, dark);
}

/** Vega's settings in the page's colours; colour: gives one by its name in the style sheet. */
export function look(colour) {
  const words = { labelColor: colour("--quiet"), titleColor: colour("--ink") };
  const line = colour("--line");
  return {
    background: null,
    font: "system-ui, sans-serif",
    axis: { ...words, gridColor: line, tickColor: line, domainColor: line },
    legend: words,
    title: { color: colour("--ink"), subtitleColor: colour("--quiet") },
  };
}
