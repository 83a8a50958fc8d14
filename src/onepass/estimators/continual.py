"""What classifier and regressor share: reading X, one writer at a time, and files."""

import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import validate_data

from onepass.estimators.inputs import to_images
from onepass.estimators.labels import Label
from onepass.estimators.memory import CHOICES
from onepass.estimators.model import Model, open_model
from onepass.estimators.storage import read_learned, write_learned
from onepass.estimators.stream import Budget, Learned
from onepass.learner import Learner
from onepass.targets import Target
from onepass.tree import state_bytes

Keys = tuple[Label, ...]
FEATURES = "n_features_in_", "feature_names_in_"  # what scikit-learn has an estimator say of X


class Lock:
    """Held by whoever learns. A pickle of the estimator gets one of its own."""

    def __init__(self):
        self._inner = threading.RLock()

    def __enter__(self):
        return self._inner.__enter__()

    def __exit__(self, *error: Any):
        return self._inner.__exit__(*error)

    def __reduce__(self):
        return Lock, ()


class Continual(BaseEstimator, ABC):
    """An estimator that knows what its `Learned` says; who learns replaces it as a whole."""

    kind: str  # what a file is marked with
    _learned: Learned | None = None

    def __init__(
        self,
        learner: Learner | str | Path | None,
        x_shape: tuple[int, ...] | None,
        max_examples: int | None,
    ):
        self.learner, self.x_shape, self.max_examples = learner, x_shape, max_examples
        self._lock = Lock()

    @abstractmethod
    def _plain(self, features: int, outputs: int) -> Learner:
        """What learns where no learner is given."""

    @abstractmethod
    def _check_target(self, target: Target) -> None:
        """One clear line where a learner is for something else."""

    @abstractmethod
    def _more(self, X: Any, y: Any, learned: Learned | None) -> Learned:
        """After these examples; of nothing yet if None."""

    @abstractmethod
    def _answers(self, learned: Learned, X: Any) -> np.ndarray: ...

    def fit(self, X: Any, y: Any) -> Self:
        """Start over, with these examples in this order."""
        with self._learning():
            self._learned = self._more(X, y, None)
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Learn more examples, in this order."""
        with self._learning():
            self._learned = self._more(X, y, self._learned)
        return self

    def predict(self, X: Any) -> np.ndarray:
        return self._answers(self._known(), X)

    def learn_one(self, x: Any, y: Any) -> Self:
        """One example: a vector, a dict of features or an image, and what it is."""
        with self._learning():
            keys, X = self._single(x, self._learned)
            self._learned = self._more(X, [y], self._learned)._replace(keys=keys)
        return self

    def predict_one(self, x: Any) -> Any:
        """The answer to one x; None as long as nothing was learned."""
        learned = self._learned
        if learned is None:
            return None
        (answer,) = self._answers(learned, self._single(x, learned)[1])
        return answer.item() if isinstance(answer, np.generic) else answer

    def reset(self) -> Self:
        """Forget everything."""
        with self._lock:
            self._learned = None
            self._name_features(None, [])
        return self

    def save(self, path: str | Path) -> None:
        """What was learned, and not the weights that it was learned with, in one file."""
        names = getattr(self, "feature_names_in_", ())
        write_learned(Path(path), self._known(), self.kind, list(names))

    def load(self, path: str | Path) -> Self:
        """Go on from what `save` wrote; it must have been learned with the same weights."""
        with self._lock:
            learned, names = read_learned(Path(path), self.kind, self._open)
            self._learned = learned
            shape = learned.model.x_shape
            self._name_features(shape[0] if len(shape) == 1 else None, names)
        return self

    @property
    def n_samples_seen_(self) -> int:
        """Examples since the start, those that were dropped or skipped included."""
        return self._attribute("n_samples_seen_").seen

    @property
    def state_bytes_(self) -> int:
        """What is kept of them; examples that are kept count too."""
        learned = self._attribute("state_bytes_")
        return state_bytes((learned.state, [tuple(chunk) for chunk in learned.memory]))

    def __sklearn_is_fitted__(self) -> bool:
        return self._learned is not None

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """A learner by its kind: its layers would fill a screen."""
        said = inspect.signature(type(self)).parameters
        given = {
            name: type(value).__name__ if isinstance(value, Learner) else repr(value)
            for name, value in self.get_params(deep=False).items()
            if repr(value) != repr(said[name].default)
        }
        return f"{type(self).__name__}({', '.join(f'{n}={v}' for n, v in given.items())})"

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """One at a time; what fails leaves all as it was."""
        with self._lock:
            before = {name: vars(self)[name] for name in FEATURES if name in vars(self)}
            try:
                yield
            except BaseException:
                for name in FEATURES:
                    vars(self).pop(name, None)
                vars(self).update(before)
                raise

    def _name_features(self, count: int | None, names: list[str]) -> None:
        """As scikit-learn would have it after `fit`: what is not known is not there."""
        named = np.array(names, object) if names else None
        for name, value in zip(FEATURES, (count, named), strict=True):
            vars(self).pop(name, None)
            if value is not None:
                setattr(self, name, value)

    def _known(self) -> Learned:
        """As of this moment: what is learned later does not reach it."""
        learned = self._learned
        if learned is None:
            raise NotFittedError(
                f"this {type(self).__name__} has learned nothing yet: call fit or partial_fit"
            )
        return learned

    def _attribute(self, name: str) -> Learned:
        if self._learned is None:
            raise AttributeError(f"{type(self).__name__} has no {name} before the first example")
        return self._learned

    def _open(self, features: int, outputs: int) -> Model:
        """What to learn with; these numbers are for a learner without weights."""
        if self.learner is None:
            if self.x_shape is not None:
                raise ValueError(f"x_shape is {self.x_shape}, and there is no learner to read it")
            return Model.of(self._plain(features, outputs), (features,))
        model = open_model(self.learner, self.x_shape)
        self._check_target(model.learner.target)
        return model

    def _begin(self, X: Any, outputs: int) -> tuple[Model, np.ndarray]:
        """What to learn with, and X as it reads it."""
        if self.learner is not None:
            model = self._open(0, outputs)
            return model, self._read(X, model, reset=True)
        x = self._rows(X, np.float64, True, 1)
        return self._open(x.shape[1], outputs), x

    def _read(self, X: Any, model: Model, reset: bool = False, fewest: int = 1) -> np.ndarray:
        """[N, *X], images in bytes."""
        if len(model.x_shape) == 3:
            x = to_images(X, model.x_shape)
            if len(x) < fewest:
                raise ValueError("there is no image to learn from")
            return x
        dtype = np.float64 if model.like.dtype == torch.float64 else np.float32
        x = self._rows(X, dtype, reset, fewest)
        if x.shape[1:] != model.x_shape:
            raise ValueError(f"X has {x.shape[1]} features, and the learner reads {model.x_shape}")
        return x

    def _single(self, x: Any, learned: Learned | None) -> tuple[Keys | None, Any]:
        """One x as a batch; and the order of its features, where it is a dict of them."""
        keys = None if learned is None else learned.keys
        if not isinstance(x, Mapping):
            return keys, [x]
        keys = keys or tuple(getattr(self, "feature_names_in_", ()))
        if learned is not None and not keys:
            raise ValueError("features have come without names so far: give a list, not a dict")
        keys = keys or tuple(x)
        if odd := set(x) ^ set(keys):
            raise ValueError(
                f"the features are {', '.join(map(str, keys))}; missing, or more than these: "
                f"{', '.join(sorted(map(str, odd)))}"
            )
        return keys, [[x[key] for key in keys]]

    def _rows(self, X: Any, dtype: Any, reset: bool, fewest: int) -> np.ndarray:
        # what is too large for the learner's numbers is refused by name
        with np.errstate(over="ignore"):
            x: Any = validate_data(self, X, reset=reset, dtype=dtype, ensure_min_samples=fewest)
        return x

    def _budget(self, keep: bool, which: str) -> Budget:
        most = self.max_examples
        whole = isinstance(most, Integral) and not isinstance(most, bool)
        if most is not None and not (whole and most >= 1):
            raise ValueError(f"max_examples is {most!r}; give a whole number from 1 on, or None")
        if which not in CHOICES:
            raise ValueError(f"which is {which!r}; there are: {', '.join(CHOICES)}")
        return Budget(keep or most is not None, most, CHOICES[which])


def check_lengths(x: np.ndarray, y: Any) -> None:
    if len(x) != len(y):
        raise ValueError(f"X has {len(x)} examples, and y has {len(y)}")
