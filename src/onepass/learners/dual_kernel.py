"""The loops of `dual.py` in one kernel each, for two layers and classes, on a CUDA card.

One program walks through one episode, there and back; its history stays in the cache. With Z what
the first layer gives before any step, W the second layer, G the likeness of the inputs, a and d2
inputs and errors of the second layer, d1 the errors of the first, i < t and j > t:

    a_t = relu(Z_t - r sum_i G_ti d1_i)
    d2_t = softmax(W a_t - r sum_i (a_i . a_t) d2_i) - onehot(y_t)
    d1_t = [a_t > 0] (W^T d2_t - r sum_i (d2_i . d2_t) a_i)

and back, with p and q the slopes by what the layers give and b the one by what is handed back,

    b_t = [a_t > 0] (own - r sum_j G_jt p_j)
    q_t = J_t (own + W b_t - r sum_i (a_i . b_t) d2_i
               - r sum_j [(a_t . b_j) d2_j + (a_j . a_t) q_j])
    p_t = [a_t > 0] (own + W^T q_t - r sum_i (d2_i . q_t) a_i
                     - r sum_j [(d2_j . d2_t) b_j + (d2_t . q_j) a_j])
"""

# triton comes with torch for CUDA alone, and its functions are no functions to a type-checker
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false
# pyright: reportIndexIssue=false
import importlib.util
import inspect

import torch
from jaxtyping import Float, Int
from torch import Tensor

HAS_KERNEL = importlib.util.find_spec("triton") is not None
ROWS = 32  # of the history or of a weight, read at a time
WARPS = 16
WIDEST = 1_024  # a row of the history that a program can hold

if HAS_KERNEL:
    import triton
    import triton.language as tl

    def compiled(function):
        # tests wrap every function to check its types, and a kernel is compiled from its source
        return triton.jit(inspect.unwrap(function))

    @compiled
    def _tile(pointer, row, column, rows, columns, WIDTH: tl.constexpr):
        """Rows that are there, zeros for the others."""
        inside = (row < rows)[:, None] & (column < columns)[None]
        return tl.load(pointer + row[:, None] * WIDTH + column[None], inside, 0.0)

    @compiled
    def _applied(
        weight, given, h, v,
        H: tl.constexpr, V: tl.constexpr, VP: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """W x"""
        out = tl.zeros([VP], dtype=given.dtype)
        for begin in tl.static_range(0, VP, ROWS):
            row = begin + tl.arange(0, ROWS)
            part = tl.sum(_tile(weight, row, h, V, H, H) * given[None], 1)
            out += tl.sum(tl.where(row[:, None] == v[None], part[:, None], 0.0), 0)
        return out

    @compiled
    def _pulled(
        weight, given, h, v,
        H: tl.constexpr, V: tl.constexpr, HP: tl.constexpr, VP: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        """W^T x"""
        out = tl.zeros([HP], dtype=given.dtype)
        for begin in tl.static_range(0, VP, ROWS):
            row = begin + tl.arange(0, ROWS)
            part = tl.sum(tl.where(row[:, None] == v[None], given[None], 0.0), 1)
            out += tl.sum(_tile(weight, row, h, V, H, H) * part[:, None], 0)
        return out

    @compiled
    def _there(
        first, gram, weight, y, rate, a, d1, d2, length,
        H: tl.constexpr, V: tl.constexpr, HP: tl.constexpr, VP: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        episode = tl.program_id(0).to(tl.int64)
        first += episode * length * H
        a += episode * length * H
        d1 += episode * length * H
        d2 += episode * length * V
        gram += episode * length * length
        y += episode * length
        r = tl.load(rate)
        h, v, rows = tl.arange(0, HP), tl.arange(0, VP), tl.arange(0, ROWS)
        for t in range(length):
            z = tl.load(first + t * H + h, h < H, 0.0)
            for begin in range(0, t, ROWS):
                i = begin + rows
                g = tl.load(gram + t * length + i, i < t, 0.0)
                z -= r * tl.sum(g[:, None] * _tile(d1, i, h, t, H, H), 0)
            here = tl.maximum(z, 0.0)
            tl.store(a + t * H + h, here, h < H)
            o = _applied(weight, here, h, v, H, V, VP, ROWS)
            for begin in range(0, t, ROWS):
                i = begin + rows
                alike = tl.sum(_tile(a, i, h, t, H, H) * here[None], 1)
                o -= r * tl.sum(alike[:, None] * _tile(d2, i, v, t, V, V), 0)
            o = tl.where(v < V, o, float("-inf"))
            p = tl.exp(o - tl.max(o, 0))
            error = p / tl.sum(p, 0) - tl.where(v == tl.load(y + t), 1.0, 0.0)
            tl.store(d2 + t * V + v, error, v < V)
            back = _pulled(weight, error, h, v, H, V, HP, VP, ROWS)
            for begin in range(0, t, ROWS):
                i = begin + rows
                alike = tl.sum(_tile(d2, i, v, t, V, V) * error[None], 1)
                back -= r * tl.sum(alike[:, None] * _tile(a, i, h, t, H, H), 0)
            tl.store(d1 + t * H + h, tl.where(z > 0, back, 0.0), h < H)
            # the next example reads what all threads wrote
            tl.debug_barrier()

    @compiled
    def _back(
        gram, alike, agree, weight, y, rate, a, d2, own_d1, own_d2, own_a, p, q, b, length,
        H: tl.constexpr, V: tl.constexpr, HP: tl.constexpr, VP: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        episode = tl.program_id(0).to(tl.int64)
        square, wide, narrow = length * length, length * H, length * V
        gram += episode * square
        alike += episode * square
        agree += episode * square
        y += episode * length
        a += episode * wide
        d2 += episode * narrow
        own_d1 += episode * wide
        own_d2 += episode * narrow
        own_a += episode * wide
        p += episode * wide
        q += episode * narrow
        b += episode * wide
        r = tl.load(rate)
        h, v, rows = tl.arange(0, HP), tl.arange(0, VP), tl.arange(0, ROWS)
        for back in range(length):
            t = length - 1 - back
            here = tl.load(a + t * H + h, h < H, 0.0)
            error = tl.load(d2 + t * V + v, v < V, 0.0)
            handed = tl.load(own_d1 + t * H + h, h < H, 0.0)
            for begin in range(t + 1, length, ROWS):
                j = begin + rows
                g = tl.load(gram + t * length + j, j < length, 0.0)
                handed -= r * tl.sum(g[:, None] * _tile(p, j, h, length, H, H), 0)
            handed = tl.where(here > 0, handed, 0.0)
            tl.store(b + t * H + h, handed, h < H)
            by_error = tl.load(own_d2 + t * V + v, v < V, 0.0)
            by_error += _applied(weight, handed, h, v, H, V, VP, ROWS)
            for begin in range(0, t, ROWS):
                i = begin + rows
                c = tl.sum(_tile(a, i, h, t, H, H) * handed[None], 1)
                by_error -= r * tl.sum(c[:, None] * _tile(d2, i, v, t, V, V), 0)
            by_input = tl.load(own_a + t * H + h, h < H, 0.0)
            for begin in range(t + 1, length, ROWS):
                j = begin + rows
                tile = _tile(b, j, h, length, H, H)
                c = tl.sum(tile * here[None], 1)
                by_error -= r * tl.sum(c[:, None] * _tile(d2, j, v, length, V, V), 0)
                c = tl.load(alike + t * length + j, j < length, 0.0)
                by_error -= r * tl.sum(c[:, None] * _tile(q, j, v, length, V, V), 0)
                c = tl.load(agree + t * length + j, j < length, 0.0)
                by_input -= r * tl.sum(c[:, None] * tile, 0)
            share = tl.where(v < V, error + tl.where(v == tl.load(y + t), 1.0, 0.0), 0.0)
            by_answer = share * (by_error - tl.sum(share * by_error, 0))
            tl.store(q + t * V + v, by_answer, v < V)
            by_input += _pulled(weight, by_answer, h, v, H, V, HP, VP, ROWS)
            for begin in range(0, t, ROWS):
                i = begin + rows
                c = tl.sum(_tile(d2, i, v, t, V, V) * by_answer[None], 1)
                by_input -= r * tl.sum(c[:, None] * _tile(a, i, h, t, H, H), 0)
            for begin in range(t + 1, length, ROWS):
                j = begin + rows
                c = tl.sum(_tile(q, j, v, length, V, V) * error[None], 1)
                by_input -= r * tl.sum(c[:, None] * _tile(a, j, h, length, H, H), 0)
            tl.store(p + t * H + h, tl.where(here > 0, by_input, 0.0), h < H)
            tl.debug_barrier()


def fits(weights: list[Tensor], z: Tensor) -> bool:
    """Whether there is a kernel for this network: two layers that all episodes share."""
    if not (HAS_KERNEL and z.is_cuda and len(weights) == 2):
        return False
    return all(len(weight) == 1 for weight in weights) and weights[0].shape[1] <= WIDEST


def loop_there(
    first: Float[Tensor, "B N H"],
    gram: Float[Tensor, "B N N"],
    weight: Float[Tensor, "1 V H"],
    y: Int[Tensor, "B N"],
    rate: Float[Tensor, ""],
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs of the second layer, errors of the first and of the second."""
    (batch, length, hidden), classes = first.shape, weight.shape[1]
    a, d1 = torch.empty_like(first), torch.empty_like(first)
    d2 = first.new_empty(batch, length, classes)
    _there[(batch,)](
        first, gram, weight, y, rate, a, d1, d2, length, **_sizes(hidden, classes)
    )  # fmt: skip
    return a, d1, d2


def loop_back(
    gram: Float[Tensor, "B N N"],
    alike: Float[Tensor, "B N N"],
    agree: Float[Tensor, "B N N"],
    weight: Float[Tensor, "1 V H"],
    y: Int[Tensor, "B N"],
    rate: Float[Tensor, ""],
    a: Float[Tensor, "B N H"],
    d2: Float[Tensor, "B N V"],
    by_d1: Float[Tensor, "B N H"],
    by_d2: Float[Tensor, "B N V"],
    by_a: Float[Tensor, "B N H"],
) -> tuple[Tensor, Tensor, Tensor]:
    """Slopes by what the first layer gives, the second gives, and the second hands back."""
    p, q, b = torch.empty_like(a), torch.empty_like(d2), torch.empty_like(a)
    _back[(len(a),)](
        gram, alike, agree, weight, y, rate, a, d2,
        by_d1.contiguous(), by_d2.contiguous(), by_a.contiguous(), p, q, b, a.shape[1],
        **_sizes(a.shape[2], d2.shape[2]),
    )  # fmt: skip
    return p, q, b


def _sizes(hidden: int, classes: int) -> dict[str, int]:
    wide, narrow = (int(triton.next_power_of_2(size)) for size in (hidden, classes))
    return {
        "H": hidden,
        "V": classes,
        "HP": wide,
        "VP": max(narrow, ROWS),
        "ROWS": ROWS,
        "num_warps": WARPS,
    }
