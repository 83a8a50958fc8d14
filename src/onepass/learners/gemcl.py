"""GeMCL: a class is a Gaussian with a learned Gamma prior on each precision.

After S examples of a class with mean m and squared deviations v (per dimension),

    alpha' = alpha + S / 2      beta' = beta + v / 2      s2 = (1 + 1/S) beta' / alpha'

and a new example follows a Student-t with 2 alpha' degrees of freedom, location m and squared
scale s2.
"""

import math
from functools import partial
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from onepass.encoders import Encoder, Norm, make_embedder
from onepass.learner import Learner
from onepass.learners.inner import call_again
from onepass.learners.prototype import UNSEEN, emptied, widened
from onepass.registry import LEARNERS, Positive, PositiveReal
from onepass.targets import Classes

MOST_NUMBERS = 2**24  # of an episode, at once
KEPT_NUMBERS = 2**20  # likewise, where they would be kept for the way back
SERIES_FROM = 100.0  # where the next term of the series is below 1e-12
Density = Literal["student", "published", "map"]


class Moments(NamedTuple):
    count: Float[Tensor, "B V"]
    mean: Float[Tensor, "B V D"]
    spread: Float[Tensor, "B V D"]  # sum of squared deviations from the mean


class GeMCL(Learner):
    def __init__(
        self, encoder: Encoder, target: Classes, alpha: float, beta: float, density: Density
    ):
        super().__init__()
        self.encoder, self.target, self.density = encoder, target, density
        self.features = encoder.features
        self.alpha, self.beta = nn.Parameter(torch.tensor(alpha)), nn.Parameter(torch.tensor(beta))

    def init_state(self, batch):
        zeros = self.alpha.new_zeros
        shape = batch, self.target.outputs, self.features
        return Moments(zeros(shape[:2]), zeros(shape), zeros(shape))

    def widen(self, state, classes):
        return widened(state, classes)

    def forget(self, state, code):
        return emptied(state, code)

    def observe(self, state, z, y):
        with torch.autocast(z.device.type, enabled=False):
            z = z.to(state.mean.dtype)
            member = F.one_hot(y, state.count.shape[1]).to(z.dtype)
            count = member.sum(1)
            mean = torch.einsum("bnv,bnd->bvd", member, z) / count.clamp(min=1)[..., None]
            # each example is of one class, so its own mean is all it is compared with
            deviation = (z - torch.einsum("bnv,bvd->bnd", member, mean)).square()
            spread = torch.einsum("bnv,bnd->bvd", member, deviation)
            # moments of two sets merged (Chan et al. 1979)
            total = state.count + count
            share = (count / total.clamp(min=1))[..., None]
            gap = mean - state.mean
            between = gap.square() * state.count[..., None] * share
            return Moments(total, state.mean + gap * share, state.spread + spread + between)

    def predict(self, state, z):
        # every query beside every class: compiled it is one pass that writes none of it, otherwise
        # it is a few queries at a time, and made again on the way back
        is_melted = torch.compiler.is_compiling() or not torch.is_grad_enabled()
        most = MOST_NUMBERS if is_melted else KEPT_NUMBERS
        few = max(1, most // state.mean[0].numel())
        nll_of = self._nll if is_melted else partial(call_again, self._nll)
        with torch.autocast(z.device.type, enabled=False):
            z = z.to(state.mean.dtype)
            prior = self.alpha, self.beta
            nll = torch.cat([nll_of(state, prior, part) for part in z.split(few, 1)], 1)
        return torch.where(state.count[:, None] > 0, -nll, UNSEEN)

    def _nll(
        self, state: Moments, prior: tuple[Tensor, Tensor], z: Float[Tensor, "B Q D"]
    ) -> Float[Tensor, "B Q V"]:
        alpha = (prior[0] + state.count / 2)[:, None, :, None]
        beta = (prior[1] + state.spread / 2)[:, None]
        squared = (z[:, :, None] - state.mean[:, None]).square()
        if self.density == "map":
            variance = beta / (alpha - 0.5)
            return 0.5 * (squared / variance + variance.log()).sum(-1)
        variance = beta / alpha * (1 + 1 / state.count.clamp(min=1))[:, None, :, None]
        tail = (alpha + 0.5) * torch.log1p(squared / (2 * alpha * variance))
        if self.density == "published":
            # as printed numbers were made: log s2 at weight 1, and no constant
            return (tail + (variance + 1e-8).log()).sum(-1)
        # the constant differs between classes that were seen more or less often
        constant = 0.5 * (2 * math.pi * alpha).log() - log_gamma_ratio(alpha)
        return (tail + 0.5 * variance.log() + constant).sum(-1)


def log_gamma_ratio(a: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """log Gamma(a + 1/2) - log Gamma(a); the difference of two huge numbers where a is large."""
    large = a.clamp(min=SERIES_FROM)
    series = 0.5 * large.log() - 1 / (8 * large) + 1 / (192 * large**3)
    return torch.where(a > SERIES_FROM, series, (a + 0.5).lgamma() - a.lgamma())


@LEARNERS.add("gemcl")
def gemcl(
    x_shape: tuple[int, ...],
    target: Classes,
    width: Positive = 512,
    alpha: PositiveReal = 100.0,
    beta: PositiveReal = 1000.0,
    density: Density = "student",
    encoder: str = "auto",
    norm: Norm = "batch",
) -> GeMCL:
    return GeMCL(make_embedder(x_shape, width, encoder, norm), target, alpha, beta, density)
