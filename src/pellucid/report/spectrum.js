// The page of spectra: charts that follow the width and the theme, and a table that sorts. No network.
const specs = JSON.parse(document.getElementById("charts").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");

// ---- charts ---------------------------------------------------------------------------------------------------
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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
      const options = { ast: true, actions, renderer: "svg", config: look(colour), tooltip: { theme }, downloadFileName: `spectra-${place}` };
      const view = await vegaEmbed(box, fitted(specs[place], room, dark.matches), options);
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
