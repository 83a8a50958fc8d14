"""Recipes: functions that fill in a Config. The docstring of each is its card."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onepass.config import Component, Config
from onepass.registry import BENCHMARKS, LEARNERS

# what the published numbers were made with where it differs from what is right
PUBLISHED_BENCHMARKS = {"validation": False, "label_shift": False}
PUBLISHED_LEARNERS = {"gemcl": {"density": "published"}}
# the Performer's queries come mid-stream at first, for 10,000 of 50,000 steps
MIDSTREAM_AT_FIRST = ("performer",)


def paper(benchmark: str, learner: str) -> Config:
    """Whatever made the published numbers, quirks included.

    So there are no validation classes, rotation has no shift of its labels, and encoders have
    batch-norm.

    onepass train omniglot transformer --tasks 20 --recipe paper
    5 minutes on one H200 (50,000 steps of 4 ms); expect 13 to 14 % meta-test error.
    onepass train omniglot pn --tasks 20 --recipe paper
    3 minutes there (2 ms a step); expect 3.7 %.
    """
    takes = BENCHMARKS.options(benchmark)
    data = {key: value for key, value in PUBLISHED_BENCHMARKS.items() if key in takes}
    return Config(
        Component(benchmark, data),
        Component(learner, PUBLISHED_LEARNERS.get(learner, {})),
        recipe="paper",
        objective="midstream" if learner in MIDSTREAM_AT_FIRST else "final",
        objective_steps="guided" if learner in MIDSTREAM_AT_FIRST else None,
    )


def tiny(benchmark: str, learner: str) -> Config:
    """The paper's settings at sizes that a CPU gets through in a minute: to try things out.

    onepass reproduce table1 --only omniglot --steps 200 --seeds 1 --tiny
    3 minutes on two CPU cores; the numbers mean nothing.
    """
    published = paper(benchmark, learner)
    small: dict[str, Any] = {"width": 32, "layers": 1, "heads": 2, "channels": [8] * 5}
    if learner in ("oml", "oml_xl"):
        small = {"width": 32, "hidden": 32}
    if benchmark != "sine":
        small |= {"encoder": "cnn_small"}
    takes = ("width", "encoder") if learner == "offline" else LEARNERS.options(learner)
    options = {key: value for key, value in small.items() if key in takes}
    if learner == "offline":
        options |= {"repeats": 2, "updates": 20}
    return replace(
        published,
        learner=replace(published.learner, options=published.learner.options | options),
        recipe="tiny",
        tasks=5,
        steps=200,
        halve_every=10_000,
        batch=4,
        checkpoint_every=50,
        evaluation_episodes=32,
        evaluation_batch=16,
    )


def quickstart(benchmark: str, learner: str) -> Config:
    """A small learner that gets there in minutes on two CPU cores, and is meant for `glyphs`.

    onepass train glyphs transformer --recipe quickstart
    2 to 4 minutes on two CPU cores; expect 5 to 6 % meta-test error, where chance is 80 %.
    """
    bank = {"bank": 2_000, "bank_samples": 16} if benchmark == "glyphs" else {}
    small: dict[str, Any] = {"encoder": "cnn_small"} if benchmark == "glyphs" else {}
    if "block_norm" in LEARNERS.options(learner):  # any sequence learner
        small |= {"width": 128, "layers": 2, "heads": 4, "dropout": 0.0, "block_norm": "layer"}
    options = {key: value for key, value in small.items() if key in LEARNERS.options(learner)}
    return Config(
        Component(benchmark, bank),
        Component(learner, options),
        recipe="quickstart",
        tasks=5,
        shots=3,
        queries=3,
        steps=1_000,
        rate=1e-3,
        halve_every=500,
        guidance_steps=300,
        evaluation_episodes=256,
    )


def symbols(benchmark: str, learner: str) -> Config:
    """Learners to ship: any number of classes and examples in any order, asked at any time.

    onepass train symbols sequence --recipe symbols mixer=delta
    Tokens are joint and have no positions, so that no stream is too long; 1,024 tied codes.
    """
    wide: dict[str, Any] = {"width": 256, "heads": 4, "block_norm": "layer", "vocabulary": 1_024}
    wide |= {"tokens": "joint", "positions": False, "tied": True, "dropout": 0.0}
    options = {key: value for key, value in wide.items() if key in LEARNERS.options(learner)}
    return Config(
        Component(benchmark),
        Component(learner, options),
        recipe="symbols",
        tasks=60,
        shots=2,
        queries=1,
        order="varied",
        batch=24,
        rate=3e-4,
        objective="anytime",
        guidance_steps=2_000,
    )


RECIPES: dict[str, Callable[[str, str], Config]] = {
    "paper": paper,
    "quickstart": quickstart,
    "symbols": symbols,
    "tiny": tiny,
}


def make_config(recipe: str, benchmark: str, learner: str) -> Config:
    if recipe not in RECIPES:
        raise ValueError(f"no recipe {recipe!r}; there are: {', '.join(RECIPES)}")
    return RECIPES[recipe](benchmark, learner)
