// The error while an alphabet is played: over all symbols so far, and of each.

import { show } from "./paper.js";

const WIDTH = 520, HEIGHT = 250;
const LEFT = 52, RIGHT = 58, TOP = 12, BOTTOM = 34;
export const percent = (share) => `${Math.round(100 * share)} %`;

function element(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// One line for each learner that played; the last one is the one that is looked at.
export function curve(place, lines, symbols) {
  const highest = Math.max(0.1, ...lines.flatMap((line) => line.errors));
  const most = highest > 0.5 ? 1 : highest > 0.2 ? 0.5 : highest > 0.1 ? 0.2 : 0.1;
  const x = (n) => LEFT + ((WIDTH - LEFT - RIGHT) * n) / Math.max(1, symbols - 1);
  const y = (error) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * error) / most;
  const parts = [0, 0.5, 1].map((share) => element("g", {},
    element("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share * most), y2: y(share * most) }),
    element("text", { x: LEFT - 8, y: y(share * most) + 4, "text-anchor": "end" }, percent(share * most))));
  for (const n of new Set([1, Math.round(symbols / 2), symbols])) {
    const words = n === 1 ? "1 symbol" : String(n);
    const anchor = n === 1 ? "start" : "middle";
    parts.push(element("text", { x: x(n - 1), y: HEIGHT - 12, "text-anchor": anchor }, words));
  }
  lines.forEach((line, n) => parts.push(one(line, n < lines.length - 1, x, y)));
  const label = lines.map((line) => `${line.name}: ${percent(line.errors.at(-1) ?? 0)}`).join(", ");
  place.replaceChildren(element("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img",
    "aria-label": `Error on all symbols so far, after ${lines.at(-1).errors.length}: ${label}` }, ...parts));
}

function one(line, earlier, x, y) {
  const points = line.errors.map((error, n) => [x(n), y(error)]);
  const group = element("g", earlier ? { class: "earlier" } : {});
  if (points.length === 0) return group;
  const [end_x, end_y] = points.at(-1);
  group.append(
    element("polyline", { class: "line", points: points.map((point) => point.join()).join(" ") }),
    element("circle", { class: "dot", cx: end_x, cy: end_y, r: earlier ? 3 : 4.5 }),
  );
  if (!earlier) {
    const text = { class: "now", x: end_x + 10, y: end_y + 4 };
    group.append(element("text", text, percent(line.errors.at(-1))));
  }
  return group;
}

// A row for each symbol, a column for each moment.
export class Matrix {
  #rows;
  #queries;

  constructor(place, symbols, side, queries) {
    this.#queries = queries;
    this.#rows = symbols.map((grey) => {
      const row = document.createElement("div");
      const [image, cells, now] = ["canvas", "div", "span"].map((name) => document.createElement(name));
      row.className = "symbol";
      cells.className = "cells";
      cells.style.gridTemplateColumns = `repeat(${symbols.length}, 1fr)`;
      image.className = "ink";
      show(image, grey, side);
      row.append(image, cells, now);
      return { row, cells, now };
    });
    place.setAttribute("role", "img");
    place.replaceChildren(...this.#rows.map(({ row }) => row));
  }

  add(wrong) {
    wrong.forEach((count, symbol) => {
      const { row, cells, now } = this.#rows[symbol];
      const cell = document.createElement("div");
      const error = count / this.#queries;
      cell.style.gridColumn = String(wrong.length);
      cell.style.opacity = String(0.14 + 0.86 * error);
      cells.append(cell);
      now.textContent = percent(error);
      row.classList.add("known");
    });
  }
}
