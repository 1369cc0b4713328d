// The page of spectra: charts that follow the width and the theme, and a table that sorts. No network.
"use strict";
(() => {
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");

  // ---- charts ---------------------------------------------------------------------------------------------------
  const EDGE = 72; // room for the axis of a panel
  function fitted(spec, room) {
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
    adapt(made, wide > room ? Math.max(3, Math.floor((room - EDGE) / 40)) : 12);
    return made;
  }
  function adapt(part, columns) {
    if (part === null || typeof part !== "object") return;
    if (part.legend && part.legend.columns) part.legend.columns = Math.min(part.legend.columns, columns);
    // On a dark ground the light end of the colours can be seen, and the dark end cannot.
    if (dark.matches && part.scheme && part.scheme.extent) part.scheme.extent = [0.4, 1];
    for (const key of Object.keys(part)) if (key !== "datasets" && key !== "values") adapt(part[key], columns);
  }
  function look() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
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
  let shown = "";
  const views = [];
  async function draw() {
    const boxes = [...document.querySelectorAll(".chart")];
    const room = boxes.length ? boxes[0].clientWidth : 0;
    const state = `${room} ${dark.matches}`;
    if (state === shown) return;
    shown = state;
    views.splice(0).forEach((view) => view.finalize());
    const theme = dark.matches ? "dark" : "light";
    const actions = { export: true, source: false, compiled: false, editor: false };
    for (const [place, box] of boxes.entries()) {
      try {
        const options = { ast: true, actions, renderer: "svg", config: look(), tooltip: { theme }, downloadFileName: `spectra-${place}` };
        const view = await vegaEmbed(box, fitted(specs[place], room), options);
        if (state !== shown) return view.finalize();
        views.push(view);
      } catch (error) {
        box.textContent = `This chart could not be drawn: ${error.message}`;
        box.classList.add("failed");
        console.error(error);
      }
    }
  }
  let waiting = 0;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(draw, 200);
  });
  dark.addEventListener("change", draw);
  draw();

  // ---- the table ------------------------------------------------------------------------------------------------
  const table = document.getElementById("heads");
  const body = table.tBodies[0];
  const order = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // what has no number comes last
    const [x, y] = [Number(a), Number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
  };
  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("button")?.parentElement;
    if (!head) return;
    const down = head.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[head.cellIndex].dataset.v;
    const rows = [...body.rows].sort((a, b) => {
      const missing = value(a) === "" || value(b) === "";
      return down && !missing ? order(value(b), value(a)) : order(value(a), value(b));
    });
    body.append(...rows);
  });
})();
