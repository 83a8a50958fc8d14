"""Streaming cost: what the next example and the next query take, against how many came before."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from onepass.config import build, override
from onepass.devices import pick_device
from onepass.files import check_target, write_json
from onepass.learner import Learner
from onepass.plots import check_picture, growth, in_bytes, save_figure
from onepass.progress import progress
from onepass.recipes import make_config
from onepass.registry import LEARNERS
from onepass.run import Run, environment, load_run
from onepass.timing import card_name, seconds_each
from onepass.tree import state_bytes

FED = 100  # examples at a time on the way to the next length
REPEATS = 20


@dataclass(frozen=True)
class Cost:
    """Of a learner that has seen so many examples; times are medians, each with its quartiles."""

    learner: str
    examples: int
    state_bytes: int
    observe_ms: float  # one more example
    observe_ms_low: float
    observe_ms_high: float
    predict_ms: float  # one query
    predict_ms_low: float
    predict_ms_high: float
    encode_ms: float  # one x, and one y: before either, and the same at any length
    encode_y_ms: float
    device: str
    card: str
    torch: str
    threads: int
    date: str
    commit: str | None


def cost(
    names: Sequence[str],
    settings: Sequence[str],
    lengths: Sequence[int],
    device: str,
    json_file: Path | None,
    out: Path,
) -> list[Cost]:
    """Runs or learners, each fed a stream of its own; a picture of all, and a file if wanted."""
    if not names:
        raise ValueError("cost needs the folder of a run, or the name of a learner")
    for target in filter(None, (json_file, out)):
        check_target(target)
    check_picture(out)
    where = pick_device(device)
    facts = environment()
    about = {key: facts[key] for key in ("torch", "threads", "date", "commit")}
    about |= {"device": where.type, "card": card_name(where)}
    built = {name: fresh_or_trained(name, settings) for name in names}
    rows: list[Cost] = []
    for name, (learner, x_shape) in built.items():
        with progress(f"streaming to {name}", lengths[-1]) as show:
            found = streamed(learner.to(where), x_shape, lengths, where, show)
        rows += [Cost(learner=name, **figures, **about) for figures in found]
    if json_file:
        write_json(json_file, [asdict(row) for row in rows])
    save_figure(_picture(rows), out)
    return rows


def fresh_or_trained(name: str, settings: Sequence[str]) -> tuple[Learner, tuple[int, ...]]:
    """A run's trained learner, or a new one for Omniglot's images; and the shape of an x."""
    if Run(Path(name)).has("config.json") or (Path(name).is_dir() and name not in LEARNERS):
        if settings:
            raise ValueError(f"{name} is a run and has its settings; {settings[0]} is for a name")
        _, benchmark, learner = load_run(name)
    elif ":" in name or name in LEARNERS:
        config = override(make_config("paper", "omniglot", name), settings)
        benchmark, learner = build(config)
    else:
        choices = ", ".join(LEARNERS)
        raise ValueError(f"no run and no learner {name!r}; learners are: {choices}")
    return learner.eval(), benchmark.x_shape


@torch.no_grad()
def streamed(
    learner: Learner,
    x_shape: tuple[int, ...],
    lengths: Sequence[int],
    device: torch.device,
    tick: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """Figures after each number of examples, in ascending order."""
    rng = torch.Generator(device).manual_seed(0)
    x, y = noise(learner, x_shape, 1, rng)
    encode = seconds_each(lambda: learner.encode(x), REPEATS, device)
    encode_y = seconds_each(lambda: learner.encode_y(y), REPEATS, device)
    z, told = learner.encode(x), learner.encode_y(y)
    state, found = learner.init_state(1), []
    for before, length in pairwise([0, *lengths]):
        for start in range(before, length, FED):
            fed_x, fed_y = noise(learner, x_shape, min(FED, length - start), rng)
            state = learner.observe(state, learner.encode(fed_x), learner.encode_y(fed_y))
            tick(min(start + FED, length))
        # the state goes in and comes out, so that the same step can be taken again and again
        observe = seconds_each(partial(learner.observe, state, z, told), REPEATS, device)
        predict = seconds_each(partial(learner.predict, state, z), REPEATS, device)
        figures = {
            "examples": length,
            "state_bytes": state_bytes(state),
            **_milliseconds("observe", observe),
            **_milliseconds("predict", predict),
            "encode_ms": 1e3 * median(encode),
            "encode_y_ms": 1e3 * median(encode_y),
        }
        found.append(figures)
    return found


def noise(
    learner: Learner, x_shape: tuple[int, ...], count: int, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Examples that mean nothing: what an example costs does not depend on what it shows."""
    device = rng.device
    x = 2 * torch.rand(1, count, *x_shape, generator=rng, device=device) - 1
    y = learner.target.blank(count).to(device)
    if y.is_floating_point():
        return x, torch.rand(y.shape, generator=rng, device=device)
    return x, torch.randint(learner.target.outputs, y.shape, generator=rng, device=device)


def _milliseconds(verb: str, seconds: list[float]) -> dict[str, float]:
    low, middle, high = (1e3 * value for value in quantiles(seconds, n=4))
    return {f"{verb}_ms": middle, f"{verb}_ms_low": low, f"{verb}_ms_high": high}


def _picture(rows: Sequence[Cost]) -> Figure:
    figure = Figure(figsize=(12, 4.2), layout="constrained")
    axes = figure.subplots(1, 3)
    panels = {
        "observe_ms": "ms to observe one example",
        "predict_ms": "ms to answer one query",
        "state_bytes": "bytes of state",
    }
    for axis, (key, label) in zip(axes, panels.items(), strict=True):
        lines: dict[str, list[list[float]]] = {}
        for row in rows:
            figures = asdict(row)
            spread = [figures.get(f"{key}{end}", figures[key]) for end in ("", "_low", "_high")]
            lines.setdefault(row.learner, []).append([row.examples, *spread])
        growth(axis, lines, label, in_bytes if key == "state_bytes" else "{:g}".format)
    handles, names = axes[0].get_legend_handles_labels()
    figure.legend(handles, names, frameon=False, fontsize=8, loc="outside lower center", ncols=6)
    figure.suptitle(f"What the next example costs after n others ({rows[0].card})")
    return figure
