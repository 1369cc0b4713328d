// The page of a trace: heat maps enlarge, and cells open the arithmetic behind them. No network, no library.
"use strict";
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const dialog = document.getElementById("detail");
  const title = document.getElementById("detail-title");
  const mapBox = document.getElementById("detail-map");
  const canvas = mapBox.querySelector("canvas");
  const readout = document.getElementById("detail-read");
  const sumBox = document.getElementById("detail-sum");
  const MASKED = 255;

  // ---- values -------------------------------------------------------------------------------------------------
  const decoded = new Map();
  const value = (site) => (site in page.values ? decode(page.values[site]) : null);
  function decode(kept) {
    if (!decoded.has(kept)) {
      const { shape, bits, data } = kept;
      const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
      const numbers = bits === 64 ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
      decoded.set(kept, { shape, numbers });
    }
    return decoded.get(kept);
  }
  function show(x) {
    if (x === -Infinity) return "−∞";
    if (x === 0) return "0";
    const size = Math.abs(x);
    return (size >= 1e-3 && size < 1e5 ? x.toPrecision(7) : x.toExponential(4)).replace("-", "−");
  }
  const tokenOr = (isToken, place) => (isToken ? `${page.tokens[place]} (${place})` : String(place));
  const total = (numbers) => numbers.reduce((sum, x) => sum + x, 0);

  // ---- writing, always as text, so that no token is ever read as markup ----------------------------------------
  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }
  const line = (text) => sumBox.append(element("p", text, "sum"));
  function terms(heads, rows, here) {
    const box = element("div", undefined, "terms");
    const table = element("table");
    const write = (tag, words, className) => {
      const row = element("tr", undefined, className);
      words.forEach((word) => row.append(element(tag, word)));
      table.append(row);
    };
    write("th", heads);
    rows.forEach((row, place) => write("td", row, place === here ? "this" : ""));
    box.tabIndex = 0;
    box.append(table);
    sumBox.append(box);
  }

  // ---- the arithmetic of each kind of step: returns the expanded number, to stand beside the recorded one --------
  const rowOf = (tensor, flat) => {
    const width = tensor.shape[tensor.shape.length - 1];
    const start = flat - (flat % width);
    return { row: Array.from(tensor.numbers.subarray(start, start + width)), here: flat % width };
  };
  const shared = (tensor, head, heads) => Math.floor((head * tensor.shape[0]) / heads);
  const kinds = {
    dot(step, [head, i, j], inputs, flat, recorded) {
      const [query, key] = inputs;
      const width = query.shape[2];
      const start = (head * query.shape[1] + i) * width;
      const other = (shared(key, head, step.shape[0]) * key.shape[1] + j) * width;
      const rows = [];
      const products = [];
      for (let d = 0; d < width; d++) {
        const [q, k] = [query.numbers[start + d], key.numbers[other + d]];
        products.push(q * k);
        rows.push([String(d), show(q), show(k), show(q * k)]);
      }
      const dot = total(products);
      const scaled = dot * step.scale;
      line(`q · k = ${show(dot)}, the sum of ${width} products below`);
      line(`${show(dot)} × scale ${show(step.scale)} = ${show(scaled)}`);
      if (recorded === -Infinity) line("The mask hides this key from this query: M = −∞.");
      else if (step.bias) line(`The position bias B adds the rest: ${show(recorded - scaled)}`);
      terms(["d", "query", "key", "product"], rows);
      return recorded === -Infinity ? -Infinity : step.bias ? recorded : scaled;
    },
    softmax(step, index, [scores], flat) {
      const { row, here } = rowOf(scores, flat);
      const highest = row.reduce((a, b) => Math.max(a, b), -Infinity);
      if (highest === -Infinity) { line("Nothing in this row is visible: the weights are 0."); return 0; }
      const powers = row.map((x) => Math.exp(x - highest));
      const sum = total(powers);
      line(`The highest number of the row, m = ${show(highest)}, is taken off first; it cancels.`);
      line(`e^(${show(row[here])} − m) / Σ = ${show(powers[here])} / ${show(sum)} = ${show(powers[here] / sum)}`);
      terms([step.column, "x", "e^(x − m)", "share"],
        row.map((x, j) => [tokenOr(step.columns, j), show(x), show(powers[j]), show(powers[j] / sum)]), here);
      return powers[here] / sum;
    },
    relu(step, index, [scores], flat) {
      const { row, here } = rowOf(scores, flat);
      const kept = row.map((x) => Math.max(x, 0));
      const sum = total(kept);
      line(sum > 0 ? `max(${show(row[here])}, 0) / Σ = ${show(kept[here])} / ${show(sum)}` : "The row has no positive score: 0.");
      terms([step.column, "x", "max(x, 0)"], row.map((x, j) => [tokenOr(step.columns, j), show(x), show(kept[j])]), here);
      return sum > 0 ? kept[here] / sum : 0;
    },
    mix(step, [head, i, d], [weights, values]) {
      const [, queries, keys] = weights.shape;
      const group = shared(values, head, step.shape[0]);
      const rows = [];
      const products = [];
      for (let j = 0; j < keys; j++) {
        const a = weights.numbers[(head * queries + i) * keys + j];
        const v = values.numbers[(group * keys + j) * values.shape[2] + d];
        products.push(a * v);
        rows.push([tokenOr(step.rows && keys === page.tokens.length, j), show(a), show(v), show(a * v)]);
      }
      line(`Σ weight × value = ${show(total(products))}, the sum of ${keys} products below`);
      terms(["key", "weight", "value", "product"], rows);
      return total(products);
    },
    norm(step, index, inputs, flat) {
      const rows = inputs.map((tensor) => rowOf(tensor, flat));
      const { here } = rows[0];
      const row = rows[0].row.map((_, k) => total(rows.map((one) => one.row[k])));
      const mean = step.centred ? total(row) / row.length : 0;
      const variance = total(row.map((x) => (x - mean) ** 2)) / row.length;
      const normed = (row[here] - mean) / Math.sqrt(variance + step.epsilon);
      const result = step.gain[here] * normed + step.shift[here];
      if (rows.length > 1) line(`x = ${rows.map((one) => show(one.row[here])).join(" + ")} = ${show(row[here])}`);
      line(step.centred ? `mean μ = ${show(mean)}, variance σ² = ${show(variance)}, ε = ${show(step.epsilon)}`
        : `mean square = ${show(variance)}, ε = ${show(step.epsilon)}`);
      line(step.centred ? `(${show(row[here])} − μ) / √(σ² + ε) = ${show(normed)}`
        : `${show(row[here])} / √(mean square + ε) = ${show(normed)}`);
      line(`γ ${show(step.gain[here])} × ${show(normed)} + β ${show(step.shift[here])} = ${show(result)}`);
      terms(["width", "x", "(x − μ)²"], row.map((x, k) => [String(k), show(x), show((x - mean) ** 2)]), here);
      return result;
    },
    linear(step, index, [input]) {
      const [matrix, shift] = [decode(step.matrix), decode(step.shift)];
      const [width, outputs] = matrix.shape;
      const [i, output] = index.length > 2 ? [index[1], index[0] * step.shape[2] + index[2]] : index;
      const each = input.shape[input.shape.length - 1];
      const tokens = input.shape[input.shape.length - 2];
      const rows = [];
      const products = [];
      for (let k = 0; k < width; k++) {
        const x = input.numbers[(Math.floor(k / each) * tokens + i) * each + (k % each)];
        const w = matrix.numbers[k * outputs + output];
        products.push(x * w);
        rows.push([String(k), show(x), show(w), show(x * w)]);
      }
      const result = total(products) + shift.numbers[output];
      line(`x · w = ${show(total(products))}, the sum of ${width} products below`);
      line(`${show(total(products))} + bias ${show(shift.numbers[output])} = ${show(result)}`);
      terms(["k", "input x", "weight w", "product"], rows);
      return result;
    },
    sum(step, index, inputs, flat) {
      const parts = inputs.map((tensor) => tensor.numbers[flat]);
      terms(["from", "value"], parts.map((x, k) => [step.sites[k + 1], show(x)]));
      line(`${parts.map(show).join(" + ")} = ${show(total(parts))}`);
      return total(parts);
    },
    apply(step, index, [input], flat, recorded) {
      line(`f(${show(input.numbers[flat])}) = ${show(recorded)}`);
      return recorded;
    },
  };

  function open(site, index) {
    const step = page.steps[site];
    const cell = `${site}[${index.join(",")}]`;
    title.textContent = cell;
    sumBox.replaceChildren();
    const names = index.slice(-2);
    if (step.rows) line(`row: ${tokenOr(true, names[0])}${step.columns ? `, column: ${tokenOr(true, names[1])}` : ""}`);
    const own = value(site);
    if (!step.kind || !own) {
      line("The arithmetic of this cell is not in this page. This command gives it:");
      sumBox.append(element("code", page.command.replace("CELL", () => cell)));
    } else {
      const flat = index.reduce((sum, place, axis) => sum * step.shape[axis] + place, 0);
      const recorded = own.numbers[flat];
      const expanded = kinds[step.kind](step, index, step.sites.slice(1).map(value), flat, recorded);
      const off = expanded === recorded ? 0 : Math.abs(expanded - recorded);
      line(`The model computed ${show(recorded)}; written out, it differs by ${off === 0 ? "0" : off.toExponential(1)}.`);
    }
    if (!dialog.open) dialog.showModal();
  }

  // ---- tables: one stop of the Tab key each, arrow keys inside --------------------------------------------------
  const indexOf = (site, slice, row, column) => {
    const axes = page.steps[site].shape.length;
    return [slice, row, column].slice(3 - axes);
  };
  function openCell(cell) {
    const table = cell.closest("table");
    mapBox.hidden = true;
    open(table.dataset.site, indexOf(table.dataset.site, +table.dataset.slice, cell.parentNode.rowIndex - 1, cell.cellIndex - 1));
  }
  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.querySelectorAll("table.values").forEach((table) => {
    const cells = table.tBodies[0].querySelectorAll("td");
    cells.forEach((cell, place) => { cell.tabIndex = place ? -1 : 0; });
    table.addEventListener("click", (event) => {
      const cell = event.target.closest("tbody td");
      if (cell) openCell(cell);
    });
    table.addEventListener("keydown", (event) => {
      const cell = event.target.closest("tbody td");
      if (!cell) return;
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); openCell(cell); }
      if (!(event.key in step)) return;
      event.preventDefault();
      const [down, right] = step[event.key];
      const next = table.rows[cell.parentNode.rowIndex + down]?.cells[cell.cellIndex + right];
      if (next && next.matches("tbody td")) { cell.tabIndex = -1; next.tabIndex = 0; next.focus(); }
    });
  });

  // ---- heat maps: the colours are read back into levels, so that a small image is all that is stored ------------
  const levelOf = Object.fromEntries(Object.entries(page.palettes).map(([name, colours]) =>
    [name, new Map(colours.map(([r, g, b], level) => [(r << 16) | (g << 8) | b, level]))]));
  let current = null;
  async function enlarge(button) {
    const image = button.querySelector("img");
    await image.decode();
    const [columns, rows] = [image.naturalWidth, image.naturalHeight];
    const plain = new OffscreenCanvas(columns, rows).getContext("2d");
    plain.drawImage(image, 0, 0);
    const pixels = plain.getImageData(0, 0, columns, rows).data;
    const known = levelOf[button.dataset.palette];
    const levels = new Uint8Array(rows * columns);
    for (let k = 0; k < levels.length; k++)
      levels[k] = known.get((pixels[4 * k] << 16) | (pixels[4 * k + 1] << 8) | pixels[4 * k + 2]) ?? MASKED;
    current = { data: button.dataset, image, columns, rows, levels, at: [0, 0] };
    const room = Math.min(920, window.innerWidth - 50);
    const wide = Math.max(1, Math.floor(room / columns));
    const tall = Math.max(1, Math.min(32, rows * 4 < columns ? Math.floor(240 / rows) : Math.min(wide, Math.floor(640 / rows))));
    current.cell = [Math.min(wide, rows * 4 < columns ? wide : Math.max(tall, 1)), tall];
    canvas.width = columns * current.cell[0];
    canvas.height = rows * tall;
    mapBox.hidden = false;
    sumBox.replaceChildren();
    title.textContent = `${button.dataset.site} ${button.parentNode.querySelector("figcaption").firstChild.textContent}`;
    if (!dialog.open) dialog.showModal();
    paint();
    read();
    canvas.focus();
  }
  function paint() {
    const { image, columns, rows, levels, cell: [wide, tall], at } = current;
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.drawImage(image, 0, 0, canvas.width, canvas.height);
    if (wide > 3 && tall > 3) {
      pen.strokeStyle = "#555";
      pen.beginPath();
      for (let k = 0; k < levels.length; k++) {
        if (levels[k] !== MASKED) continue;
        const [x, y] = [(k % columns) * wide, Math.floor(k / columns) * tall];
        pen.moveTo(x, y + tall); pen.lineTo(x + wide, y);
      }
      pen.stroke();
    }
    pen.lineWidth = 2;
    pen.strokeStyle = "#00c2ff";
    pen.strokeRect(at[1] * wide, at[0] * tall, Math.max(wide, 4), Math.max(tall, 4));
    pen.lineWidth = 1;
  }
  function places(count, each, pixel, isToken) {
    const first = pixel * each;
    const last = Math.min(count, first + each) - 1;
    return first === last ? tokenOr(isToken, first) : `${tokenOr(isToken, first)} to ${tokenOr(isToken, last)}`;
  }
  function read() {
    const { data, columns, levels, at: [row, column] } = current;
    const meta = page.steps[data.site];
    const [height, width] = meta.shape.length > 1 ? meta.shape.slice(-2) : [1, meta.shape[0]];
    const level = levels[row * columns + column];
    const exact = +data.rows * +data.columns === 1 ? value(data.site) : null;
    let text = "masked";
    if (level !== MASKED && exact) text = show(exact.numbers[(+data.slice * height + row) * width + column]);
    else if (level !== MASKED) text = `≈ ${show(+data.low + (level / 254) ** +data.root * (+data.high - +data.low))} (8 bits)`;
    readout.textContent = `row ${places(height, +data.rows, row, meta.rows)}, column ${places(width, +data.columns, column, meta.columns)}: ${text}`;
  }
  function moveTo(row, column) {
    current.at = [Math.max(0, Math.min(current.rows - 1, row)), Math.max(0, Math.min(current.columns - 1, column))];
    paint();
    read();
  }
  function pointed(event) {
    const box = canvas.getBoundingClientRect();
    moveTo(Math.floor(((event.clientY - box.top) / box.height) * current.rows),
      Math.floor(((event.clientX - box.left) / box.width) * current.columns));
  }
  function openPixel() {
    const { data, at: [row, column] } = current;
    open(data.site, indexOf(data.site, +data.slice, row * +data.rows, column * +data.columns));
    if (+data.rows * +data.columns > 1) line("A pixel covers several cells; this is the first of them.");
  }
  document.querySelectorAll("figure button").forEach((button) => button.addEventListener("click", () => enlarge(button)));
  canvas.addEventListener("mousemove", pointed);
  canvas.addEventListener("click", (event) => { pointed(event); openPixel(); });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); openPixel(); }
    if (!(event.key in step)) return;
    event.preventDefault();
    moveTo(current.at[0] + step[event.key][0], current.at[1] + step[event.key][1]);
  });

  // A link to a step opens the block that holds it.
  const reveal = () => document.getElementById(decodeURIComponent(location.hash.slice(1)))?.closest("details")?.setAttribute("open", "");
  addEventListener("hashchange", () => { reveal(); document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView(); });
  reveal();
})();
