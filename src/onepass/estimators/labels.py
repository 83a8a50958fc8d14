"""Labels of any hashable kind: as columns, in JSON, and the codes that a learner knows them by."""

from collections.abc import Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from sklearn.utils import column_or_1d
from torch import Tensor

from onepass.seeds import generator

Label = Hashable
NO_Y = "a continual learner requires y to be passed, but the target y is None"


class Book(NamedTuple):
    """Which labels there are, and the number of the code of each that was shown."""

    room: int  # codes that there are
    seed: int  # of their order
    labels: tuple[Label, ...] = ()  # in the order of the columns
    codes: dict[Label, int] = {}
    held: dict[int, int] = {}  # examples in the state, by code

    @property
    def counts(self) -> Int[np.ndarray, " K"]:
        """Examples in the state, by column. Only what has one can be an answer."""
        held = [self.held.get(self.codes.get(label, -1), 0) for label in self.labels]
        return np.array(held, np.int64)

    def with_labels(self, more: Iterable[Label]) -> "Book":
        known = dict.fromkeys([*self.labels, *more])
        return self if len(known) == len(self.labels) else self._replace(labels=ordered(known))

    def with_codes(self, shown: Iterable[Label]) -> "Book":
        """Every new label takes the next free code; there must be room."""
        codes, taken = dict(self.codes), set(self.codes.values())
        free = (code for code in shuffled(self.room, self.seed) if code not in taken)
        for label in shown:
            if label not in codes:
                codes[label] = next(free)
        return self._replace(codes=codes)

    def with_examples(self, y: Int[Tensor, "1 N"]) -> "Book":
        held = dict(self.held)
        for code in y[0].tolist():
            held[code] = held.get(code, 0) + 1
        return self._replace(held=held)

    def without(self, label: Label) -> "Book":
        codes, held = dict(self.codes), dict(self.held)
        held.pop(codes.pop(label, -1), None)
        labels = tuple(each for each in self.labels if each != label)
        return self._replace(labels=labels, codes=codes, held=held)

    def reclaimed(self, shown: Iterable[Label]) -> "Book":
        """Labels of which no example is left, nor one to come, give their codes back."""
        coming = set(shown)
        codes = {
            label: code
            for label, code in self.codes.items()
            if code in self.held or label in coming
        }
        return self._replace(codes=codes)


@lru_cache(maxsize=4)
def shuffled(room: int, seed: int) -> list[int]:
    """All codes, in a random order."""
    rng = generator(torch.device("cpu"), seed, "codes")
    return torch.randperm(room, generator=rng).tolist()


def ordered(labels: Iterable[Label]) -> tuple[Label, ...]:
    """Sorted, as scikit-learn has its columns; as they came where they cannot be compared."""
    found: list[Any] = list(labels)
    try:
        return tuple(sorted(found))
    except TypeError:
        return tuple(found)


def as_array(labels: Sequence[Label]) -> np.ndarray:
    """Text, whole numbers and the like in an array of their own kind, all else as objects."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1 and kinds <= {str, bool, float}:
        return np.array(labels)
    if kinds == {int} and all(-(2**63) <= label < 2**63 for label in labels):  # pyright: ignore
        return np.array(labels, np.int64)
    array = np.empty(len(labels), object)
    # one by one: numpy would take a list of tuples for a matrix
    for n, label in enumerate(labels):
        array[n] = label
    return array


def to_labels(y: Any) -> list[Label]:
    """One label for each example, whatever y is a sequence of."""
    if hasattr(y, "__array__"):
        y = column_or_1d(np.asarray(y), warn=True)
    elif y is None:
        raise ValueError(NO_Y)
    elif isinstance(y, str | bytes) or not isinstance(y, Iterable):
        raise ValueError(f"y is {y!r}; give a sequence with a label for each example")
    labels = [each.item() if isinstance(each, np.generic) else each for each in y]
    return [_checked(label) for label in labels]


def _checked(label: Any) -> Label:
    try:
        hash(label)
    except TypeError as error:
        raise ValueError(f"{label!r} is no label: {error}; a tuple would do") from error
    if any(part != part for part in (label, *(label if isinstance(label, tuple) else ()))):
        raise ValueError("a label is NaN, which is not even equal to itself")
    if isinstance(label, float) and not label.is_integer():
        raise ValueError(
            f"Unknown label type: continuous, such as {label}; classes are text, whole numbers or "
            "tuples, and numbers to be predicted are for ContinualRegressor"
        )
    return label


def to_json(label: Any) -> Any:
    if isinstance(label, tuple):
        return {"tuple": [to_json(part) for part in label]}
    if label is None or isinstance(label, str | int | float):
        return label
    raise ValueError(
        f"the label {label!r} cannot be saved: text, numbers, None and tuples of them can"
    )


def from_json(content: Any) -> Label:
    if isinstance(content, dict):
        return tuple(from_json(part) for part in content["tuple"])
    return content
