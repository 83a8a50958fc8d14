"""ANML: the whole prediction network is fast; a slow network gates its last features.

    answer(x) = W (gate(x) * f(x)) + b      f, W and b take one SGD step per example, gate does not

Both networks read the raw x, so what an example is encoded to is x itself and its gate.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from onepass.encoders import CHANNELS, Encoder, Norm, cnn
from onepass.learner import Learner
from onepass.registry import LEARNERS
from onepass.targets import Target
from onepass.tree import span


class Gated(nn.Module):
    """The prediction network: convolutions without norm, times the gate, then linear."""

    def __init__(self, body: Encoder, outputs: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(body.features, outputs)

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.head(self.body(x) * gate)


class ANML(Learner):
    def __init__(
        self, encoder: Encoder, fast: Gated, target: Target, inner_rate: float, segment: int
    ):
        super().__init__()
        self.encoder, self.fast, self.target, self.segment = encoder, fast, target, segment
        self.log_rate = nn.Parameter(torch.tensor(math.log(inner_rate)))

    def encode(self, x):
        return {"x": x, "gate": super().encode(x)}

    def init_state(self, batch):
        return {name: w.expand(batch, *w.shape) for name, w in self.fast.named_parameters()}

    def observe(self, state, z, y):
        rate, length = self.log_rate.exp(), y.shape[1]
        if not self.segment:
            return self._learn(state, z, y, rate)
        for start in range(0, length, self.segment):
            chunk = span((z, y), start, start + self.segment)
            state = call_again(self._learn, state, *chunk, rate)
        return state

    def _learn(self, state: dict, z: dict, y: Tensor, rate: Tensor) -> dict:
        """One SGD step per example, each episode on its own weights."""
        slope = vmap(grad(self._loss))
        for n in range(y.shape[1]):
            # sums of many small steps: in full precision also under autocast
            with torch.autocast(y.device.type, enabled=False):
                steps = slope(state, tree_map(lambda part: part[:, n], z), y[:, n])  # noqa: B023
                state = tree_map(lambda weight, step: weight - rate * step, state, steps)
        return state

    def _loss(self, weights: dict, z: dict, y: Tensor) -> Float[Tensor, ""]:
        answer = self._forward(weights, tree_map(lambda part: part[None], z))
        return self.target.loss(answer[None], y[None, None]).sum()

    def _forward(self, weights: dict, z: dict) -> Tensor:
        gate = z["gate"].to(z["x"].dtype)
        return functional_call(self.fast, weights, (z["x"], gate))

    def predict(self, state, z):
        with torch.autocast(z["x"].device.type, enabled=False):
            return vmap(self._forward)(state, z)


def call_again(function: Callable, *arguments: Any) -> Any:
    """`function(*arguments)`, whose graph is not stored but built again on the way back.

    torch's own checkpointing does not go together with gradients taken inside the function.
    """
    leaves, form = tree_flatten(arguments)
    shapes: list[Any] = []

    def flat(*tensors: Tensor) -> tuple[Tensor, ...]:
        results, shape = tree_flatten(function(*tree_unflatten(tensors, form)))
        shapes.append(shape)
        return tuple(results)

    results = _Again.apply(flat, *leaves)
    return tree_unflatten(results, shapes[0])


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = function
        ctx.save_for_backward(*tensors)
        return function(*tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        with torch.enable_grad():
            tensors = [t.detach().requires_grad_(t.is_floating_point()) for t in ctx.saved_tensors]
            results = ctx.function(*tensors)
        wanted = [t for t in tensors if t.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, gradients, allow_unused=True))
        return None, *(next(found) if t.requires_grad else None for t in tensors)


@LEARNERS.add("anml")
def anml(
    x_shape: tuple[int, ...],
    target: Target,
    inner_rate: float = 0.01,
    channels: tuple[int, ...] = CHANNELS,
    strides: tuple[int, ...] = (1, 2, 2, 2, 2),
    norm: Norm = "batch",
    segment: int = 0,
) -> ANML:
    """`segment` > 0 stores the inner loop only every so many examples: less memory, more work."""
    if len(x_shape) != 3:
        raise ValueError(f"anml reads images, and this benchmark shows vectors of {x_shape[0]}")
    if inner_rate <= 0 or segment < 0:
        raise ValueError(f"inner_rate is {inner_rate}, segment {segment}; rates are positive")
    gate = cnn(x_shape, norm, channels, strides)
    # the last ReLU, before the flattening, becomes a sigmoid
    gate[-2] = nn.Sigmoid()
    body = cnn(x_shape, "none", channels, strides, bias=True)
    return ANML(gate, Gated(body, target.outputs), target, inner_rate, segment)
