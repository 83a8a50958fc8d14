"""Episodes drawn from a run's own benchmark at its seed, and how each run answers them.

Runs of one benchmark, shape and seed get the same episodes, so that they stand side by side.
"""

import json
import math
from dataclasses import asdict
from typing import NamedTuple

import torch
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from onepass.benchmarks.base import draw as draw_episodes
from onepass.episodes import Episodes
from onepass.evaluation import stderr_of
from onepass.learner import encode_episodes, states
from onepass.plots import INK, letter
from onepass.report.drawing import Plot, look, plot, png
from onepass.report.entries import Entry
from onepass.report.methods import Method
from onepass.run import load_run
from onepass.seeds import generator
from onepass.targets import Classes, angle, pixels

EPISODES, SHEETS, ROWS, IN_A_ROW, POINTS = 8, 2, 6, 5, 400


class Answered(NamedTuple):
    """A run's answers to a few episodes: class numbers [B Q], or decoded vectors [B Q O]."""

    number: int
    label: str
    entry: Entry
    kind: str  # classes, pixels, angle, curve
    x_shape: tuple[int, ...]
    episodes: Episodes
    answers: Tensor
    reads: Tensor | None  # [H Q N] of the first episode
    credit: str


class Verdict(NamedTuple):
    run: str
    answer: str
    right: bool


class Asked(NamedTuple):
    image: str
    verdicts: list[Verdict]


class Row(NamedTuple):
    name: str
    shown: list[str]
    asked: list[Asked]


class Sheet(NamedTuple):
    title: str
    rows: list[Row]
    runs: list[str]


class Completion(NamedTuple):
    title: str
    truth: list[str]
    answers: list[tuple[str, list[str]]]


@torch.no_grad()
def answered(method: Method) -> Answered | None:
    """Of its first seed; None where there is nothing to show, and why is in the entry's notes."""
    entry = method.first
    if not entry.path.is_dir() or not (entry.path / "weights.safetensors").is_file():
        entry.notes.append("it has no weights here, so there are no examples of its answers")
        return None
    try:
        config, benchmark, learner = load_run(entry.path)
        rng = generator(torch.device("cpu"), config.seed, "report")
        episodes = draw_episodes(benchmark, learner.target, "test", config.spec, EPISODES, rng)
    except (ValueError, OSError) as error:
        entry.notes.append(f"there are no examples of its answers: {error}")
        return None
    kind = _kind(learner.target, benchmark.x_shape)
    if kind is None:
        entry.notes.append(f"there is no picture of answers that are {learner.target}")
        return None
    encoded = encode_episodes(learner, episodes)
    (state,) = states(learner, encoded, EPISODES, [config.spec.length])
    if episodes.codes is not None:
        answers = learner.score(state, encoded.queries, episodes.codes).argmax(-1)
    else:
        answers = learner.target.decode(learner.predict(state, encoded.queries))
    reads = learner.read_weights(encoded)
    first = None if reads is None else reads[0]
    given = (kind, benchmark.x_shape, episodes, answers, first, benchmark.credit)
    return Answered(method.number, method.label, entry, *given)


def _kind(target, x_shape: tuple[int, ...]) -> str | None:
    images = len(x_shape) == 3
    kinds = {
        "classes": images and isinstance(target, Classes),
        "pixels": images and target == pixels(math.prod(x_shape)),
        "angle": target == angle(),
        "curve": len(x_shape) == 1 and target.outputs == x_shape[0],
    }
    return next((name for name, fits in kinds.items() if fits), None)


def families(runs: list[Answered]) -> dict[str, list[Answered]]:
    """Runs that were given the same episodes."""
    found: dict[str, list[Answered]] = {}
    for run in runs:
        config = run.entry.config
        same = [asdict(config.benchmark), asdict(config.spec), config.seed]
        found.setdefault(json.dumps(same, sort_keys=True), []).append(run)
    return found


def sheets(runs: list[Answered]) -> list[Sheet]:
    """A few episodes of images by class, every query under the answers of all runs."""
    return [_sheet(runs, n) for n in range(SHEETS)]


def _sheet(runs: list[Answered], episode: int) -> Sheet:
    train, test, _ = runs[0].episodes
    labels = [run.label for run in runs]
    truth = test.task[episode].tolist()
    answers = [run.answers[episode].tolist() for run in runs]
    tasks = max(truth) + 1

    def asked(place: int) -> Asked:
        verdicts = [
            Verdict(label, letter(given[place]), given[place] == truth[place])
            for label, given in zip(labels, answers, strict=True)
        ]
        return Asked(png(test.x[episode, place]), verdicts)

    rows = []
    for k in _spread(tasks, ROWS):
        shown = train.x[episode, train.task[episode] == k][:IN_A_ROW]
        places = [place for place, task in enumerate(truth) if task == k][:IN_A_ROW]
        rows.append(Row(letter(k), [png(image) for image in shown], [asked(p) for p in places]))
    right = [
        f"{label} {sum(a == t for a, t in zip(given, truth, strict=True))} of {len(truth)} right"
        for label, given in zip(labels, answers, strict=True)
    ]
    part = "" if tasks <= ROWS else f" ({ROWS} of {tasks} classes, spread over the stream)"
    question = runs[0].entry.question
    return Sheet(f"{question}, episode {episode + 1}{part}: {', '.join(right)}", rows, labels)


def completion(runs: list[Answered]) -> Completion:
    """Top halves that were given with the bottom halves that were answered, under the truth."""
    _, test, _ = runs[0].episodes
    shape = runs[0].x_shape
    places = _spread(test.x.shape[1], ROWS)

    def whole(bottom: Tensor, place: int) -> str:
        image = torch.cat([test.x[0, place], bottom[0, place].view(shape)], dim=-2)
        return png(image, seam=shape[1])

    errors = [f"{run.label} {_squared(run)}" for run in runs]
    return Completion(
        f"{runs[0].entry.question}: the half below the line is answered; "
        f"squared error {', '.join(errors)}",
        [whole(test.y, place) for place in places],
        [(run.label, [whole(run.answers, place) for place in places]) for run in runs],
    )


def rotation(runs: list[Answered]) -> Plot:
    """True against answered angles."""

    def draw(axis: Axes) -> None:
        axis.plot([0, 360], [0, 360], color=INK, linewidth=0.8)
        for run in runs:
            colour, mark, _ = look(run.number)
            true, given = (
                _degrees(y.flatten(0, 1))[:POINTS].tolist()
                for y in (run.episodes.test.y, run.answers)
            )
            label = run.label
            axis.scatter(true, given, s=14, color=colour, marker=mark, alpha=0.6, label=label)
        ticks = range(0, 361, 90)
        axis.set(xlabel="true angle in degrees", ylabel="answered", xticks=ticks, yticks=ticks)
        axis.set_aspect("equal")

    title = f"{runs[0].entry.question}: answered against true angle; right answers lie on the line"
    off = [f"{run.label} by {_off(run):.0f} degrees" for run in runs]
    return plot(title, f"Half of the answers are off by more than: {', '.join(off)}.", draw, 4.4, 4)


def curves(runs: list[Answered], panels: int = 3) -> list[Plot]:
    """What was given, what was right, what was answered, for queries spread over the stream."""
    _, test, _ = runs[0].episodes

    def panel(place: int) -> Plot:
        task = int(test.task[0, place]) + 1

        def draw(axis: Axes) -> None:
            axis.plot(test.x[0, place].tolist(), color="#868e96", linewidth=0.9, label="input")
            axis.plot(test.y[0, place].tolist(), color=INK, linewidth=1.6, label="true")
            for run in runs:
                colour, _, _ = look(run.number)
                given, label = run.answers[0, place].tolist(), run.label
                axis.plot(given, "--", color=colour, linewidth=1.8, label=label)
            axis.set(xlabel="point", ylabel="height")

        errors = [
            f"{run.label} {(run.answers - test.y)[0, place].square().mean():.3f}" for run in runs
        ]
        question = runs[0].entry.question
        title = f"{question}: a query of task {task}; dashes that cover the line are right"
        return plot(title, f"Squared error: {', '.join(errors)}.", draw)

    return [panel(place) for place in _spread(test.x.shape[1], panels)]


def reads_plot(run: Answered, query: int | None) -> Plot | None:
    """Where one query of the first episode looks in the stream, the mean over heads."""
    if run.reads is None:
        return None
    asked = run.episodes.test.task.shape[1]
    if query is not None and not 1 <= query <= asked:
        raise ValueError(f"--query {query}: {run.entry.path} is asked {asked}, counted from 1")
    place = asked // 2 if query is None else query - 1
    task, stream = run.episodes.test.task[0, place], run.episodes.train.task[0]
    shares = 100 * run.reads[:, place].mean(0)
    own = stream == task
    on_own = shares[own].sum()

    def draw(axis: Axes) -> None:
        def bars(which: Tensor, colour: str, label: str, hatch: str = "") -> None:
            places = (which.nonzero()[:, 0] + 1).tolist()
            axis.bar(places, shares[which].tolist(), color=colour, hatch=hatch, label=label)

        bars(~own, "#868e96", "other tasks")
        # hatched, so that it is told apart without its colour
        bars(own, look(run.number).colour, "its own task", "////")
        axis.set(xlabel="example of the stream", ylabel="share in %", xlim=(0, len(stream) + 1))
        axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, prune="lower"))

    chance = 100 * own.sum() / len(stream)
    title = (
        f"{run.label} on {run.entry.asked}: query {place + 1} reads "
        f"{on_own:.0f}\u00a0% from its own task, which is {chance:.0f}\u00a0% of the stream"
    )
    return plot(title, "Bars: the share of each example, mean over heads.", draw)


def _spread(among: int, count: int) -> list[int]:
    places = torch.linspace(0, among - 1, min(count, among))
    return sorted(set(places.round().int().tolist()))


def _squared(run: Answered) -> str:
    """The mean over a few episodes, and how far it would move with others."""
    each = (run.answers - run.episodes.test.y).square().mean((1, 2))
    return f"{each.mean():.3f} ± {stderr_of(each):.3f}"


def _degrees(directions: Tensor) -> Tensor:
    return torch.rad2deg(torch.atan2(directions[..., 1], directions[..., 0])) % 360


def _off(run: Answered) -> float:
    """The median distance between true and answered angle."""
    apart = (_degrees(run.answers) - _degrees(run.episodes.test.y) + 180) % 360 - 180
    return apart.abs().median().item()
