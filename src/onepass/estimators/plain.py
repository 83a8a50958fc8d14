"""Learners that need no weights: what an estimator is when it is given none.

`nearest_mean` keeps the mean of each class. `LeastSquares` keeps means and co-deviations of x and
y, which are all that ridge regression needs:

    answer(x) = mean_y + (x - mean_x) W      (S_xx + ridge I) W = S_xy

as of all examples at once, whatever their order and however many came in a call.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from onepass.encoders import Encoder
from onepass.learner import Learner
from onepass.learners.prototype import Prototype
from onepass.targets import Classes, Vector


def nearest_mean(features: int) -> Prototype:
    """In double precision, so that a long stream of small differences is not lost."""
    return Prototype(Encoder(features=features), Classes(1)).double().eval()


class Moments(NamedTuple):
    count: Float[Tensor, " B"]
    x: Float[Tensor, "B D"]  # means
    y: Float[Tensor, "B O"]
    xx: Float[Tensor, "B D D"]  # sums of products of deviations from them
    xy: Float[Tensor, "B D O"]


class LeastSquares(Learner):
    zero: Tensor

    def __init__(self, features: int, outputs: int, ridge: float):
        super().__init__()
        self.encoder, self.target = Encoder(features=features), Vector(outputs)
        self.features, self.ridge = features, ridge
        self.register_buffer("zero", torch.zeros((), dtype=torch.float64), persistent=False)

    def init_state(self, batch):
        d, o = self.features, self.target.outputs
        shapes = (batch,), (batch, d), (batch, o), (batch, d, d), (batch, d, o)
        return Moments(*(self.zero.new_zeros(shape) for shape in shapes))

    def observe(self, state, z, y):
        if y.shape[1] == 0:
            return state
        x_mean, y_mean = z.mean(1), y.mean(1)
        dx, dy = z - x_mean[:, None], y - y_mean[:, None]
        # moments of two sets merged (Chan et al. 1979)
        total = state.count + y.shape[1]
        share = (y.shape[1] / total)[:, None]
        gap_x, gap_y = x_mean - state.x, y_mean - state.y
        between = gap_x * (state.count[:, None] * share)
        return Moments(
            total,
            state.x + gap_x * share,
            state.y + gap_y * share,
            state.xx + torch.einsum("bnd,bne->bde", dx, dx) + between[:, :, None] * gap_x[:, None],
            state.xy + torch.einsum("bnd,bno->bdo", dx, dy) + between[:, :, None] * gap_y[:, None],
        )

    def predict(self, state, z):
        ridge = self.ridge * torch.eye(self.features, dtype=z.dtype, device=z.device)
        slopes = torch.linalg.solve(state.xx + ridge, state.xy)
        return state.y[:, None] + torch.einsum("bqd,bdo->bqo", z - state.x[:, None], slopes)
