"""Softmax attention in bf16 whose slopes stay right where it is sharp, on a CUDA card.

With scores s = q . k, weights p = softmax(s) and o = sum p v, the way back is

    dp = do . v        ds = p (dp - delta)        delta = sum p dp  ( = do . o )

Where a weight is nearly 1 the two terms of ds nearly cancel. The usual kernels take delta from o,
which is rounded to bf16: at p = 0.998 their slopes are off by a fifth, beyond that they are noise,
and Adam makes full steps of it. Here delta is summed from the same p and dp that it is taken from.

Tokens are a stream and then queries of `chunk` tokens: the stream sees itself up to each token, a
query the stream (up to its stop) and of its own tokens those up to each. Rows may be the queries
alone. What no row of a block sees is never computed.
"""

# triton comes with torch for CUDA alone, and its functions are no functions to a type-checker
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false
from onepass.kernels import HAS_KERNEL, compiled

ROWS, KEYS = 64, 64  # of a block
WARPS = 4

if HAS_KERNEL:
    import triton.language as tl

    @compiled
    def _limit(stop, episode, i, rows_end, length, chunk, asked, STOPS: tl.constexpr):
        """How many tokens of the stream a row sees; none where there is no row."""
        if STOPS:
            query = tl.maximum(i - length, 0) // chunk
            until = tl.load(stop + episode * asked + query, (i >= length) & (i < rows_end), 0)
            limit = tl.where(i < length, i + 1, until.to(tl.int32))
        else:
            limit = tl.minimum(i + 1, length)
        return tl.where(i < rows_end, limit, 0)

    @compiled
    def _sees(i, j, limit, length, chunk):
        """Which tokens j are seen by rows i."""
        i, j = i[:, None], j[None]
        same = (i >= length) & ((i - length) // chunk == (j - length) // chunk) & (j <= i)
        return tl.where(j < length, j < limit[:, None], same)

    @compiled
    def _tile(pointer, row, inside, stride, WIDTH: tl.constexpr):
        place = row.to(tl.int64)[:, None] * stride + tl.arange(0, WIDTH)[None]
        return tl.load(pointer + place, inside[:, None], 0.0)

    @compiled
    def _put(pointer, row, inside, stride, value, WIDTH: tl.constexpr):
        place = row.to(tl.int64)[:, None] * stride + tl.arange(0, WIDTH)[None]
        tl.store(pointer + place, value.to(pointer.dtype.element_ty), inside[:, None])

    @compiled
    def _rows(
        stop, rows, tokens, length, chunk, asked,
        H: tl.constexpr, STOPS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """Head, episode and rows of a program, and what the rows see.

        That is how many tokens of the stream each, then in blocks of keys: of the stream, in all,
        and the first token of queries.
        """
        both = tl.program_id(1).to(tl.int64)
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        i, here = row + tokens - rows, row < rows
        limit = _limit(stop, both // H, i, tokens, length, chunk, asked, STOPS)
        past = tl.cdiv(tl.max(limit, 0), KEYS)
        begin = tl.maximum(tl.min(i, 0) - chunk + 1, length)
        end = tl.max(tl.where(here, i, -1), 0) + 1
        count = past + tl.cdiv(tl.maximum(end - begin, 0), KEYS)
        return both, both // H, both % H, row, i, here, limit, past, count, begin

    @compiled
    def _keys(n, past, begin, length, tokens, KEYS: tl.constexpr):
        """The tokens of a block, and which of them are there."""
        j = tl.where(n < past, n * KEYS, begin + (n - past) * KEYS) + tl.arange(0, KEYS)
        return j, j < tl.where(n < past, length, tokens)

    @compiled
    def _weights(q_here, k_there, i, j, there, limit, norm, scale, length, chunk):
        """Of rows on tokens, from the logarithms of their sums."""
        s = tl.dot(q_here, tl.trans(k_there)) * scale
        sees = _sees(i, j, limit, length, chunk) & there[None]
        return tl.where(sees, tl.exp2(s - norm[:, None]), 0.0)

    @compiled
    def there(
        q, k, v, out, lse, stop, qb, qh, ql, kb, kh, kl, vb, vh, vl, scale,
        rows, tokens, length, chunk, asked,
        H: tl.constexpr, WIDTH: tl.constexpr, STOPS: tl.constexpr,
        ROWS: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """Outputs [B R H K], and the logarithm (of 2) of the sum of the weights [B H R]."""
        both, b, h, row, i, here, limit, past, count, begin = _rows(
            stop, rows, tokens, length, chunk, asked, H, STOPS, ROWS, KEYS
        )
        q_here = _tile(q + b * qb + h * qh, row, here, ql, WIDTH)
        k += b * kb + h * kh
        v += b * vb + h * vh
        most = tl.full([ROWS], -1e30, tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        mixed = tl.zeros([ROWS, WIDTH], tl.float32)
        for n in range(count):
            j, there = _keys(n, past, begin, length, tokens, KEYS)
            s = tl.dot(q_here, tl.trans(_tile(k, j, there, kl, WIDTH))) * scale
            s = tl.where(_sees(i, j, limit, length, chunk) & there[None], s, float("-inf"))
            new = tl.maximum(most, tl.max(s, 1))
            p, keep = tl.exp2(s - new[:, None]), tl.exp2(most - new)
            total = total * keep + tl.sum(p, 1)
            v_there = _tile(v, j, there, vl, WIDTH)
            mixed = mixed * keep[:, None] + tl.dot(p.to(v_there.dtype), v_there)
            most = new
        total = tl.where(total > 0, total, 1.0)
        _put(out + (b * rows * H + h) * WIDTH, row, here, H * WIDTH, mixed / total[:, None], WIDTH)
        tl.store(lse + both * rows + row, most + tl.log2(total), here)

    @compiled
    def back_rows(
        q, k, v, lse, stop, by_out, delta, by_q,
        qb, qh, ql, kb, kh, kl, vb, vh, vl, ob, oh, ol, scale,
        rows, tokens, length, chunk, asked,
        H: tl.constexpr, WIDTH: tl.constexpr, STOPS: tl.constexpr,
        ROWS: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """delta [B H R], then slopes by q [B R H K]."""
        both, b, h, row, i, here, limit, past, count, begin = _rows(
            stop, rows, tokens, length, chunk, asked, H, STOPS, ROWS, KEYS
        )
        q_here = _tile(q + b * qb + h * qh, row, here, ql, WIDTH)
        slope = _tile(by_out + b * ob + h * oh, row, here, ol, WIDTH)
        norm = tl.load(lse + both * rows + row, here, 0.0)
        k += b * kb + h * kh
        v += b * vb + h * vh
        all_of_it, weight = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS], tl.float32)
        for n in range(count):
            j, there = _keys(n, past, begin, length, tokens, KEYS)
            k_there = _tile(k, j, there, kl, WIDTH)
            p = _weights(q_here, k_there, i, j, there, limit, norm, scale, length, chunk)
            dp = tl.dot(slope, tl.trans(_tile(v, j, there, vl, WIDTH)))
            all_of_it += tl.sum(p * dp, 1)
            weight += tl.sum(p, 1)
        # weights from a rounded log-sum add up to nearly 1, and what is missing must not count
        all_of_it /= tl.where(here, weight, 1.0)
        total = tl.zeros([ROWS, WIDTH], tl.float32)
        for n in range(count):
            j, there = _keys(n, past, begin, length, tokens, KEYS)
            k_there = _tile(k, j, there, kl, WIDTH)
            p = _weights(q_here, k_there, i, j, there, limit, norm, scale, length, chunk)
            dp = tl.dot(slope, tl.trans(_tile(v, j, there, vl, WIDTH)))
            ds = p * (dp - all_of_it[:, None])
            total += tl.dot(ds.to(k_there.dtype), k_there)
        tl.store(delta + both * rows + row, all_of_it, here)
        # scores were in powers of 2
        total *= scale * 0.6931471805599453
        _put(by_q + (b * rows * H + h) * WIDTH, row, here, H * WIDTH, total, WIDTH)

    @compiled
    def back_keys(
        q, k, v, lse, stop, by_out, delta, by_k, by_v,
        qb, qh, ql, kb, kh, kl, vb, vh, vl, ob, oh, ol, scale,
        rows, tokens, length, chunk, asked,
        H: tl.constexpr, WIDTH: tl.constexpr, STOPS: tl.constexpr,
        ROWS: tl.constexpr, KEYS: tl.constexpr,
    ):  # fmt: skip
        """Slopes by k and v [B T H K], of those tokens that are seen by rows."""
        both = tl.program_id(1).to(tl.int64)
        b, h = both // H, both % H
        j = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
        there = j < tokens
        k_there = _tile(k + b * kb + h * kh, j, there, kl, WIDTH)
        v_there = _tile(v + b * vb + h * vh, j, there, vl, WIDTH)
        q += b * qb + h * qh
        by_out += b * ob + h * oh
        k_total = tl.zeros([KEYS, WIDTH], tl.float32)
        v_total = tl.zeros([KEYS, WIDTH], tl.float32)
        # a token is seen by none before it, one of the stream by any after it
        first = tl.program_id(0) * KEYS
        begin = tl.maximum(first - (tokens - rows), 0)
        own_end = tl.minimum(first + KEYS + chunk - (tokens - rows), rows)
        end = tl.where(first < length, rows, own_end)
        for start in range(begin, end, ROWS):
            row = start + tl.arange(0, ROWS)
            i, here = row + tokens - rows, row < rows
            limit = _limit(stop, b, i, tokens, length, chunk, asked, STOPS)
            q_here = _tile(q, row, here, ql, WIDTH)
            slope = _tile(by_out, row, here, ol, WIDTH)
            norm = tl.load(lse + both * rows + row, here, 0.0)
            all_of_it = tl.load(delta + both * rows + row, here, 0.0)
            p = _weights(q_here, k_there, i, j, there, limit, norm, scale, length, chunk)
            v_total += tl.dot(tl.trans(p.to(slope.dtype)), slope)
            ds = p * (tl.dot(slope, tl.trans(v_there)) - all_of_it[:, None])
            k_total += tl.dot(tl.trans(ds.to(q_here.dtype)), q_here)
        place = (b * tokens * H + h) * WIDTH
        k_total *= scale * 0.6931471805599453
        _put(by_k + place, j, there, H * WIDTH, k_total, WIDTH)
        _put(by_v + place, j, there, H * WIDTH, v_total, WIDTH)
