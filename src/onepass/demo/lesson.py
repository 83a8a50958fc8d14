"""What a visitor has taught: a value that is never changed, so that undoing is going back to it.

Every model learns every example, so that a switch between them is only a look at another one.
"""

import copy
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onepass.demo.limits import EXAMPLES, pixels
from onepass.demo.roster import Roster
from onepass.estimators.classifier import ContinualClassifier
from onepass.estimators.labels import Label

BEST = 5  # answers that are shown


class Example(NamedTuple):
    number: int
    label: str
    image: bytes


class Lesson(NamedTuple):
    examples: tuple[Example, ...]
    learners: dict[str, ContinualClassifier]
    seconds: dict[str, float]  # that each learner took for the last example


def empty_lesson(roster: Roster) -> Lesson:
    return Lesson((), {name: entry.start() for name, entry in roster.items()}, {})


def taught(lesson: Lesson, example: Example) -> Lesson:
    """After one more example; all models learn it, or none does."""
    if len(lesson.examples) >= EXAMPLES:
        raise ValueError(f"there is room for {EXAMPLES} examples here: forget some")
    learners, seconds = {}, {}
    for name, learner in lesson.learners.items():
        begun = time.perf_counter()
        learners[name] = _taught(name, learner, [example])
        seconds[name] = time.perf_counter() - begun
    return Lesson((*lesson.examples, example), learners, seconds)


def without(lesson: Lesson, label: str, roster: Roster) -> Lesson:
    """As if this symbol had never been shown: the others are shown again, from nothing.

    Exact for every learner, and a forward pass is all it takes.
    """
    kept = tuple(example for example in lesson.examples if example.label != label)
    learners = {
        name: _taught(name, entry.start(), kept) if kept else entry.start()
        for name, entry in roster.items()
    }
    return Lesson(kept, learners, lesson.seconds)


def answers(learner: ContinualClassifier, image: bytes) -> tuple[list[tuple[Label, float]], float]:
    """The best few names with the share of each, and the seconds that they took."""
    begun = time.perf_counter()
    shares = learner.predict_proba_one(pixels(image))
    seconds = time.perf_counter() - begun
    return sorted(shares.items(), key=lambda item: -item[1])[:BEST], seconds


def _taught(
    name: str, learner: ContinualClassifier, examples: Sequence[Example]
) -> ContinualClassifier:
    """A copy that knows more: who learns replaces what it knows, so the other stays as it was."""
    images = np.stack([pixels(example.image) for example in examples])
    try:
        return copy.copy(learner).partial_fit(images, [example.label for example in examples])
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
