"""OML: a slow encoder, and a fast network that takes one gradient step per example.

The definition is plain SGD on the fast weights. Since every example changes a weight matrix by an
outer product, the changed weights never need to be built: with h the inputs of a layer, d the error
signals at its output and a the inner rate, the layer after examples i < t acts as

    W_t h_t = W h_t - a sum_i d_i (h_i . h_t)        W_t^T d_t = W^T d_t - a sum_i h_i (d_i . d_t)

which is linear attention with the error signal as the value. `observe` runs this dual form over its
chunk and folds the chunk into the weights at the end; `episode` never builds them at all.
"""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from onepass.encoders import Encoder, Norm, make_encoder
from onepass.learner import Learner
from onepass.registry import LEARNERS, Positive, PositiveReal
from onepass.targets import Target

# examples after which the history of a layer is laid out anew for the next ones
BLOCK = 16


Layer = tuple[Tensor, ...]
"""Weight [B O I] and, but for the last, bias [B O]; a batch of one is shared by all episodes."""


class Step(NamedTuple):
    """What one example leaves behind in one layer: what came in, and the error at what went out."""

    inputs: Float[Tensor, "B N I"]
    errors: Float[Tensor, "B N O"]


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
            history = self._learn(state, z.to(self.log_rate.dtype), y)
            return tuple(
                _folded(layer, steps, self.log_rate.exp())
                for layer, steps in zip(state, history, strict=True)
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
            history = self._learn(layers, z, encoded.y)
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
            before, h = h, _apply(layer, h)
            if history is not None:
                likeness = torch.einsum("bqi,bni->bqn", before, history[n].inputs)
                likeness = likeness + _has_bias(layer)
                if seen is not None:
                    likeness = likeness * seen
                h = h - rate * torch.einsum("bqn,bno->bqo", likeness, history[n].errors)
            if n < len(layers) - 1:
                h = h.relu()
        return h

    def _learn(self, layers: tuple[Layer, ...], z: Float[Tensor, "B N I"], y: Tensor) -> list[Step]:
        """One SGD step per example, in order; the history of each layer, [B N ...]."""
        rate, memory = self.log_rate.exp(), [Memory() for _ in layers]
        # what does not depend on the history is one product for all examples
        first = _apply(layers[0], z)
        # unbound, not indexed: the way back through each index would touch the whole stream
        for t, (x, start) in enumerate(zip(z.unbind(1), first.unbind(1), strict=True)):
            inputs, pre = [x], []
            for n, layer in enumerate(layers):
                plain = start if n == 0 else _apply(layer, inputs[n][:, None])[:, 0]
                pre.append(plain - rate * memory[n].forward(inputs[n], _has_bias(layer)))
                inputs.append(pre[n].relu())
            error = self.target.slope(pre[-1][:, None], y[:, t : t + 1])[:, 0]
            for n in reversed(range(len(layers))):
                back = error
                if n:
                    pulled = _pull(layers[n], error) - rate * memory[n].backward(error)
                    back = pulled * (pre[n - 1] > 0)
                memory[n].add(inputs[n], error)
                error = back
        return [part.whole() for part in memory]


def _has_bias(layer: Layer) -> bool:
    return len(layer) == 2


def _apply(layer: Layer, h: Float[Tensor, "B N I"]) -> Float[Tensor, "B N O"]:
    weight, *bias = layer
    if len(weight) == 1:
        # weights that all episodes share: one plain product
        return nn.functional.linear(h, weight[0], bias[0][0] if bias else None)
    out = torch.einsum("bni,boi->bno", h, weight)
    return out + bias[0][:, None] if bias else out


def _pull(layer: Layer, error: Float[Tensor, "B O"]) -> Float[Tensor, "B I"]:
    """The error at what came in, by the weights as they are."""
    weight = layer[0]
    if len(weight) == 1:
        return error @ weight[0]
    return torch.einsum("bo,boi->bi", error, weight)


def _folded(layer: Layer, steps: Step, rate: Tensor) -> Layer:
    """The layer with its history built in."""
    weight, *bias = layer
    change = torch.einsum("bno,bni->boi", steps.errors, steps.inputs)
    return weight - rate * change, *(part - rate * steps.errors.sum(1) for part in bias)


class Memory:
    """The history of one layer while it grows.

    Blocks of equal length are merged like the digits of a binary counter: a few large pieces to
    read, each laid out a few times, so that what autograd keeps grows as N log N.
    """

    def __init__(self):
        self.blocks: list[Step] = []
        self.recent: list[tuple[Tensor, Tensor]] = []
        self.stacked: Step | None = None

    def add(self, inputs: Float[Tensor, "B I"], errors: Float[Tensor, "B O"]) -> None:
        self.recent.append((inputs, errors))
        recent = Step(*(torch.stack(parts, 1) for parts in zip(*self.recent, strict=True)))
        self.stacked = recent
        if len(self.recent) < BLOCK:
            return
        self.blocks.append(recent)
        self.recent, self.stacked = [], None
        while len(self.blocks) > 1 and _length(self.blocks[-1]) == _length(self.blocks[-2]):
            self.blocks[-2:] = [_joined(self.blocks[-2:])]

    def _pieces(self) -> list[Step]:
        return [*self.blocks, self.stacked] if self.stacked else self.blocks

    def forward(self, h: Float[Tensor, "B I"], bias: bool) -> Tensor | float:
        """sum_i d_i (h_i . h), and one more for the bias, whose input is 1."""
        total: Tensor | float = 0.0
        for piece in self._pieces():
            likeness = torch.einsum("bni,bi->bn", piece.inputs, h) + bias
            total = total + torch.einsum("bn,bno->bo", likeness, piece.errors)
        return total

    def backward(self, error: Float[Tensor, "B O"]) -> Tensor | float:
        """sum_i h_i (d_i . d)"""
        total: Tensor | float = 0.0
        for piece in self._pieces():
            likeness = torch.einsum("bno,bo->bn", piece.errors, error)
            total = total + torch.einsum("bn,bni->bi", likeness, piece.inputs)
        return total

    def whole(self) -> Step:
        return _joined(self._pieces())


def _length(block: Step) -> int:
    return block.inputs.shape[1]


def _joined(blocks: list[Step]) -> Step:
    return Step(*(torch.cat(parts, 1) for parts in zip(*blocks, strict=True)))


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
