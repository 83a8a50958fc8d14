"""Prototypical network: a class is the mean of its encodings, and the nearest mean answers."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils._pytree import tree_map

from onepass.encoders import Encoder, Norm, make_embedder
from onepass.learner import Learner
from onepass.registry import LEARNERS, Positive
from onepass.targets import Classes
from onepass.tree import State

# score of a class with no example yet; finite, so that nothing seen means a uniform answer
UNSEEN = -1e9


class Sums(NamedTuple):
    total: Float[Tensor, "B V D"]
    count: Float[Tensor, "B V"]


class Prototype(Learner):
    """A class needs a row of the state and nothing else, so there may be more than the target's."""

    zero: Tensor

    def __init__(self, encoder: Encoder, target: Classes):
        super().__init__()
        self.encoder, self.target, self.features = encoder, target, encoder.features
        # an encoder may have no parameters, and a state is where they would be
        self.register_buffer("zero", torch.zeros(()), persistent=False)

    def init_state(self, batch):
        shape = batch, self.target.outputs
        return Sums(self.zero.new_zeros(*shape, self.features), self.zero.new_zeros(shape))

    def widen(self, state, classes):
        return widened(state, classes)

    def forget(self, state, code):
        return emptied(state, code)

    def observe(self, state, z, y):
        member = F.one_hot(y, state.count.shape[1]).to(state.total.dtype)
        # in full precision also under autocast: sums of many, and distances of near things
        with torch.autocast(z.device.type, enabled=False):
            total = torch.einsum("bnv,bnd->bvd", member, z.to(member.dtype))
        return Sums(state.total + total, state.count + member.sum(1))

    def predict(self, state, z):
        mean = state.total / state.count.clamp(min=1)[..., None]
        with torch.autocast(z.device.type, enabled=False):
            return torch.where(
                state.count[:, None] > 0, -squared_distance(z.to(mean.dtype), mean), UNSEEN
            )


def widened(state: State, classes: int) -> State:
    """More rows of zeros on axis 1, which has the classes."""

    def wider(leaf: Tensor) -> Tensor:
        more = leaf.new_zeros(leaf.shape[0], classes - leaf.shape[1], *leaf.shape[2:])
        return torch.cat([leaf, more], 1)

    return tree_map(wider, state)


def emptied(state: State, row: int) -> State:
    """The row of one class set to zero."""

    def without(leaf: Tensor) -> Tensor:
        return leaf.index_fill(1, torch.tensor([row], device=leaf.device), 0)

    return tree_map(without, state)


def squared_distance(
    a: Float[Tensor, "B Q D"], b: Float[Tensor, "B V D"]
) -> Float[Tensor, "B Q V"]:
    """By the binomial formula: one matrix product and no [B Q V D] tensor."""
    product = torch.einsum("bqd,bvd->bqv", a, b)
    return a.square().sum(-1)[:, :, None] - 2 * product + b.square().sum(-1)[:, None]


@LEARNERS.add("pn")
def pn(
    x_shape: tuple[int, ...],
    target: Classes,
    width: Positive = 512,
    encoder: str = "auto",
    norm: Norm = "batch",
) -> Prototype:
    return Prototype(make_embedder(x_shape, width, encoder, norm), target)
