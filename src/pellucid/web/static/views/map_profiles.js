// Profiles along the edges of the map, scrolled and zoomed with it.

import { ink } from "../dom.js";

const most = (values) => values.reduce((high, x) => (x > high ? x : high), 1e-9);

/** A curve: along(k) and value(k) in canvas pixels. */
function curve(pen, values, colour, point) {
  pen.beginPath();
  pen.strokeStyle = colour;
  pen.lineWidth = values.length > 512 ? 1 : 1.5;
  values.forEach((x, k) => pen[k ? "lineTo" : "moveTo"](...point(k, x)));
  pen.stroke();
}

export function profileDown(canvas, { arrays, queries }, { y, zoom }, room) {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, canvas.width, room);
  for (const [name, colour] of [["entropy", "--curve-a"], ["sink", "--curve-b"]]) {
    const { values } = arrays[name];
    const each = queries / values.length;
    const high = name === "sink" ? 1 : most(values);
    curve(pen, values, ink(colour), (k, x) => [4 + (x / high) * (canvas.width - 8), ((k + 0.5) * each - y) * zoom]);
  }
}

export function profileAcross(canvas, { arrays, keys }, { x: left, zoom }, room) {
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, room, canvas.height);
  const { values } = arrays.received;
  const each = keys / values.length;
  const high = most(values);
  curve(pen, values, ink("--curve-c"), (k, x) => [((k + 0.5) * each - left) * zoom, canvas.height - 4 - (x / high) ** (1 / 3) * (canvas.height - 8)]);
}
