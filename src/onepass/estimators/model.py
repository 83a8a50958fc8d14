"""What an estimator learns with: a learner, and the shape of what it reads."""

import copy
import hashlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from onepass.benchmarks.views import to_unit
from onepass.learner import Learner
from onepass.models import folder_of, is_model, open_folder
from onepass.run import load_run
from onepass.tree import State


class Model(NamedTuple):
    learner: Learner
    x_shape: tuple[int, ...]
    like: Tensor  # of the kind and on the device that the learner computes with

    @staticmethod
    def of(learner: Learner, x_shape: tuple[int, ...]) -> "Model":
        leaves = tree_leaves(learner.init_state(1))
        like = next(leaf for leaf in leaves if leaf.is_floating_point())
        return Model(learner, x_shape, like.detach().new_empty(0))

    def __str__(self) -> str:
        name = type(self.learner).__name__
        return f"{name} that reads {self.x_shape} and answers {self.learner.target}"

    def encode(self, x: np.ndarray) -> State:
        """Images in bytes, or vectors: [N, *X] to [1, N, ...]."""
        given = torch.tensor(x)
        given = to_unit(given) if given.dtype == torch.uint8 else given
        return self.learner.encode(given.to(self.like)[None])

    def fingerprint(self) -> str:
        """The same for the same weights, on any machine."""
        target = self.learner.target
        kind = type(self.learner).__name__, self.x_shape, target.outputs, target.tokens
        digest = hashlib.sha256(repr(kind).encode())
        for name, tensor in sorted(self.learner.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()


def _opened(path: Path) -> tuple[Learner, tuple[int, ...]]:
    if is_model(path):
        return open_folder(path)
    _, benchmark, learner = load_run(path)
    return learner, benchmark.x_shape


def open_model(learner: Any, x_shape: Any) -> Model:
    """Of the folder of a run or a model, or a learner and what it reads."""
    if isinstance(learner, str | os.PathLike):
        learner, reads = _opened(folder_of(learner))
        if x_shape is not None and tuple(x_shape) != reads:
            raise ValueError(f"x_shape is {x_shape}, and this learner reads {reads}")
        x_shape = reads
    if not isinstance(learner, Learner):
        raise ValueError(
            f"learner is {learner!r}; give the folder of a run or model, a Learner, or None"
        )
    if x_shape is None:
        raise ValueError(
            "a Learner needs x_shape: (1, 32, 32) for grey images of 32x32, (50,) for 50 numbers"
        )
    shape = tuple(x_shape)
    if not (len(shape) == 1 or (len(shape) == 3 and shape[0] in (1, 3))) or min(shape) < 1:
        raise ValueError(f"x_shape is {shape}; give (numbers,), or (1 or 3, height, width)")
    # whoever trains it goes on with the one they have
    return Model.of(copy.deepcopy(learner).eval() if learner.training else learner, shape)
