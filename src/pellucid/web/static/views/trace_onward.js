// Where a number goes: a cell of every step that reads it, on the way to the last token's prediction.

import { clamp } from "../dom.js";

const FULL = 3; // slices, rows, columns

/** [{ site, index }]: each depends on the cell given. */
export const onward = (story, site, index) => story.steps.filter(({ inputs }) => inputs.includes(site)).map((step) => ({
  site: step.site, index: reader(story, story.steps.find((own) => own.site === site), padded(index), step),
}));

const padded = (list, fill = 0) => [...Array(FULL).fill(fill), ...list].slice(-FULL);
const kind = (site) => site.split(".").at(-1);

function reader(story, from, [slice, row, column], step) {
  const [slices, rows, columns] = padded(step.shape, 1);
  const [shared] = padded(from.shape, 1);
  // Keys and values are what the last query sees of a token; anything else stays with its token.
  const looked = ["key", "value"].includes(kind(from.site)) && ["scores", "heads"].includes(kind(step.site));
  const to = { row: looked ? rows - 1 : clamp(row, 0, rows - 1), column };
  if (kind(step.site) === "scores") to.column = looked ? row : 0;
  if (step.axes.at(-1) === "vocab") to.column = likeliest(story.arrays[step.site], to.row) ?? column;
  const full = [clamp(Math.floor((slice * slices) / shared), 0, slices - 1), to.row, clamp(to.column, 0, columns - 1)];
  return full.slice(FULL - step.shape.length);
}

function likeliest(array, row) {
  if (!array) return null;
  const columns = array.shape.at(-1);
  const values = array.values.subarray(row * columns, (row + 1) * columns);
  return values.indexOf(values.reduce((most, x) => Math.max(most, x), -Infinity));
}
