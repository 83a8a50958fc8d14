// The page: a drawing, what is said of it, what was taught, and an alphabet to watch.

import { get, pause, post, toBytes, toText } from "./api.js";
import { curve, Matrix, percent } from "./charts.js";
import { bitmap, Paper, show, SIDE } from "./paper.js";

const BETWEEN = 50; // ms between two questions while drawing
const PACE = 180; // ms for a symbol of an alphabet, so that one can watch
const part = (id) => document.getElementById(id);
const drawings = new Map(); // grey values by the number of their example
let about, lesson, model;
let played = []; // the curves of the set that is on show

const paper = new Paper(part("paper"), drawn);

function element(name, className, ...children) {
  const made = document.createElement(name);
  made.className = className;
  made.append(...children);
  return made;
}

function say(id, text, wrong = false) {
  part(id).textContent = text;
  part(id).classList.toggle("wrong", wrong);
}

// the answer while drawing: one question at a time, and the newest drawing next

let stale = false, asking = false, lifted = false;

function drawn(penLifted) {
  part("hint").hidden = !paper.empty;
  lifted = penLifted;
  stale = true;
  if (paper.empty) showAnswers([]);
  seen();
  ask();
}

function seen() {
  part("seen").closest("figure").hidden = paper.empty;
  if (!paper.empty) show(part("seen"), bitmap(paper.strokes), SIDE);
}

async function ask() {
  if (asking) return;
  asking = true;
  while (stale && !paper.empty && lesson.examples.length) {
    stale = false;
    const final = lifted, asked = model;
    try {
      const { answers, ms } = await post("ask", { model, image: toText(bitmap(paper.strokes)) });
      if (!paper.empty && asked === model) {
        showAnswers(answers);
        part("answered").textContent = milliseconds(ms);
        if (final && !stale && answers.length) speak(answers[0]);
      }
    } catch (error) {
      say("note", error.message, true);
    }
    await pause(BETWEEN);
  }
  asking = false;
}

function speak({ label, share }) {
  part("spoken").textContent = `It says ${label}, ${Math.round(100 * share)} percent.`;
}

function showAnswers(answers) {
  const waiting = answers.length === 0;
  part("answer").classList.toggle("waiting", waiting);
  part("answer").textContent = waiting
    ? lesson?.examples.length
      ? "Draw one of them again: it answers while you draw."
      : "Nothing yet: it was shown no symbol."
    : answers[0].label;
  const rows = [...part("bars").children];
  answers.forEach(({ label, share }, n) => {
    // bars are used again, so that they move
    const row = rows[n] ?? part("bars").appendChild(element("li", "",
      element("span", "name"), element("span", "share"),
      element("div", "track", element("div", "fill"))));
    const [name, number, track] = row.children;
    name.textContent = label;
    number.textContent = `${Math.round(100 * share)} %`;
    track.firstChild.style.width = `${100 * share}%`;
  });
  rows.slice(answers.length).forEach((row) => row.remove());
}

// teaching: one change after the other

let changes = Promise.resolve();

function change(path, body) {
  changes = changes.then(() => post(path, body)).then(update);
  const done = changes;
  changes = changes.catch(() => {});
  return done;
}

function teach() {
  const label = part("name").value.trim();
  if (paper.empty) return say("note", "Draw something first.", true), part("paper").focus();
  if (!label) return say("note", "Give it a name first.", true), part("name").focus();
  const strokes = paper.strokes, image = bitmap(strokes);
  paper.replace([]);
  change("teach", { label, image: toText(image) }).then(
    () => {
      drawings.set(lesson.examples.at(-1).number, image);
      render(label);
      say("note", `Taught “${label}”. Draw it again and see.`);
    },
    (error) => {
      say("note", error.message, true);
      if (paper.empty) paper.replace(strokes);
    },
  );
  part("name").select();
}

function update(answer) {
  lesson = answer;
  stale = true;
  ask();
}

async function changed(path, body, words) {
  try {
    await change(path, body);
    // a session that the server dropped, or drawings from before this page was opened again
    if (lesson.examples.some(({ number }) => !drawings.has(number))) await fetchLesson();
    say("status", words);
  } catch (error) {
    say("status", error.message, true);
  }
  render();
}

async function fetchLesson() {
  lesson = await get("lesson");
  for (const { number, image } of lesson.examples) drawings.set(number, toBytes(image));
}

// everything that follows from the lesson

function render(added) {
  const { examples, undo } = lesson;
  const groups = Map.groupBy(examples, ({ label }) => label);
  part("strip").replaceChildren(...[...groups].map(([label, group]) => symbol(label, group, label === added)));
  part("empty").hidden = examples.length > 0;
  part("undo").disabled = !undo;
  part("all").disabled = examples.length === 0;
  part("examples").textContent = String(examples.length);
  part("symbols").textContent = groups.size === 1 ? "of 1 symbol" : `of ${groups.size} symbols`;
  const { growth } = about.models.find(({ name }) => name === model);
  part("bytes").textContent = bytes(lesson.bytes[model]);
  part("growth").textContent = `+ ${bytes(growth)} an example`;
  part("learned").textContent = model in lesson.ms ? milliseconds(lesson.ms[model]) : "–";
  if (paper.empty) showAnswers([]);
}

function symbol(label, group, isNew) {
  const images = group.map(({ number }) => {
    const canvas = element("canvas", "ink");
    if (drawings.has(number)) show(canvas, drawings.get(number), SIDE);
    return canvas;
  });
  const count = element("small", "", ` × ${group.length}`);
  const forget = element("button", "", "×");
  forget.type = "button";
  forget.title = `Forget ${label}`;
  forget.setAttribute("aria-label", `Forget ${label}`);
  forget.addEventListener("click", () => {
    changed("forget", { label }, `Forgot “${label}”: it was shown all the others again, from nothing.`);
    part("undo").focus();
  });
  return element("li", isNew ? "new" : "",
    element("div", "drawings", ...images),
    element("div", "foot", element("span", "name", label, count), forget));
}

function bytes(count) {
  if (count < 1000) return `${count} B`;
  return count < 1e6 ? `${(count / 1e3).toPrecision(3)} kB` : `${(count / 1e6).toPrecision(3)} MB`;
}

function milliseconds(ms) {
  return ms < 10 ? `${ms.toFixed(1)} ms` : `${Math.round(ms)} ms`;
}

// an alphabet, symbol by symbol

let playing = false;

async function play() {
  if (playing) return void (playing = false);
  playing = true;
  part("play").textContent = "Stop";
  const set = part("set").value, name = model;
  try {
    const { symbols, side } = await post("play", { model: name, set });
    if (played[0]?.set !== set) played = [];
    played = played.filter((line) => line.name !== name);
    const line = { name, set, errors: [], first: [] };
    played.push(line);
    showKey();
    say("told", "");
    part("charts").hidden = false;
    const matrix = new Matrix(part("matrix"), symbols.map(toBytes), side, about.queries);
    for (let shown = 0; playing && shown < symbols.length; shown++) {
      const [{ wrong, bytes: held }] = await Promise.all([post("next"), pause(PACE)]);
      line.first.push(wrong.at(-1) / about.queries);
      line.errors.push(mean(wrong) / about.queries);
      matrix.add(wrong);
      curve(part("curve"), played, symbols.length);
      tell(line, wrong, held);
    }
  } catch (error) {
    say("told", error.message, true);
  }
  playing = false;
  part("play").textContent = "Play";
  part("told").textContent ||= part("matrix").getAttribute("aria-label");
}

function tell({ name, set, first, errors }, wrong, held) {
  const shown = wrong.length, early = Math.min(5, shown);
  const then = percent(mean(first.slice(0, early)));
  const now = percent(mean(wrong.slice(0, early)) / about.queries);
  part("played").textContent = String(shown);
  part("drawings").textContent = `from ${shown * about.shots} drawings`;
  part("played-bytes").textContent = bytes(held);
  part("played-by").textContent = name;
  part("early-then").textContent = then;
  part("early-now").textContent = now;
  part("matrix").setAttribute("aria-label",
    `${name} on ${set}, ${shown} symbols: ${percent(errors.at(-1))} wrong. The first five: ${then} when just shown, ${now} now.`);
}

function showKey() {
  part("key").replaceChildren(...played.map(({ name }) => element("span", "line", name)));
}

const mean = (numbers) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;

// the start

function option({ name }, n) {
  const input = element("input", "");
  Object.assign(input, { type: "radio", name: "model", value: name, checked: n === 0 });
  input.addEventListener("change", () => {
    model = name;
    part("answered").textContent = "–";
    render();
    stale = true;
    ask();
  });
  return element("label", "", input, element("span", "", name));
}

part("form").addEventListener("submit", (event) => (event.preventDefault(), teach()));
part("clear").addEventListener("click", () => paper.replace([]));
part("undo").addEventListener("click", () => changed("undo", {}, "Undone."));
part("all").addEventListener("click", () => changed("clear", {}, "Forgot everything. Undo brings it back."));
part("play").addEventListener("click", play);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") paper.replace([]);
  if (event.key === "Enter" && [document.body, part("paper")].includes(event.target)) teach();
});

async function start() {
  about = await get("about");
  model = about.models[0].name;
  part("models").append(element("div", "", ...about.models.map(option)));
  part("set").append(...about.sets.map(({ name }) => new Option(name)));
  await fetchLesson();
  render();
}

await start().catch((error) => say("note", error.message, true));
