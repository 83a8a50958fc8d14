"""The loops of `dual.py` for two layers and classes, on a CUDA card: a chunk of examples a kernel.

With Z what the first layer gives before any step, W the second layer, G the likeness of the inputs,
a and d2 inputs and errors of the second layer, d1 the errors of the first, i < t and j > t:

    a_t = relu(Z_t - r sum_i G_ti d1_i)
    d2_t = softmax(W a_t - r sum_i (a_i . a_t) d2_i) - onehot(y_t)
    d1_t = [a_t > 0] (W^T d2_t - r sum_i (d2_i . d2_t) a_i)

and back, with p and q the slopes by what the layers give and b the one by what is handed back,

    b_t = [a_t > 0] (own - r sum_j G_jt p_j)
    q_t = J_t (own + W b_t - r sum_i (a_i . b_t) d2_i
               - r sum_j [(a_t . b_j) d2_j + (a_j . a_t) q_j])
    p_t = [a_t > 0] (own + W^T q_t - r sum_i (d2_i . q_t) a_i
                     - r sum_j [(d2_j . d2_t) b_j + (d2_t . q_j) a_j])

Of the examples outside a chunk all that is read are sums that do not depend on it, so they are
matrix products before it: Z without them, W as it is by then, and back E, what W is pulled to,

    W - r sum_i d2_i a_i^T        E = - r sum_j (d2_j b_j^T + q_j a_j^T)

and within a chunk one program walks through one episode, with the chunk's history in registers.
"""

# triton comes with torch for CUDA alone, and its functions are no functions to a type-checker
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false
# pyright: reportIndexIssue=false

import torch
from jaxtyping import Float, Int
from torch import Tensor

from onepass.kernels import HAS_KERNEL, compiled

CHUNK = 16  # examples whose history fits into registers
ROWS = 16  # of a weight, read at a time
WARPS = 8
WIDEST = 1_024  # a row of the history that a program can hold

if HAS_KERNEL:
    import triton
    import triton.language as tl

    @compiled
    def _tile(pointer, row, column, rows, columns, WIDTH: tl.constexpr):
        """Rows that are there, zeros for the others."""
        inside = (row < rows)[:, None] & (column < columns)[None]
        return tl.load(pointer + row[:, None] * WIDTH + column[None], inside, 0.0)

    @compiled
    def _placed(part, row, v):
        """A few rows of a product, each at its place among all."""
        return tl.sum(tl.where(row[:, None] == v[None], part[:, None], 0.0), 0)

    @compiled
    def _chosen(given, row, v):
        """The same way back: a few of all."""
        return tl.sum(tl.where(row[:, None] == v[None], given[None], 0.0), 1)

    @compiled
    def _along(tile, given):
        """The product of each row with what is given."""
        return tl.sum(tile * given[None], 1)

    @compiled
    def _mixed(share, tile):
        return tl.sum(share[:, None] * tile, 0)

    @compiled
    def _there(
        pre, gram, weight, y, rate, a, d1, d2, begin, count, length,
        H: tl.constexpr, V: tl.constexpr, HP: tl.constexpr, VP: tl.constexpr,
        CHUNK: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        episode = tl.program_id(0).to(tl.int64)
        start = episode * length + begin
        pre += episode * count * H
        weight += episode * V * H
        gram += start * length + begin
        a += start * H
        d1 += start * H
        d2 += start * V
        y += start
        r = tl.load(rate)
        h, v, i = tl.arange(0, HP), tl.arange(0, VP), tl.arange(0, CHUNK)
        inputs = tl.zeros([CHUNK, HP], dtype=r.dtype)
        handed = tl.zeros([CHUNK, HP], dtype=r.dtype)
        errors = tl.zeros([CHUNK, VP], dtype=r.dtype)
        for t in range(count):
            now = (i == t)[:, None]
            alike = tl.load(gram + t * length + i, i < t, 0.0)
            z = tl.load(pre + t * H + h, h < H, 0.0) - r * _mixed(alike, handed)
            here = tl.maximum(z, 0.0)
            tl.store(a + t * H + h, here, h < H)
            o = -r * _mixed(_along(inputs, here), errors)
            for first in range(0, VP, ROWS):
                row = first + tl.arange(0, ROWS)
                o += _placed(_along(_tile(weight, row, h, V, H, H), here), row, v)
            o = tl.where(v < V, o, float("-inf"))
            share = tl.exp(o - tl.max(o, 0))
            error = share / tl.sum(share, 0) - tl.where(v == tl.load(y + t), 1.0, 0.0)
            tl.store(d2 + t * V + v, error, v < V)
            back = -r * _mixed(_along(errors, error), inputs)
            for first in range(0, VP, ROWS):
                row = first + tl.arange(0, ROWS)
                back += _mixed(_chosen(error, row, v), _tile(weight, row, h, V, H, H))
            back = tl.where(z > 0, back, 0.0)
            tl.store(d1 + t * H + h, back, h < H)
            inputs = tl.where(now, here[None], inputs)
            errors = tl.where(now, error[None], errors)
            handed = tl.where(now, back[None], handed)

    @compiled
    def _back(
        own_d1, gram, weight, pulled, y, rate, a, d2, own_d2, own_a, p, q, b, begin, count, length,
        H: tl.constexpr, V: tl.constexpr, HP: tl.constexpr, VP: tl.constexpr,
        CHUNK: tl.constexpr, ROWS: tl.constexpr,
    ):  # fmt: skip
        episode = tl.program_id(0).to(tl.int64)
        start = episode * length + begin
        own_d1 += episode * count * H
        weight += episode * V * H
        pulled += episode * V * H
        gram += start * length + begin
        a += start * H
        d2 += start * V
        own_d2 += start * V
        own_a += start * H
        p += start * H
        q += start * V
        b += start * H
        y += start
        r = tl.load(rate)
        h, v, i = tl.arange(0, HP), tl.arange(0, VP), tl.arange(0, CHUNK)
        inputs, errors = _tile(a, i, h, count, H, H), _tile(d2, i, v, count, V, V)
        # zeros for the examples that are still to come
        by_first = tl.zeros([CHUNK, HP], dtype=r.dtype)
        by_handed = tl.zeros([CHUNK, HP], dtype=r.dtype)
        by_second = tl.zeros([CHUNK, VP], dtype=r.dtype)
        for back in range(count):
            t = count - 1 - back
            now, before = (i == t)[:, None], i < t
            here = tl.load(a + t * H + h, h < H, 0.0)
            error = tl.load(d2 + t * V + v, v < V, 0.0)
            alike = tl.load(gram + t * length + i, (i > t) & (i < count), 0.0)
            handed = tl.load(own_d1 + t * H + h, h < H, 0.0) - r * _mixed(alike, by_first)
            handed = tl.where(here > 0, handed, 0.0)
            tl.store(b + t * H + h, handed, h < H)
            share = tl.where(before, _along(inputs, handed), _along(by_handed, here))
            by_error = _mixed(share, errors) + _mixed(_along(inputs, here), by_second)
            by_error = tl.load(own_d2 + t * V + v, v < V, 0.0) - r * by_error
            for first in range(0, VP, ROWS):
                row = first + tl.arange(0, ROWS)
                part = _along(_tile(weight, row, h, V, H, H), handed)
                part += _along(_tile(pulled, row, h, V, H, H), here)
                by_error += _placed(part, row, v)
            share = tl.where(v < V, error + tl.where(v == tl.load(y + t), 1.0, 0.0), 0.0)
            by_answer = share * (by_error - tl.sum(share * by_error, 0))
            tl.store(q + t * V + v, by_answer, v < V)
            share = tl.where(before, _along(errors, by_answer), _along(by_second, error))
            by_input = _mixed(share, inputs) + _mixed(_along(errors, error), by_handed)
            by_input = tl.load(own_a + t * H + h, h < H, 0.0) - r * by_input
            for first in range(0, VP, ROWS):
                row = first + tl.arange(0, ROWS)
                by_input += _mixed(_chosen(by_answer, row, v), _tile(weight, row, h, V, H, H))
                by_input += _mixed(_chosen(error, row, v), _tile(pulled, row, h, V, H, H))
            by_input = tl.where(here > 0, by_input, 0.0)
            tl.store(p + t * H + h, by_input, h < H)
            by_first = tl.where(now, by_input[None], by_first)
            by_second = tl.where(now, by_answer[None], by_second)
            by_handed = tl.where(now, handed[None], by_handed)


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
    a, d1 = first.new_empty(first.shape), first.new_empty(first.shape)
    d2, y = first.new_empty(batch, length, classes), y.contiguous()
    for begin in range(0, length, CHUNK):
        part, past = slice(begin, begin + CHUNK), slice(begin)
        pre = first[:, part] - rate * torch.bmm(gram[:, part, past], d1[:, past])
        now = weight - rate * torch.bmm(d2[:, past].mT, a[:, past])
        _there[(batch,)](
            pre.contiguous(), gram, now.contiguous(), y, rate, a, d1, d2,
            begin, pre.shape[1], length, **_sizes(hidden, classes),
        )  # fmt: skip
    return a, d1, d2


def loop_back(
    gram: Float[Tensor, "B N N"],
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
    (batch, length, hidden), classes = a.shape, weight.shape[1]
    p, q, b = torch.empty_like(a), torch.empty_like(d2), torch.empty_like(a)
    own_d2, own_a, y = by_d2.contiguous(), by_a.contiguous(), y.contiguous()
    for begin in reversed(range(0, length, CHUNK)):
        part, past = slice(begin, begin + CHUNK), slice(begin)
        later = slice(begin + CHUNK, None)
        own_d1 = by_d1[:, part] - rate * torch.bmm(gram[:, part, later], p[:, later])
        now = weight - rate * torch.bmm(d2[:, past].mT, a[:, past])
        pulled = torch.bmm(d2[:, later].mT, b[:, later]) + torch.bmm(q[:, later].mT, a[:, later])
        _back[(batch,)](
            own_d1.contiguous(), gram, now.contiguous(), (-rate * pulled).contiguous(), y, rate,
            a, d2, own_d2, own_a, p, q, b,
            begin, own_d1.shape[1], length, **_sizes(hidden, classes),
        )  # fmt: skip
    return p, q, b


def _sizes(hidden: int, classes: int) -> dict[str, int]:
    wide, narrow = (int(triton.next_power_of_2(size)) for size in (hidden, classes))
    return {
        "H": hidden,
        "V": classes,
        "HP": wide,
        "VP": max(narrow, ROWS),
        "CHUNK": CHUNK,
        "ROWS": ROWS,
        "num_warps": WARPS,
    }
