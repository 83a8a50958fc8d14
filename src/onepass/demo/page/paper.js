// Paper to draw on with mouse, pen, finger or keys. A drawing is its strokes, in units of the
// paper's side; what the learner gets is those strokes inked anew as the scans of Omniglot are.

export const SIDE = 105;
const PEN = 5; // pixels, as wide as the lines of the scans
const LONGER = 60; // pixels: the longer edge of what is drawn, which there is 65 with the ink
const SMALLEST = 0.12; // of the paper: what is smaller stays small, so that a dot is a dot
const LINE = 0.03; // of the paper, while drawing
const STEP = 0.04; // of the paper, for one press of an arrow key
const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

// Grey values, row by row: black ink on white, in the middle, always of one size.
export function bitmap(strokes) {
  const canvas = new OffscreenCanvas(SIDE, SIDE);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.fillStyle = "#fff";
  context.fillRect(0, 0, SIDE, SIDE);
  const xs = strokes.flat().map(([x]) => x);
  const ys = strokes.flat().map(([, y]) => y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = LONGER / Math.max(right - left, bottom - top, SMALLEST);
  const place = ([x, y]) => [
    SIDE / 2 + scale * (x - (left + right) / 2),
    SIDE / 2 + scale * (y - (top + bottom) / 2),
  ];
  ink(context, strokes, place, PEN, "#000");
  const { data } = context.getImageData(0, 0, SIDE, SIDE);
  return Uint8Array.from({ length: SIDE * SIDE }, (_, n) => data[4 * n]);
}

// Grey values as ink alone, on whatever is behind the canvas.
export function show(canvas, grey, side) {
  canvas.width = canvas.height = side;
  const image = new ImageData(side, side);
  grey.forEach((value, n) => (image.data[4 * n + 3] = 255 - value));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function ink(context, strokes, place, width, colour) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  context.strokeStyle = colour;
  for (const stroke of strokes) {
    const points = stroke.map(place);
    context.beginPath();
    context.moveTo(...points[0]);
    // through the middles, so that the corners of a quick hand are round
    for (let n = 1; n < points.length - 1; n++) {
      const [[x, y], [next_x, next_y]] = [points[n], points[n + 1]];
      context.quadraticCurveTo(x, y, (x + next_x) / 2, (y + next_y) / 2);
    }
    // a dot needs some length, or there is no ink
    const [x, y] = points.at(-1);
    context.lineTo(x + 0.01, y);
    context.stroke();
  }
}

export class Paper {
  strokes = [];
  #canvas;
  #pointer = null; // that draws
  #pen = [0.5, 0.5]; // of the keyboard
  #down = false;
  #keys = false; // whether the keyboard draws
  #changed;

  // `changed(lifted)` is called with every change; lifted: the pen was, so this may be all.
  constructor(canvas, changed) {
    this.#canvas = canvas;
    this.#changed = changed;
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      canvas.addEventListener(name, (event) => this.#end(event));
    }
    canvas.addEventListener("keydown", (event) => this.#press(event));
    canvas.addEventListener("blur", () => this.#lift());
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  get empty() {
    return this.strokes.length === 0;
  }

  replace(strokes) {
    this.strokes = strokes;
    this.#down = false;
    this.#pointer = null;
    this.draw();
    this.#changed(true);
  }

  draw() {
    const side = Math.round(this.#canvas.clientWidth * devicePixelRatio);
    if (side !== this.#canvas.width) this.#canvas.width = this.#canvas.height = side;
    const context = this.#canvas.getContext("2d");
    context.clearRect(0, 0, side, side);
    const style = getComputedStyle(this.#canvas);
    ink(context, this.strokes, ([x, y]) => [x * side, y * side], LINE * side, style.color);
    if (this.#keys && document.activeElement === this.#canvas) {
      context.beginPath();
      context.arc(this.#pen[0] * side, this.#pen[1] * side, LINE * side, 0, 7);
      context.lineWidth = 2 * devicePixelRatio;
      context.strokeStyle = style.getPropertyValue("--accent");
      context.stroke();
    }
  }

  #place(event) {
    const box = this.#canvas.getBoundingClientRect();
    const within = (value) => Math.min(1, Math.max(0, value));
    return [within((event.clientX - box.left) / box.width), within((event.clientY - box.top) / box.height)];
  }

  #begin(event) {
    if (event.button !== 0 || this.#pointer !== null) return;
    this.#pointer = event.pointerId;
    this.#canvas.setPointerCapture(event.pointerId);
    this.#keys = this.#down = false;
    this.strokes.push([this.#place(event)]);
    this.draw();
    this.#changed(false);
  }

  #move(event) {
    if (event.pointerId !== this.#pointer) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const each of events.length ? events : [event]) this.strokes.at(-1).push(this.#place(each));
    this.draw();
    this.#changed(false);
  }

  #end(event) {
    if (event.pointerId !== this.#pointer) return;
    this.#pointer = null;
    this.#changed(true);
  }

  #press(event) {
    if (event.key === " ") {
      if (this.#down) this.#lift();
      else this.strokes.push([[...this.#pen]]), (this.#down = true);
    } else if (event.key in ARROWS) {
      const [x, y] = ARROWS[event.key];
      const step = event.shiftKey ? STEP / 4 : STEP;
      this.#pen = [this.#pen[0] + step * x, this.#pen[1] + step * y].map((v) => Math.min(1, Math.max(0, v)));
      if (this.#down) this.strokes.at(-1).push([...this.#pen]);
    } else return;
    event.preventDefault();
    this.#keys = true;
    this.draw();
    this.#changed(!this.#down);
  }

  #lift() {
    const drew = this.#down;
    this.#down = false;
    this.draw();
    if (drew) this.#changed(true);
  }
}
