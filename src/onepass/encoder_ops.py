"""The first layer of an image encoder as operations of torch: see `encoder_kernel.py`.

Written as custom operations, so that compiled steps and recordings take them as they are.
"""

# triton comes with torch for CUDA alone
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false, reportIndexIssue=false
import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.nn.grad import conv2d_weight
from torch.utils.flop_counter import register_flop_formula

from onepass import encoder_kernel as kernel
from onepass.encoder_kernel import CONSTANT, PIXELS, PROGRAMS, TAPS, WARPS


@torch.library.custom_op("onepass::first_layer", mutates_args=())
def first_layer(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """out [N C H W], channels last; mean and variance; G, and what ReLU reads, for the way back."""
    padded, weight = _padded(x), weight.contiguous()
    programs, kinds = min(PROGRAMS, len(x)), _kinds(weight)
    parts = x.new_empty(programs, TAPS, TAPS)
    kernel.gram[(programs,)](padded, parts, len(x), **_sizes(x, dtype))
    gram, taps = parts.sum(0), x.new_empty(TAPS, len(weight))
    mean, var, shift = (torch.empty_like(gamma) for _ in range(3))
    kernel.folded[(1,)](gram, weight, gamma, beta, mean, var, taps, shift, eps, **kinds)
    return _out(x, padded, taps, shift, dtype), mean, var, gram, taps, shift


def _out(x: Tensor, padded: Tensor, taps: Tensor, shift: Tensor, dtype: torch.dtype) -> Tensor:
    out, sizes = _empty_out(x, taps.shape[1], dtype), _sizes(x, dtype)
    blocks = -(-sizes["HEIGHT"] * sizes["WIDTH"] // PIXELS)
    kernel.there[(len(x), blocks)](padded, taps, shift, out, CHANNELS=taps.shape[1], **sizes)
    return out


@first_layer.register_fake
def _(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _empty_out(x, len(weight), dtype), *_empty_sums(x, gamma)


@torch.library.custom_op("onepass::first_layer_back", mutates_args=())
def first_layer_back(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    mean: Tensor,
    var: Tensor,
    gram: Tensor,
    taps: Tensor,
    shift: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes by the weight, by gamma and by beta."""
    slope = slope.contiguous(memory_format=torch.channels_last)
    programs = min(PROGRAMS, len(x))
    parts = x.new_empty(programs, TAPS, len(weight))
    kernel.back[(programs,)](
        slope, _padded(x), taps, shift, parts, len(x), CHANNELS=len(weight),
        **_sizes(x, slope.dtype),
    )  # fmt: skip
    by_weight = torch.empty_like(weight, memory_format=torch.contiguous_format)
    by_gamma, by_beta = torch.empty_like(gamma), torch.empty_like(gamma)
    known = gram, weight.contiguous(), gamma, mean, var
    kernel.unfolded[(1,)](
        parts.sum(0), *known, by_weight, by_gamma, by_beta, eps, **_kinds(weight)
    )  # fmt: skip
    return by_weight, by_gamma, by_beta


@first_layer_back.register_fake
def _(slope, x, weight, gamma, mean, var, gram, taps, shift, eps):
    like = torch.empty_like
    return like(weight, memory_format=torch.contiguous_format), like(gamma), like(gamma)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, gamma, _, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight, gamma, *output[1:])


def _backward(ctx: Any, slope: Tensor, *by_others: Tensor) -> tuple[Any, ...]:
    return None, *first_layer_back(slope, *ctx.saved_tensors, ctx.eps), None, None


first_layer.register_autograd(_backward, setup_context=_keep)


@torch.library.custom_op("onepass::first_and_convolution", mutates_args=())
def first_and_convolution(
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    second: Tensor,
    stride: int,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The first layer and the convolution after it, which keep the image for the way back.

    What is between them is made anew there: the largest tensor of an encoder is never kept.
    """
    out, *rest = first_layer(x, weight, gamma, beta, eps, dtype)
    return F.conv2d(out, _short(second, dtype), stride=stride, padding=1), *rest


@first_and_convolution.register_fake
def _(x, weight, gamma, beta, second, stride, eps, dtype):
    edges = ((edge - 1) // stride + 1 for edge in x.shape[2:])
    shape = len(x), len(second), *edges
    out = x.new_empty(shape, dtype=dtype).contiguous(memory_format=torch.channels_last)
    return out, *_empty_sums(x, gamma)


@torch.library.custom_op("onepass::first_and_convolution_back", mutates_args=())
def first_and_convolution_back(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    second: Tensor,
    mean: Tensor,
    var: Tensor,
    gram: Tensor,
    taps: Tensor,
    shift: Tensor,
    stride: int,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Slopes by the first weight, gamma, beta and the second weight."""
    slope = slope.contiguous(memory_format=torch.channels_last)
    out = _out(x, _padded(x), taps, shift, slope.dtype)
    by_second = conv2d_weight(out, second.shape, slope, stride=stride, padding=1)
    # gone before the slope by it comes, which is as large
    del out
    # conv2d_input would put in an input that is not channels-last, and copy both slopes to match
    edges = zip(x.shape[2:], slope.shape[2:], strict=True)
    rest = [edge - 1 - stride * (short - 1) for edge, short in edges]
    by_out = F.conv_transpose2d(slope, _short(second, slope.dtype), None, stride, 1, rest)
    by_first = first_layer_back(by_out, x, weight, gamma, mean, var, gram, taps, shift, eps)
    return *by_first, by_second.to(second.dtype).contiguous()


@first_and_convolution_back.register_fake
def _(slope, x, weight, gamma, second, mean, var, gram, taps, shift, stride, eps):
    by_weight, by_second = (
        torch.empty_like(part, memory_format=torch.contiguous_format) for part in (weight, second)
    )
    return by_weight, torch.empty_like(gamma), torch.empty_like(gamma), by_second


def _keep_both(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, gamma, _, second, ctx.stride, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight, gamma, second, *output[1:])


def _backward_both(ctx: Any, slope: Tensor, *by_others: Tensor) -> tuple[Any, ...]:
    slopes = first_and_convolution_back(slope, *ctx.saved_tensors, ctx.stride, ctx.eps)
    return None, *slopes, None, None, None


first_and_convolution.register_autograd(_backward_both, setup_context=_keep_both)


def _short(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype, memory_format=torch.channels_last)


def _empty_out(x: Tensor, channels: int, dtype: torch.dtype) -> Float[Tensor, "N C H W"]:
    shape = len(x), channels, *x.shape[2:]
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)


def _empty_sums(x: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What goes with the outputs: mean, variance, G, taps and shift."""
    mean, var, shift = (torch.empty_like(gamma) for _ in range(3))
    return mean, var, x.new_empty(TAPS, TAPS), x.new_empty(TAPS, len(gamma)), shift


def _padded(x: Float[Tensor, "N 1 H W"]) -> Float[Tensor, "N 1 h w"]:
    """With a frame of zeros, so that no pixel asks where the edge is."""
    return F.pad(x, (1, 1, 1, 1)).contiguous()


def _sizes(x: Tensor, dtype: torch.dtype) -> dict[str, Any]:
    """Products are as long as what is written: of images in TF32 all sums are of one rounding."""
    height, width = x.shape[2:]
    precision = "tf32x3" if dtype == torch.float32 else "tf32"
    sizes = {"HEIGHT": height, "WIDTH": width, "PIXELS": PIXELS, "TAPS": TAPS}
    return {**sizes, "PRECISION": precision, "num_warps": WARPS}


def _kinds(weight: Float[Tensor, "C 1 3 3"]) -> dict[str, int]:
    return {"CHANNELS": len(weight), "TAPS": TAPS, "CONSTANT": CONSTANT}


@register_flop_formula([torch.ops.onepass.first_layer])
def _first_operations(x: Any, weight: Any, *others: Any, **more: Any) -> int:
    """Of the convolution; shapes stand for tensors."""
    return 2 * x[0] * math.prod(x[2:]) * math.prod(weight)


@register_flop_formula([torch.ops.onepass.first_layer_back])
def _first_operations_back(slope: Any, x: Any, weight: Any, *others: Any, **more: Any) -> int:
    """Nobody asks for slopes by the image."""
    return _first_operations(x, weight)


@register_flop_formula([torch.ops.onepass.first_and_convolution])
def _both_operations(
    x: Any, weight: Any, gamma: Any, beta: Any, second: Any, stride: int, *others: Any, **more: Any
) -> int:
    pixels = math.prod((edge - 1) // stride + 1 for edge in x[2:])
    return _first_operations(x, weight) + 2 * x[0] * pixels * math.prod(second)


@register_flop_formula([torch.ops.onepass.first_and_convolution_back])
def _both_operations_back(
    slope: Any, x: Any, weight: Any, gamma: Any, second: Any, *others: Any, **more: Any
) -> int:
    """The first layer once more and back, the second by its image and its weight."""
    second_layer = 2 * slope[0] * math.prod(slope[2:]) * math.prod(second)
    return 2 * _first_operations(x, weight) + 2 * second_layer
