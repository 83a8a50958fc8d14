"""Prototypical network: a class is the mean of its encodings, and the nearest mean answers."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from onepass.encoders import Encoder, Norm, make_embedder
from onepass.learner import Learner
from onepass.registry import LEARNERS, Positive
from onepass.targets import Classes

# score of a class with no example yet; finite, so that nothing seen means a uniform answer
UNSEEN = -1e9


class Sums(NamedTuple):
    total: Float[Tensor, "B V D"]
    count: Float[Tensor, "B V"]


class Prototype(Learner):
    def __init__(self, encoder: Encoder, target: Classes):
        super().__init__()
        self.encoder, self.target, self.features = encoder, target, encoder.features

    def init_state(self, batch):
        zeros = next(self.parameters()).new_zeros
        return Sums(
            zeros(batch, self.target.outputs, self.features), zeros(batch, self.target.outputs)
        )

    def observe(self, state, z, y):
        member = F.one_hot(y, self.target.outputs).to(state.total.dtype)
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
