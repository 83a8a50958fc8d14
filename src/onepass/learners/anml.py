"""ANML: the whole prediction network is fast; a slow network gates its last features.

    answer(x) = W (gate(x) * f(x)) + b      f, W and b take one SGD step per example, gate does not

Both networks read the raw x, so what an example is encoded to is x itself and its gate.
The step is written out: each episode has its own weights, so a convolution is a matrix product with
the 3x3 patches of its input, and the change of its weights is another. So the meta-gradient, which
is of second order, needs autograd only once.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from onepass.encoders import CHANNELS, Encoder, Norm, cnn
from onepass.learner import Learner
from onepass.learners.inner import call_again
from onepass.registry import LEARNERS, Natural, PositiveReal
from onepass.targets import Target
from onepass.tree import span

Layer = tuple[Tensor, Tensor]
"""Weight [B O C 3 3], of the head [B O I], and bias [B O]."""
Maps = Float[Tensor, "B C N H W"]


class ANML(Learner):
    loop_bodies = ("_step",)

    def __init__(
        self, gate: Encoder, body: Encoder, target: Target, inner_rate: float, segment: int
    ):
        super().__init__()
        self.encoder, self.target, self.segment = gate, target, segment
        self.fast = nn.ModuleDict({"body": body, "head": nn.Linear(body.features, target.outputs)})
        self.strides = [part.stride[0] for part in body if isinstance(part, nn.Conv2d)]
        self.log_rate = nn.Parameter(torch.tensor(math.log(inner_rate)))

    def encode(self, x):
        return x, super().encode(x).to(x.dtype)

    def hint(self):
        return f"; the inner rate is {self.log_rate.exp():.3g}: a lower inner_rate may help"

    def init_state(self, batch):
        layers = [part for part in self.fast.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
        return tuple(
            tuple(part.expand(batch, *part.shape) for part in layer.parameters())
            for layer in layers
        )

    # unrolled over the stream, it would be compiled for minutes; its step is, on its own
    @torch.compiler.disable
    def observe(self, state, z, y):
        # many small steps: in full precision also under autocast
        with torch.autocast(y.device.type, enabled=False):
            rate = self.log_rate.exp()
            if not self.segment:
                return self._learn(state, z, y, rate)
            for start in range(0, y.shape[1], self.segment):
                chunk = span((z, y), start, start + self.segment)
                state = call_again(self._learn, state, *chunk, rate)
            return state

    def _learn(
        self, state: tuple[Layer, ...], z: tuple, y: Tensor, rate: Tensor
    ) -> tuple[Layer, ...]:
        # unbound, not indexed: the way back through each index would touch the whole stream
        for x, gate, told in zip(*(part.unbind(1) for part in (*z, y)), strict=True):
            state = self._step(state, x[:, :, None], gate, told, rate)
        return state

    def _step(
        self, state: tuple[Layer, ...], x: Maps, gate: Tensor, y: Tensor, rate: Tensor
    ) -> tuple[Layer, ...]:
        """One step of gradient descent on the loss of one example."""
        *convolutions, (weight, bias) = state
        trace, maps = [], x
        for layer, stride in zip(convolutions, self.strides, strict=True):
            columns = patches(maps, stride)
            before, maps = maps, convolved(layer, columns, maps, stride)
            trace.append((layer, stride, before, columns, maps))
        gated = maps.flatten(1) * gate
        answer = torch.baddbmm(bias[..., None], weight, gated[..., None])[:, None, :, 0]
        error = self.target.slope(answer, y[:, None])[:, 0]
        changed = [
            (torch.baddbmm(weight, -rate * error[..., None], gated[:, None]), bias - rate * error)
        ]
        back = (torch.bmm(error[:, None], weight)[:, 0] * gate).view_as(maps)
        for (weight, bias), stride, before, columns, maps in reversed(trace):
            back = (back * (maps > 0)).flatten(2)
            flat = weight.flatten(2)
            new = torch.baddbmm(flat, -rate * back, columns.mT)
            changed.append((new.view_as(weight), bias - rate * back.sum(2)))
            if before is not x:
                back = folded(torch.bmm(flat.mT, back), before.shape, stride)
        return tuple(reversed(changed))

    @torch.compiler.disable
    def predict(self, state, z):
        x, gate = z
        *convolutions, (weight, bias) = state
        with torch.autocast(x.device.type, enabled=False):
            maps = rearrange(x, "b q c h w -> b c q h w")
            for layer, stride in zip(convolutions, self.strides, strict=True):
                maps = convolved(layer, patches(maps, stride), maps, stride)
            gated = rearrange(maps, "b c q h w -> b q (c h w)") * gate
            return torch.baddbmm(bias[:, None], gated, weight.mT)


def convolved(layer: Layer, columns: Tensor, maps: Maps, stride: int) -> Maps:
    """A 3x3 convolution and a ReLU, each episode with its own weights."""
    weight, bias = layer
    height, width = (math.ceil(edge / stride) for edge in maps.shape[3:])
    out = torch.baddbmm(bias[..., None], weight.flatten(2), columns)
    return out.relu().unflatten(2, (-1, height, width))


def patches(maps: Maps, stride: int) -> Float[Tensor, "B C9 P"]:
    """What a 3x3 convolution reads for each pixel it writes, zeros outside the map."""
    return _Patches.apply(maps, stride)


def folded(columns: Float[Tensor, "B C9 P"], shape: torch.Size, stride: int) -> Maps:
    """The transpose of `patches`: what is sent to each pixel, added up."""
    return _Folded.apply(columns, shape, stride)


class _Patches(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, maps: Tensor, stride: int) -> Tensor:
        ctx.shape, ctx.stride = maps.shape, stride
        windows = F.pad(maps, (1, 1, 1, 1)).unfold(3, 3, stride).unfold(4, 3, stride)
        return rearrange(windows, "b c n h w i j -> b (c i j) (n h w)")

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return folded(gradient, ctx.shape, ctx.stride), None


class _Folded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, columns: Tensor, shape: torch.Size, stride: int) -> Tensor:
        ctx.stride = stride
        if torch.compiler.is_compiling():
            return folded_by_places(columns, shape, stride)
        each = rearrange(columns, "b c (n p) -> (b n) c p", n=shape[2])
        maps = F.fold(each, shape[3:], 3, padding=1, stride=stride)
        return rearrange(maps, "(b n) c h w -> b c n h w", n=shape[2])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return patches(gradient, ctx.stride), None, None


def folded_by_places(
    columns: Float[Tensor, "B C9 P"], shape: torch.Size, stride: int
) -> Float[Tensor, "B C N H W"]:
    """`fold` as the sum over the 9 places of a patch, each a map of its own.

    torch's own is compiled to additions in any order, so that no two runs would be the same.
    """
    height, width = shape[3:]
    total = columns.new_zeros(())
    rows = math.ceil(height / stride)
    named = dict(i=3, j=3, n=shape[2], h=rows)
    places = rearrange(columns, "b (c i j) (n h w) -> i j b c n h w", **named)
    for i, row in enumerate(places.unbind()):
        for j, sent in enumerate(row.unbind()):
            # zeros between what is `stride` apart
            sent = F.pad(sent[..., None], (0, stride - 1)).flatten(-2)
            sent = F.pad(sent[..., None, :], (0, 0, 0, stride - 1)).flatten(-3, -2)
            below, beside = height + 2 - i - sent.shape[-2], width + 2 - j - sent.shape[-1]
            total = total + F.pad(sent, (j, beside, i, below))
    return total[..., 1:-1, 1:-1]


@LEARNERS.add("anml")
def anml(
    x_shape: tuple[int, ...],
    target: Target,
    inner_rate: PositiveReal = 0.01,
    channels: tuple[int, ...] = CHANNELS,
    strides: tuple[int, ...] = (1, 2, 2, 2, 2),
    norm: Norm = "batch",
    segment: Natural = 0,
) -> ANML:
    """`segment` > 0 stores the inner loop only every so many examples: less memory, more work."""
    if len(x_shape) != 3:
        raise ValueError(f"anml reads images, and this benchmark shows vectors of {x_shape[0]}")
    gate = cnn(x_shape, norm, channels, strides)
    # the last ReLU, before the flattening, becomes a sigmoid
    gate[-2] = nn.Sigmoid()
    body = cnn(x_shape, "none", channels, strides, bias=True)
    return ANML(gate, body, target, inner_rate, segment)
