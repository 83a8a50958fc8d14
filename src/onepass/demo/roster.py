"""The models that visitors can teach: their weights are shared, what is learned never is."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from onepass.demo.limits import SIDE
from onepass.estimators.classifier import ContinualClassifier
from onepass.estimators.load import load
from onepass.learner import Learner, most_classes
from onepass.models import shipped


class Entry(NamedTuple):
    learner: Learner
    x_shape: tuple[int, ...]
    empty: int  # bytes of a state that has seen nothing
    growth: int  # that one more example of a known symbol adds
    room: int | None  # symbols that it can tell apart; None for any number

    def start(self) -> ContinualClassifier:
        """Taught nothing yet."""
        return ContinualClassifier(self.learner, x_shape=self.x_shape)


Roster = dict[str, Entry]
"""By the name that visitors see, in the order given."""


def open_roster(given: Sequence[str]) -> Roster:
    """Names of models that come with onepass, or folders; all that come with it where none is."""
    names = list(dict.fromkeys(given or shipped()))
    if not names:
        raise ValueError(
            "no model comes with this onepass: name the folder of one or of a run, such as "
            "onepass demo runs/quickstart"
        )
    short = [Path(name).name for name in names]
    shown = [s if short.count(s) == 1 else name for s, name in zip(short, names, strict=True)]
    return {shown: _entry(name) for shown, name in zip(shown, names, strict=True)}


def _entry(name: str) -> Entry:
    estimator = load(name)
    learner, x_shape = estimator.learner, estimator.x_shape
    assert isinstance(learner, Learner)
    assert x_shape is not None
    if not isinstance(estimator, ContinualClassifier) or len(x_shape) != 3:
        raise ValueError(
            f"{name} reads {x_shape} and answers {learner.target}: "
            "the page needs a model that tells images apart"
        )
    # measured, not guessed; and the first visitor need not wait for anything to warm up
    blank, sizes = np.full((SIDE, SIDE), 255, np.uint8), []
    for _ in range(2):
        estimator.learn_one(blank, "")
        sizes.append(estimator.state_bytes_)
    estimator.predict_proba_one(blank)
    growth = sizes[1] - sizes[0]
    return Entry(learner, x_shape, sizes[0] - growth, growth, most_classes(learner))
