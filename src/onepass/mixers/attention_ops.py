"""`attention_kernel.py` as an operation of torch, so that compiled steps and recordings take it."""

# triton comes with torch for CUDA alone
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false, reportIndexIssue=false
import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from onepass.mixers import attention_kernel as kernel
from onepass.mixers.attention_kernel import HAS_KERNEL, KEYS, ROWS, WARPS


def fits(q: Float[Tensor, "B H R K"]) -> bool:
    """Whether there is a kernel for these: on a card, short numbers, widths that any card holds."""
    short = q.dtype in (torch.bfloat16, torch.float16)
    return HAS_KERNEL and q.is_cuda and short and q.shape[-1] in (16, 32, 64)


@torch.library.custom_op("onepass::attend", mutates_args=())
def attend(
    q: Tensor, k: Tensor, v: Tensor, stop: Tensor | None, length: int, chunk: int
) -> tuple[Tensor, Tensor]:
    """What rows [B H R K] read of tokens [B H T K], the first `length` a stream; and log-sums."""
    asked = (k.shape[2] - length) // chunk
    assert stop is None or stop.shape == (len(q), asked), f"stops {tuple(stop.shape)}"
    q, k, v = (_rows(part) for part in (q, k, v))
    out, lse = _empty(q), q.new_empty(q.shape[:3], dtype=torch.float32)
    sizes = _sizes(q, k, stop, length, chunk)
    kernel.there[_blocks(q, ROWS)](
        q, k, v, out, lse, _stops(stop, q), *_strides(q, k, v), *sizes, **_kinds(q, stop)
    )
    return out, lse


@attend.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor, stop: Tensor | None, length: int, chunk: int
) -> tuple[Tensor, Tensor]:
    return _empty(q), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op("onepass::attend_back", mutates_args=())
def attend_back(
    by_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    stop: Tensor | None,
    lse: Tensor,
    length: int,
    chunk: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes by q, k and v."""
    q, k, v, by_out = (_rows(part) for part in (q, k, v, by_out))
    delta, stops, kinds = torch.empty_like(lse), _stops(stop, q), _kinds(q, stop)
    by_q, by_k, by_v = (_empty(part) for part in (q, k, v))
    sizes = *_strides(q, k, v, by_out), *_sizes(q, k, stop, length, chunk)
    given = q, k, v, lse, stops, by_out, delta
    kernel.back_rows[_blocks(q, ROWS)](*given, by_q, *sizes, **kinds)
    kernel.back_keys[_blocks(k, KEYS)](*given, by_k, by_v, *sizes, **kinds)
    return by_q, by_k, by_v


@attend_back.register_fake
def _(by_out, q, k, v, stop, lse, length, chunk):
    return _empty(q), _empty(k), _empty(v)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, stop, ctx.length, ctx.chunk = inputs
    ctx.save_for_backward(q, k, v, stop, output[1])


def _backward(ctx: Any, by_out: Tensor, by_lse: Tensor) -> tuple[Any, ...]:
    slopes = attend_back(by_out, *ctx.saved_tensors, ctx.length, ctx.chunk)
    return *slopes, None, None, None


attend.register_autograd(_backward, setup_context=_keep)


@register_flop_formula([torch.ops.onepass.attend, torch.ops.onepass.attend_back])
def _operations(*given: Any, out_shape: Any = None, **others: Any) -> int:
    """Two products there and five back, of what is seen; shapes stand for tensors."""
    *shapes, length, chunk = given
    products, first = (5, 1) if len(shapes) == 6 else (2, 0)
    (batch, heads, rows, width), tokens = shapes[first], shapes[first + 1][2]
    queries = tokens - length
    seen = queries * length + queries * (chunk + 1) // 2
    if rows > queries:
        seen += length * (length + 1) // 2
    return 2 * products * batch * heads * width * seen


def _rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty(like: Float[Tensor, "B H R K"]) -> Float[Tensor, "B H R K"]:
    """Laid out so that the heads of a token are side by side, as the layer after it reads them."""
    batch, heads, rows, width = like.shape
    return like.new_empty(batch, rows, heads, width).transpose(1, 2)


def _stops(stop: Tensor | None, q: Tensor) -> Tensor:
    return q if stop is None else stop.contiguous()


def _blocks(x: Tensor, size: int) -> tuple[int, int]:
    return -(-x.shape[2] // size), x.shape[0] * x.shape[1]


def _strides(*parts: Tensor) -> list[int]:
    return [stride for part in parts for stride in part.stride()[:3]]


def _sizes(q: Tensor, k: Tensor, stop: Tensor | None, length: int, chunk: int) -> tuple[Any, ...]:
    """The scale of scores in powers of 2, rows, tokens, of which stream, of a query, queries."""
    scale = math.log2(math.e) / math.sqrt(q.shape[-1])
    return scale, q.shape[2], k.shape[2], length, chunk, 0 if stop is None else stop.shape[1]


def _kinds(q: Tensor, stop: Tensor | None) -> dict[str, Any]:
    return {
        "H": q.shape[1],
        "WIDTH": q.shape[3],
        "STOPS": stop is not None,
        "ROWS": ROWS,
        "KEYS": KEYS,
        "num_warps": WARPS,
    }
