"""A classifier that learns one example after the other, whatever classes there turn out to be."""

import secrets
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin

from onepass.estimators.continual import Continual, check_lengths
from onepass.estimators.labels import Book, Label, as_array, to_labels
from onepass.estimators.model import Model
from onepass.estimators.plain import nearest_mean
from onepass.estimators.stream import (
    Learned,
    ask,
    blank,
    book_of,
    coded,
    learn,
    learn_news,
    without,
)
from onepass.learner import Learner
from onepass.targets import Classes, Target


class ContinualClassifier(ClassifierMixin, Continual):
    """Learns from a stream in forward passes: no gradient at use, new classes at any time.

    Labels are anything hashable. Answers are among the labels seen so far.

    Parameters
    ----------
    learner : the folder of a run, a `Learner`, or None: the nearest class mean of raw vectors
    x_shape : what a `Learner` reads: (numbers,) or (1 or 3, height, width). A run says it itself
    keep_examples : keep them, encoded, so that every learner can forget a class
    max_examples : a budget, for states that grow with the stream. When it is full, a quarter is
        dropped and the state built again from the others, as if only they had come: an
        approximation of what all of them would teach
    which : what a budget drops: "oldest", or "balanced", the oldest of the largest classes
    skip_above : examples whose own label is already this likely (such as 0.5) among those learned
        so far are not learned, but for the first five of each class: long streams then cost
        and change little. None learns every example
    random_state : decides which code stands for which label; None for others every time
    """

    kind = "classifier"

    def __init__(
        self,
        learner: Learner | str | Path | None = None,
        *,
        x_shape: tuple[int, ...] | None = None,
        keep_examples: bool = False,
        max_examples: int | None = None,
        which: Literal["oldest", "balanced"] = "oldest",
        skip_above: float | None = None,
        random_state: int | None = 0,
    ):
        super().__init__(learner, x_shape, max_examples)
        self.keep_examples, self.which, self.random_state = keep_examples, which, random_state
        self.skip_above = skip_above

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn more examples, in this order; labels may be new.

        `classes` are labels that may come. They need not be said; who says them has their columns
        in `predict_proba` from the start.
        """
        to_come = [] if classes is None else to_labels(classes)
        with self._learning():
            learned = self._more(X, y, self._learned)
            self._learned = learned._replace(book=book_of(learned).with_labels(to_come))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """[N, K] in the order of `classes_`."""
        return self._shares(self._known(), X)

    def predict_proba_one(self, x: Any) -> dict[Label, float]:
        """By label; empty as long as nothing was learned."""
        learned = self._learned
        if learned is None:
            return {}
        (shares,) = self._shares(learned, self._single(x, learned)[1])
        return dict(zip(book_of(learned).labels, shares.tolist(), strict=True))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of right answers."""
        answers, labels = self.predict(X), to_labels(y)
        check_lengths(answers, labels)
        right = [answer == label for answer, label in zip(answers, labels, strict=True)]
        return float(np.average(right, weights=sample_weight))

    def forget(self, label: Label) -> Self:
        """As if no example with this label had ever come.

        What a budget dropped, or `skip_above` skipped, stays so: that was decided with it there.
        """
        with self._lock:
            learned = without(self._known(), label)
            # where nothing is left, there is nothing to ask
            self._learned = learned if book_of(learned).held else None
        return self

    @property
    def classes_(self) -> np.ndarray:
        """The labels seen or said so far; sorted where they can be compared."""
        return as_array(book_of(self._attribute("classes_")).labels)

    @property
    def class_count_(self) -> np.ndarray:
        """How many examples of each class the answers rest on."""
        return book_of(self._attribute("class_count_")).counts

    def _plain(self, features: int, outputs: int) -> Learner:
        return nearest_mean(features)

    def _check_target(self, target: Target) -> None:
        if not isinstance(target, Classes):
            raise ValueError(f"this learner answers {target}: it is for ContinualRegressor")

    def _more(self, X: Any, y: Any, learned: Learned | None) -> Learned:
        labels, budget = to_labels(y), self._budget(self.keep_examples, self.which)
        sure = self.skip_above
        number = isinstance(sure, Real) and not isinstance(sure, bool)
        if sure is not None and not (number and 0 < sure <= 1):
            raise ValueError(f"skip_above is {sure!r}; give a share above 0, at most 1, or None")
        if learned is None:
            model, x = self._begin(X, 0)
            learned = self._nothing(model)
        else:
            x = self._read(X, learned.model)
        check_lengths(x, labels)
        if sure is not None:
            return learn_news(learned, x, labels, budget, sure)
        return learn(
            learned, x, lambda known, start, stop: coded(known, labels[start:stop]), budget
        )

    def _nothing(self, model: Model) -> Learned:
        target, seed = model.learner.target, self.random_state
        assert isinstance(target, Classes)
        if not (seed is None or isinstance(seed, Integral)):
            raise ValueError(f"random_state is {seed!r}; give a whole number or None")
        book = Book(target.codes, secrets.randbits(63) if seed is None else int(seed))
        return Learned(model, blank(model.learner, book), book=book)

    def _answers(self, learned: Learned, X: Any) -> np.ndarray:
        columns, scores = self._scores(learned, X)
        return as_array(book_of(learned).labels)[columns[scores.argmax(1)]]

    def _shares(self, learned: Learned, X: Any) -> np.ndarray:
        columns, scores = self._scores(learned, X)
        shares = np.zeros((len(scores), len(book_of(learned).labels)))
        shares[:, columns] = torch.from_numpy(scores).softmax(1).numpy()
        return shares

    def _scores(self, learned: Learned, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """The columns of the labels shown so far, and the log-likelihood of each."""
        x = self._read(X, learned.model, fewest=0)
        book, learner = book_of(learned), learned.model.learner
        assert isinstance(learner.target, Classes)
        columns = np.flatnonzero(book.counts)
        numbers = torch.tensor([book.codes[book.labels[n]] for n in columns])
        codes = learner.target.code(numbers.to(learned.model.like.device))[None]
        return columns, ask(
            learned, x, len(columns), lambda z: learner.score(learned.state, z, codes)
        )
