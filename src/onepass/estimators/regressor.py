"""A regressor that learns one example after the other."""

import math
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array

from onepass.estimators.continual import Continual, check_lengths
from onepass.estimators.labels import NO_Y
from onepass.estimators.plain import LeastSquares
from onepass.estimators.stream import Learned, ask, blank, learn
from onepass.learner import Learner
from onepass.targets import Target, Vector


class ContinualRegressor(RegressorMixin, Continual):
    """Learns from a stream in forward passes: no gradient at use.

    Parameters
    ----------
    learner : the folder of a run, a `Learner`, or None: ridge regression on raw vectors, exact
        after every example, whatever their order
    x_shape : what a `Learner` reads: (numbers,) or (1 or 3, height, width). A run says it itself
    ridge : the penalty on squared slopes, where no learner is given; as scikit-learn's `Ridge`
    max_examples : a budget, for states that grow with the stream. When it is full, the oldest
        quarter is dropped and the state built again from the others, as if only they had come: an
        approximation of what all of them would teach
    """

    kind = "regressor"

    def __init__(
        self,
        learner: Learner | str | Path | None = None,
        *,
        x_shape: tuple[int, ...] | None = None,
        ridge: float = 1.0,
        max_examples: int | None = None,
    ):
        super().__init__(learner, x_shape, max_examples)
        self.ridge = ridge

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _plain(self, features: int, outputs: int) -> Learner:
        if not (isinstance(self.ridge, Real) and 0 < self.ridge < math.inf):
            raise ValueError(f"ridge is {self.ridge!r}; give a number above 0")
        return LeastSquares(features, outputs, float(self.ridge))

    def _check_target(self, target: Target) -> None:
        if not isinstance(target, Vector):
            raise ValueError(f"this learner answers {target}: it is for ContinualClassifier")

    def _more(self, X: Any, y: Any, learned: Learned | None) -> Learned:
        if y is None:
            raise ValueError(NO_Y)
        given = check_array(y, ensure_2d=False, dtype="float64", input_name="y")
        numbers, budget = given.reshape(len(given), -1), self._budget(False, "oldest")
        if learned is None:
            model, x = self._begin(X, numbers.shape[1])
            learned = Learned(model, blank(model.learner, None), flat=given.ndim == 1)
        else:
            x = self._read(X, learned.model)
        check_lengths(x, numbers)
        outputs = learned.model.learner.target.outputs
        if numbers.shape[1] != outputs:
            raise ValueError(
                f"y has {numbers.shape[1]} number(s) for each example, and the learner answers "
                f"{outputs}"
            )
        told = torch.tensor(numbers).to(learned.model.like)[None]
        return learn(learned, x, lambda known, start, stop: (known, told[:, start:stop]), budget)

    def _answers(self, learned: Learned, X: Any) -> np.ndarray:
        x = self._read(X, learned.model, fewest=0)
        learner, target = learned.model.learner, learned.model.learner.target
        assert isinstance(target, Vector)
        answers = ask(
            learned, x, target.outputs, lambda z: target.decode(learner.predict(learned.state, z))
        )
        return answers[:, 0] if learned.flat else answers
