"""SGD on a small network, one example at a time, without ever building the changed weights.

Every example changes a weight matrix by an outer product, so that with h the inputs of a layer, d
the error signals at its output and r the rate, the layer after the examples i < t acts as

    W_t h_t = W h_t - r sum_i (h_i . h_t) d_i        W_t^T d_t = W^T d_t - r sum_i (d_i . d_t) h_i

which is linear attention with the error signal as the value. The way back is written out as well:
with p the slope by what a layer gives, b by the error that it hands back, and j > t,

    slope by d_t = own slope + W b_t - r sum_i (h_i . b_t) d_i
                   - r sum_j [(h_t . b_j) d_j + (h_j . h_t) p_j]
    slope by h_t = own slope + W^T p_t - r sum_i (d_i . p_t) h_i
                   - r sum_j [(d_j . d_t) b_j + (d_t . p_j) h_j]

so that a stream of N examples is N steps there, N back, and matrix products for all the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from onepass.learners import dual_kernel as kernel
from onepass.targets import Classes, Target

Layer = tuple[Tensor, ...]
"""Weight [B O I] and, but for the last, bias [B O]; a batch of one is shared by all episodes."""


class Step(NamedTuple):
    """What examples leave behind in one layer: what came in, and the error at what went out."""

    inputs: Float[Tensor, "B N I"]
    errors: Float[Tensor, "B N O"]


def learn(
    layers: Sequence[Layer], z: Float[Tensor, "B N I"], y: Tensor, rate: Tensor, target: Target
) -> list[Step]:
    """One SGD step per example, in order; the history of each layer."""
    flat = [part for layer in layers for part in layer]
    found = _InnerLoop.apply(target, [len(layer) for layer in layers], y, z, rate, *flat)
    inputs, errors = found[: len(layers) - 1], found[len(layers) - 1 :]
    return [Step(*pair) for pair in zip((z, *inputs), errors, strict=True)]


def has_bias(layer: Layer) -> bool:
    return len(layer) == 2


def applied(layer: Layer, h: Float[Tensor, "B N I"]) -> Float[Tensor, "B N O"]:
    weight, *bias = layer
    if len(weight) == 1:
        # weights that all episodes share: one plain product
        return torch.nn.functional.linear(h, weight[0], bias[0][0] if bias else None)
    out = torch.einsum("bni,boi->bno", h, weight)
    return out + bias[0][:, None] if bias else out


def pulled(layer: Layer, errors: Float[Tensor, "B N O"]) -> Float[Tensor, "B N I"]:
    """The errors at what came in, by the weights as they are."""
    weight = layer[0]
    if len(weight) == 1:
        return errors @ weight[0]
    return torch.einsum("bno,boi->bni", errors, weight)


def _read(
    queries: Float[Tensor, "B 1 K"], keys: Float[Tensor, "B T K"], values: Float[Tensor, "B T V"]
) -> Float[Tensor, "B 1 V"]:
    """sum_i (k_i . q) v_i"""
    return torch.bmm(torch.bmm(queries, keys.mT), values)


class _InnerLoop(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        target: Target,
        sizes: list[int],
        y: Tensor,
        z: Tensor,
        rate: Tensor,
        *flat: Tensor,
    ) -> tuple[Tensor, ...]:
        layers = _grouped(flat, sizes)
        # what does not depend on the history is one product for all examples
        first, gram = applied(layers[0], z), torch.bmm(z, z.mT) + has_bias(layers[0])
        ctx.target, ctx.sizes = target, sizes
        ctx.kernel = isinstance(target, Classes) and kernel.fits([w for w, *_ in layers], z)
        if ctx.kernel:
            hidden, *errors = kernel.loop_there(first, gram, layers[1][0], y, rate)
            inputs, answers = [z, hidden], z.new_empty(0)
        else:
            inputs, errors, answers = _loop_there(target, layers, y, z, rate, first, gram)
        ctx.save_for_backward(y, rate, answers, *flat, *inputs, *errors)
        return *inputs[1:], *errors

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        y, rate, answers, *rest = ctx.saved_tensors
        flat, rest = rest[: sum(ctx.sizes)], rest[sum(ctx.sizes) :]
        layers, count = _grouped(flat, ctx.sizes), len(ctx.sizes)
        inputs, errors = rest[:count], rest[count:]
        pairs = zip(inputs, layers, strict=True)
        likeness = [torch.bmm(h, h.mT) + has_bias(layer) for h, layer in pairs]
        agreement = [torch.bmm(d, d.mT) for d in errors]
        by_input, by_error = slopes[: count - 1], slopes[count - 1 :]
        if ctx.kernel:
            *by_pre, back = kernel.loop_back(
                likeness[0], layers[1][0], y, rate, inputs[1], errors[1], *by_error, *by_input
            )  # fmt: skip
            by_back = [inputs[0][:0], back]
        else:
            by_answer = _curvature(ctx.target, answers, y)
            by_pre, by_back = _loop_back(
                layers, rate, inputs, errors, likeness, agreement, by_input, by_error, by_answer
            )
        return _collected(layers, rate, inputs, errors, likeness, agreement, by_pre, by_back)


def _loop_there(
    target: Target,
    layers: list[Layer],
    y: Tensor,
    z: Float[Tensor, "B N I"],
    rate: Tensor,
    first: Float[Tensor, "B N O"],
    gram: Float[Tensor, "B N N"],
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Inputs and errors of every layer, and the answers before each example was learned."""
    batch, length, _ = z.shape
    outputs = [layer[0].shape[1] for layer in layers]
    errors = [z.new_zeros(batch, length, width) for width in outputs]
    inputs = [z, *(z.new_zeros(batch, length, width) for width in outputs[:-1])]
    answers = z.new_zeros(batch, length, outputs[-1])
    for t in range(length):
        now = slice(t, t + 1)
        pre = first[:, now] - rate * torch.bmm(gram[:, now, :t], errors[0][:, :t])
        for n, layer in list(enumerate(layers))[1:]:
            h = inputs[n][:, now] = pre.relu()
            alike = torch.bmm(h, inputs[n][:, :t].mT) + has_bias(layer)
            pre = applied(layer, h) - rate * torch.bmm(alike, errors[n][:, :t])
        answers[:, now] = pre
        error = errors[-1][:, now] = target.slope(pre, y[:, now])
        for n in range(len(layers) - 1, 0, -1):
            drop = _read(error, errors[n][:, :t], inputs[n][:, :t])
            back = pulled(layers[n], error) - rate * drop
            error = errors[n - 1][:, now] = back * (inputs[n][:, now] > 0)
    return inputs, errors, answers


def _loop_back(
    layers: list[Layer],
    rate: Tensor,
    inputs: list[Tensor],
    errors: list[Tensor],
    likeness: list[Tensor],
    agreement: list[Tensor],
    by_input: Sequence[Tensor],
    by_error: Sequence[Tensor],
    by_answer: Callable[[int, Tensor], Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Slopes by what every layer gives, and by what it hands back."""
    by_pre, by_back = ([torch.zeros_like(part) for part in parts] for parts in (errors, inputs))
    length, last = inputs[0].shape[1], len(layers) - 1
    for t in range(length - 1, -1, -1):
        now, later = slice(t, t + 1), slice(t + 1, length)
        drop = torch.bmm(likeness[0][:, now, later], by_pre[0][:, later])
        slope = by_error[0][:, now] - rate * drop
        for n in range(1, last + 1):
            h = inputs[n][:, now]
            back = by_back[n][:, now] = slope * (h > 0)
            drop = _read(back, inputs[n][:, :t], errors[n][:, :t])
            drop += _read(h, by_back[n][:, later], errors[n][:, later])
            drop += torch.bmm(likeness[n][:, now, later], by_pre[n][:, later])
            slope = by_error[n][:, now] + applied(layers[n][:1], back) - rate * drop
        pre = by_pre[last][:, now] = by_answer(t, slope)
        for n in range(last, 0, -1):
            drop = _read(pre, errors[n][:, :t], inputs[n][:, :t])
            drop += _read(errors[n][:, now], by_pre[n][:, later], inputs[n][:, later])
            drop += torch.bmm(agreement[n][:, now, later], by_back[n][:, later])
            slope = by_input[n - 1][:, now] + pulled(layers[n], pre) - rate * drop
            pre = by_pre[n - 1][:, now] = slope * (inputs[n][:, now] > 0)
    return by_pre, by_back


def _grouped(flat: Sequence[Tensor], sizes: list[int]) -> list[Layer]:
    parts = iter(flat)
    return [tuple(next(parts) for _ in range(size)) for size in sizes]


def _curvature(target: Target, answers: Tensor, y: Tensor) -> Callable[[int, Tensor], Tensor]:
    """The slope by the answer to example t, given that by the error it makes."""

    def by_answer(t: int, slope: Tensor) -> Tensor:
        now = slice(t, t + 1)
        given = answers[:, now].detach().requires_grad_()
        with torch.enable_grad():
            error = target.slope(given, y[:, now])
        return torch.autograd.grad(error, given, slope)[0]

    return by_answer


def _collected(
    layers: list[Layer],
    rate: Tensor,
    inputs: list[Tensor],
    errors: list[Tensor],
    likeness: list[Tensor],
    agreement: list[Tensor],
    by_pre: list[Tensor],
    by_back: list[Tensor],
) -> tuple[Any, ...]:
    """Slopes by z, by the rate and by the weights, in the order they were given."""
    # what example t reads of example i < t
    read = [torch.bmm(p, d.mT).tril(-1) for p, d in zip(by_pre, errors, strict=True)]
    handed = [torch.bmm(b, h.mT).tril(-1) for b, h in zip(by_back[1:], inputs[1:], strict=True)]
    by_z = pulled(layers[0], by_pre[0]) - rate * torch.bmm(read[0] + read[0].mT, inputs[0])
    pairs = zip(likeness + agreement[1:], read + handed, strict=True)
    by_rate = -torch.stack([(a * b).sum() for a, b in pairs]).sum()
    by_weights = []
    for n, layer in enumerate(layers):
        slope = torch.bmm(by_pre[n].mT, inputs[n])
        if n:
            slope = slope + torch.bmm(errors[n].mT, by_back[n])
        slopes = [slope, by_pre[n].sum(1)][: len(layer)]
        shared = len(layer[0]) == 1
        by_weights += [part.sum(0, keepdim=True) if shared else part for part in slopes]
    return None, None, None, by_z, by_rate, *by_weights
