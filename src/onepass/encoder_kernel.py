"""The first layer of an image encoder in few passes over memory, on a CUDA card, while training.

Convolution of one channel, batch-norm and ReLU: what the convolution gives is 32 times as large as
what it reads, and cheap to compute from it. So it is never written down: each pass computes it
anew from the image, which leaves one write there and two reads back of the large tensor.

    y = w * x        n = (y - mean) / sqrt(var + eps)        out = relu(gamma n + beta)
"""

# triton comes with torch for CUDA alone, and its functions are no functions to a type-checker
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false
import importlib.util
import inspect
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

HAS_KERNEL = importlib.util.find_spec("triton") is not None
PIXELS = 128  # at a time
PROGRAMS = 1_056  # 8 for each of the 132 processors of a card; others differ little
TAPS = 16  # 3 x 3, filled up to what matrix units take

if HAS_KERNEL:
    import triton
    import triton.language as tl

    def compiled(function):
        # tests wrap every function to check its types, and a kernel is compiled from its source
        return triton.jit(inspect.unwrap(function))

    @compiled
    def _patches(image, pixel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr):
        tap = tl.arange(0, TAPS)
        row = (pixel // WIDTH)[:, None] + (tap // 3 - 1)[None]
        column = (pixel % WIDTH)[:, None] + (tap % 3 - 1)[None]
        inside = (row >= 0) & (row < HEIGHT) & (column >= 0) & (column < WIDTH)
        there = inside & (tap < 9)[None] & (pixel < HEIGHT * WIDTH)[:, None]
        return tl.load(image + row * WIDTH + column, there, 0.0)

    @compiled
    def _sums(
        x, weight, sums, images, CHANNELS: tl.constexpr,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr,
    ):  # fmt: skip
        """Sum and sum of squares of each channel, one pair for each program."""
        program, programs = tl.program_id(0), tl.num_programs(0)
        channel, size = tl.arange(0, CHANNELS), HEIGHT * WIDTH
        w = tl.load(weight + tl.arange(0, TAPS)[:, None] * CHANNELS + channel[None])
        total = tl.zeros([PIXELS, CHANNELS], dtype=tl.float32)
        square = tl.zeros([PIXELS, CHANNELS], dtype=tl.float32)
        for image in range(program, images, programs):
            for begin in range(0, size, PIXELS):
                pixel = begin + tl.arange(0, PIXELS)
                y = tl.dot(_patches(x + image * size, pixel, HEIGHT, WIDTH, TAPS), w)
                total += y
                square += y * y
        tl.store(sums + program * 2 * CHANNELS + channel, tl.sum(total, 0))
        tl.store(sums + (program * 2 + 1) * CHANNELS + channel, tl.sum(square, 0))

    @compiled
    def _normed(
        x, weight, scale, shift, image, pixel,
        CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr,
    ):  # fmt: skip
        """The patches of these pixels, and n of each of their channels."""
        channel = tl.arange(0, CHANNELS)
        w = tl.load(weight + tl.arange(0, TAPS)[:, None] * CHANNELS + channel[None])
        patches = _patches(x + image * HEIGHT * WIDTH, pixel, HEIGHT, WIDTH, TAPS)
        n = tl.dot(patches, w) * tl.load(scale + channel)[None] + tl.load(shift + channel)[None]
        return patches, n

    @compiled
    def _there(
        x, weight, scale, shift, gamma, beta, out, CHANNELS: tl.constexpr,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr,
    ):  # fmt: skip
        image = tl.program_id(0)
        pixel, channel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS), tl.arange(0, CHANNELS)
        _, n = _normed(x, weight, scale, shift, image, pixel, CHANNELS, HEIGHT, WIDTH, TAPS)
        value = n * tl.load(gamma + channel)[None] + tl.load(beta + channel)[None]
        place = (image * HEIGHT * WIDTH + pixel)[:, None] * CHANNELS + channel[None]
        there = (pixel < HEIGHT * WIDTH)[:, None]
        tl.store(out + place, tl.maximum(value, 0.0).to(out.dtype.element_ty), there)

    @compiled
    def _back(
        slope, x, weight, scale, shift, gamma, beta, means, sums, images,
        CHANNELS: tl.constexpr, HEIGHT: tl.constexpr, WIDTH: tl.constexpr,
        PIXELS: tl.constexpr, TAPS: tl.constexpr, WEIGHTS: tl.constexpr,
    ):  # fmt: skip
        """Either the sums of the slope and of its product with n, or those of the weights."""
        program, programs = tl.program_id(0), tl.num_programs(0)
        channel, size = tl.arange(0, CHANNELS), HEIGHT * WIDTH
        factor, offset = tl.load(gamma + channel)[None], tl.load(beta + channel)[None]
        if WEIGHTS:
            mean = tl.load(means + channel)[None]
            along = tl.load(means + CHANNELS + channel)[None]
            total = tl.zeros([TAPS, CHANNELS], dtype=tl.float32)
        else:
            total = tl.zeros([PIXELS, CHANNELS], dtype=tl.float32)
            product = tl.zeros([PIXELS, CHANNELS], dtype=tl.float32)
        for image in range(program, images, programs):
            for begin in range(0, size, PIXELS):
                pixel = begin + tl.arange(0, PIXELS)
                there = (pixel < size)[:, None]
                patches, n = _normed(
                    x, weight, scale, shift, image, pixel, CHANNELS, HEIGHT, WIDTH, TAPS
                )
                place = (image * size + pixel)[:, None] * CHANNELS + channel[None]
                by_out = tl.load(slope + place, there, 0.0).to(tl.float32)
                by_out = tl.where(n * factor + offset > 0, by_out, 0.0)
                if WEIGHTS:
                    by_y = tl.where(there, by_out - mean - n * along, 0.0)
                    total += tl.dot(tl.trans(patches), by_y)
                else:
                    total += by_out
                    product += by_out * n
        if WEIGHTS:
            tap = tl.arange(0, TAPS)[:, None]
            tl.store(sums + (program * TAPS + tap) * CHANNELS + channel[None], total)
        else:
            tl.store(sums + program * 2 * CHANNELS + channel, tl.sum(total, 0))
            tl.store(sums + (program * 2 + 1) * CHANNELS + channel, tl.sum(product, 0))


@torch.library.custom_op("onepass::first_layer", mutates_args=())
def first_layer(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """out [N C H W], channels last, and mean and variance of each channel."""
    x, images, sizes = x.contiguous(), len(x), _sizes(x, weight)
    taps, programs = _taps(weight), min(PROGRAMS, len(x))
    sums = x.new_empty(programs, 2, sizes["CHANNELS"])
    _sums[(programs,)](x, taps, sums, images, **sizes)
    count = images * sizes["HEIGHT"] * sizes["WIDTH"]
    mean, square = sums.double().sum(0) / count
    var = (square - mean.square()).clamp(min=0)
    scale = (var + eps).rsqrt()
    out = _empty_out(x, weight, dtype)
    blocks = triton.cdiv(sizes["HEIGHT"] * sizes["WIDTH"], PIXELS)
    _there[(images, blocks)](
        x, taps, scale.float(), (-mean * scale).float(), gamma, beta, out, **sizes
    )
    return out, mean.float(), var.float()


@first_layer.register_fake
def _(
    x: Tensor, weight: Tensor, gamma: Tensor, beta: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_out(x, weight, dtype), torch.empty_like(gamma), torch.empty_like(gamma)


@torch.library.custom_op("onepass::first_layer_back", mutates_args=())
def first_layer_back(
    slope: Tensor,
    x: Tensor,
    weight: Tensor,
    gamma: Tensor,
    beta: Tensor,
    mean: Tensor,
    var: Tensor,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes by the weight, by gamma and by beta."""
    slope, x = slope.contiguous(memory_format=torch.channels_last), x.contiguous()
    images, sizes, taps = len(x), _sizes(x, weight), _taps(weight)
    programs = min(PROGRAMS, images)
    scale = (var + eps).rsqrt()
    given = slope, x, taps, scale, -mean * scale, gamma, beta
    sums = x.new_empty(programs, 2, sizes["CHANNELS"])
    _back[(programs,)](*given, sums, sums, images, **sizes, WEIGHTS=False)
    totals = sums.sum(0)
    means = totals / (images * sizes["HEIGHT"] * sizes["WIDTH"])
    parts = x.new_empty(programs, TAPS, sizes["CHANNELS"])
    _back[(programs,)](*given, means, parts, images, **sizes, WEIGHTS=True)
    by_taps = parts.sum(0)[:9] * (gamma * scale)
    by_weight = by_taps.mT.reshape(weight.shape).contiguous()
    # what an operator gives may share no memory
    return by_weight, totals[1].clone(), totals[0].clone()


@first_layer_back.register_fake
def _(slope, x, weight, gamma, beta, mean, var, eps):
    like = torch.empty_like
    return like(weight, memory_format=torch.contiguous_format), like(gamma), like(beta)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, weight, gamma, beta, ctx.eps, _ = inputs
    ctx.save_for_backward(x, weight, gamma, beta, *output[1:])


def _backward(ctx: Any, slope: Tensor, by_mean: Tensor, by_var: Tensor) -> tuple[Any, ...]:
    return None, *first_layer_back(slope, *ctx.saved_tensors, ctx.eps), None, None


first_layer.register_autograd(_backward, setup_context=_keep)


def _empty_out(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Float[Tensor, "N C H W"]:
    shape = len(x), len(weight), *x.shape[2:]
    return torch.empty(shape, dtype=dtype, device=x.device, memory_format=torch.channels_last)


def _taps(weight: Float[Tensor, "C 1 3 3"]) -> Float[Tensor, "taps C"]:
    return F.pad(weight.flatten(1), (0, TAPS - 9)).mT.contiguous()


def _sizes(x: Tensor, weight: Tensor) -> dict[str, int]:
    height, width = x.shape[2:]
    names = {"CHANNELS": len(weight), "HEIGHT": height, "WIDTH": width}
    return names | {"PIXELS": PIXELS, "TAPS": TAPS}
