"""Fast weights: a network of which each episode has its own copy, trained one example at a time."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from onepass.targets import Target

Weights = dict[str, Tensor]
"""By name; axis 0 is the episode."""


def copies(network: nn.Module, batch: int) -> Weights:
    """The weights that every episode starts with."""
    return {name: w.expand(batch, *w.shape) for name, w in network.named_parameters()}


def answers(network: nn.Module, weights: Weights, inputs: Any) -> Float[Tensor, "B Q O"]:
    """What each episode's network says to its queries; `inputs` is a tuple of [B Q ...]."""
    return vmap(lambda own, given: functional_call(network, own, given))(weights, inputs)


def sgd(
    network: nn.Module, target: Target, weights: Weights, inputs: Any, y: Tensor, rate: Tensor
) -> Weights:
    """One step of gradient descent per example, in order; differentiable through and through."""

    def loss(own: Weights, given: Any, told: Tensor) -> Float[Tensor, ""]:
        answer = functional_call(network, own, tree_map(lambda part: part[None], given))
        return target.loss(answer[None], told[None, None]).sum()

    slope = vmap(grad(loss))
    # unbound, not indexed: the way back through each index would touch the whole stream
    leaves, form = tree_flatten(inputs)
    for *parts, told in zip(*(leaf.unbind(1) for leaf in leaves), y.unbind(1), strict=True):
        steps = slope(weights, tree_unflatten(parts, form), told)
        weights = tree_map(lambda weight, step: weight - rate * step, weights, steps)
    return weights


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
        needed = ctx.needs_input_grad[1:]
        kind = ctx.saved_tensors[0].device.type
        # in the precision of the way there, whatever holds on the way back
        with torch.enable_grad(), torch.autocast(kind, enabled=False):
            tensors = [
                tensor.detach().requires_grad_(need)
                for tensor, need in zip(ctx.saved_tensors, needed, strict=True)
            ]
            results = ctx.function(*tensors)
        wanted = [tensor for tensor in tensors if tensor.requires_grad]
        found = iter(torch.autograd.grad(results, wanted, gradients, allow_unused=True))
        return None, *(next(found) if need else None for need in needed)
