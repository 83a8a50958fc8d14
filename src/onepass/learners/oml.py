"""OML: a slow encoder, and a fast network that takes one gradient step per example.

The definition is plain SGD on the fast weights. `observe` runs the dual form of it (see `dual.py`)
over its chunk and folds the chunk into the weights at the end; `episode` never builds them at all.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onepass.encoders import Encoder, Norm, make_encoder
from onepass.learner import Learner
from onepass.learners.dual import Layer, Step, applied, has_bias, learn
from onepass.registry import LEARNERS, Positive, PositiveReal
from onepass.targets import Target


class OML(Learner):
    def __init__(self, encoder: Encoder, target: Target, hidden: Sequence[int], inner_rate: float):
        super().__init__()
        self.encoder, self.target = encoder, target
        widths = [encoder.features, *hidden, target.outputs]
        self.fast = nn.ModuleList(
            nn.Linear(before, after, bias=n < len(hidden))
            for n, (before, after) in enumerate(pairwise(widths))
        )
        for layer in self.fast:
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_normal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        self.log_rate = nn.Parameter(torch.tensor(math.log(inner_rate)))

    def hint(self):
        return f"; the inner rate is {self.log_rate.exp():.3g}: a lower inner_rate may help"

    def _initial(self) -> tuple[Layer, ...]:
        return tuple(tuple(part[None] for part in layer.parameters()) for layer in self.fast)

    def init_state(self, batch):
        return tree_map(lambda part: part.expand(batch, *part.shape[1:]), self._initial())

    def observe(self, state, z, y):
        if y.shape[1] == 0:
            return state
        # many small steps: in full precision also under autocast
        with torch.autocast(z.device.type, enabled=False):
            rate = self.log_rate.exp()
            history = learn(state, z.to(self.log_rate.dtype), y, rate, self.target)
            return tuple(
                _folded(layer, steps, rate) for layer, steps in zip(state, history, strict=True)
            )

    def predict(self, state, z):
        with torch.autocast(z.device.type, enabled=False):
            return self._answer(state, z.to(self.log_rate.dtype))

    # unrolled over the stream, it would be compiled for minutes
    @torch.compiler.disable
    def episode(self, encoded, stop=None, own=None):
        dtype = self.log_rate.dtype
        with torch.autocast(encoded.z.device.type, enabled=False):
            layers, z = self._initial(), encoded.z.to(dtype)
            history = learn(layers, z, encoded.y, self.log_rate.exp(), self.target)
            place = torch.arange(z.shape[1], device=z.device)
            seen = None if stop is None else place < stop[..., None]
            answers = self._answer(layers, encoded.queries.to(dtype), history, seen)
        return answers, answers.new_zeros(())

    def _answer(
        self,
        layers: tuple[Layer, ...],
        h: Float[Tensor, "B Q I"],
        history: list[Step] | None = None,
        seen: Bool[Tensor, "B Q N"] | None = None,
    ) -> Float[Tensor, "B Q O"]:
        """The fast network, as it is after the (seen) history."""
        rate = self.log_rate.exp()
        for n, layer in enumerate(layers):
            before, h = h, applied(layer, h)
            if history is not None:
                likeness = torch.einsum("bqi,bni->bqn", before, history[n].inputs)
                likeness = likeness + has_bias(layer)
                if seen is not None:
                    likeness = likeness * seen
                h = h - rate * torch.einsum("bqn,bno->bqo", likeness, history[n].errors)
            if n < len(layers) - 1:
                h = h.relu()
        return h


def _folded(layer: Layer, steps: Step, rate: Tensor) -> Layer:
    """The layer with its history built in."""
    weight, *bias = layer
    change = torch.einsum("bno,bni->boi", steps.errors, steps.inputs)
    return weight - rate * change, *(part - rate * steps.errors.sum(1) for part in bias)


@LEARNERS.add("oml")
def oml(
    x_shape: tuple[int, ...],
    target: Target,
    hidden: Positive = 512,
    layers: Positive = 2,
    inner_rate: PositiveReal = 0.03,
    width: Positive = 512,
    encoder: str = "auto",
    norm: Norm = "batch",
) -> OML:
    """`width` is that of the encoder of vector inputs; images have the features they have."""
    body = make_encoder(x_shape, width, encoder, norm)
    return OML(body, target, [hidden] * (layers - 1), inner_rate)


LEARNERS.add("oml_xl")(partial(oml, hidden=2048, layers=4))
