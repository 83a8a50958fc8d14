"""How long a run will take, from what was measured: by it, by one like it, or by a few steps."""

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import torch
from pydantic import TypeAdapter

from onepass.config import Config, build
from onepass.offline import Offline, one_episode
from onepass.registry import BENCHMARKS
from onepass.reproduce.rows import departures, essence
from onepass.run import Run
from onepass.speed import forget, time_steps
from onepass.sweep import Job

# milliseconds a step, by tasks: recipe paper, images, bf16, recorded on one H200 (results/bench)
CARD = {
    "pn": {20: 2.2},
    "gemcl": {20: 2.4},
    "transformer": {20: 3.5, 100: 16.7},
    "linear_transformer": {20: 7.3, 100: 40.2},
    "performer": {20: 6.4},
    "oml": {20: 4.7, 100: 41.2},
    "anml": {20: 96.0},
}
ENOUGH_STEPS = 100  # for some of each phase to be timed
OFFLINE_UPDATES = 20


class Expected(NamedTuple):
    """What is left of a run that is not finished, and what that was measured on."""

    seconds: float | None
    where: str
    on_card: bool = False  # of somebody else


def expected(
    job: Job, others: Sequence[Job], device: torch.device, may_be_on_card: bool
) -> Expected:
    """On this device; where it has no card and may, on the card that was measured."""
    config = job.config
    if (done := steps_done(job)) and (speed := _speed(job)):
        return Expected((config.steps - done) * speed, f" (goes on from step {done:,})")
    wanted = essence(config)
    for other in others:
        if other.is_finished and essence(other.config) == wanted:
            result = Run(other.path).read("result.json")
            each = result["seconds"] / (result["steps"] or config.steps)
            where = f" ({result['device']}, measured by {other.path.name})"
            return Expected(config.steps * each, where)
    is_timed = config.learner.name in CARD and not _resized(config)
    if config.recipe == "paper" and is_timed and may_be_on_card:
        seconds = config.steps * card_seconds(config)
        return Expected(seconds, " (one H200, bf16)", device.type == "cpu")
    if config.recipe == "paper" and device.type == "cpu" and config.learner.name != "offline":
        # a step of the published size takes minutes here
        return Expected(None, "")
    return Expected(measured(config, device), f" ({device.type}, from a few steps just now)")


def card_seconds(config: Config) -> float:
    """Of one step: the nearest number of tasks that was timed, by the examples there are."""
    timed = CARD[config.learner.name]
    nearest = min(timed, key=lambda tasks: abs(tasks - config.tasks))
    examples = config.tasks * (config.shots + config.queries)
    return timed[nearest] / 1_000 * config.batch / 16 * examples / (10 * nearest)


def steps_done(job: Job) -> int:
    """Where an unfinished run goes on."""
    saved = Run(job.path).checkpoints()
    return int(saved[0].stem.removeprefix("step-")) if saved else 0


def _speed(job: Job) -> float | None:
    """Seconds a step, as its log has it."""
    lines = [line for line in Run(job.path).read_metrics() if line.get("seconds")]
    return lines[-1]["seconds"] / lines[-1]["step"] if lines else None


def _resized(config: Config) -> bool:
    """Whether the learner is another one than was timed; its inner rate makes no difference."""
    changed = [text.partition("=")[0] for text in departures(config)]
    return any(key.startswith("learner.") and key != "learner.inner_rate" for key in changed)


def measured(config: Config, device: torch.device) -> float:
    """Seconds of the whole run, from a few real steps taken here and now."""
    if config.learner.name == "offline":
        return _measured_offline(config, device)
    benchmark, learner = build(config)
    longer = replace(config, steps=max(config.steps, ENOUGH_STEPS))
    try:
        timed = time_steps(longer, benchmark, learner, device, 1, False, lambda line: None)
    finally:
        forget(device)
    return config.steps * median(timed.each)


def _measured_offline(config: Config, device: torch.device) -> float:
    options = TypeAdapter(Offline).validate_python(config.learner.options)
    benchmark = BENCHMARKS.build(config.benchmark.name, **config.benchmark.options)
    few = replace(options, updates=OFFLINE_UPDATES)
    one_episode(config, replace(few, updates=1), benchmark, device, 0)
    started = time.monotonic()
    one_episode(config, few, benchmark, device, 0)
    each = (time.monotonic() - started) / OFFLINE_UPDATES
    return options.repeats * options.updates * each


def in_words(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
