"""The first layer of an image encoder in few passes over memory, on a CUDA card, while training.

Convolution of one channel, batch-norm and ReLU: what the convolution gives is 32 times as large as
what it reads, and cheap to compute from it. So it is never written down: each pass computes it
anew from the image, which leaves one write there and one read back of the large tensor.

    y = w . x        n = (y - mean) / sqrt(var + eps)        out = relu(gamma n + beta)

with x the 9 pixels of a patch and a 1. All sums that batch-norm needs follow from two small ones:
G = sum x x^T of the images there, S = sum x (slope by out)^T back, over all pixels of all images.

    sum y = w . G_1        sum y^2 = w . G w        sum n x = (w . G + shift G_1) of scaled w
    slope by w = gamma / sqrt(var + eps) (S - G_1 (mean slope) - (sum n x) (mean slope times n))
"""

# triton comes with torch for CUDA alone, and its functions are no functions to a type-checker
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false
# pyright: reportIndexIssue=false, reportGeneralTypeIssues=false
from onepass.kernels import HAS_KERNEL, compiled

PIXELS = 128  # at a time
PROGRAMS = 4_224  # 32 for each of the 132 processors of a card; others differ little
WARPS = 2  # products are 16 rows high, one warp's work: with 4 they take twice as long
# 3 x 3 and a 1, filled up to what matrix units take; the place of the 1
TAPS, CONSTANT = 16, 9

if HAS_KERNEL:
    import triton.language as tl

    @compiled
    def _patches(
        padded, image, pixel, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, TAPS: tl.constexpr
    ):
        """Nine neighbours and a 1 for each pixel that is there, zeros for the others."""
        tap, here = tl.arange(0, TAPS), pixel < HEIGHT * WIDTH
        first = (
            image * ((HEIGHT + 2) * (WIDTH + 2)) + (pixel // WIDTH) * (WIDTH + 2) + pixel % WIDTH
        )
        place = first[:, None] + ((tap // 3) * (WIDTH + 2) + tap % 3)[None]
        x = tl.load(padded + place, here[:, None] & (tap < 9)[None], 0.0)
        return tl.where(here[:, None] & (tap == 9)[None], 1.0, x)

    @compiled
    def gram(
        padded, sums, images,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr,
        PRECISION: tl.constexpr,
    ):  # fmt: skip
        """G, a part of it for each program."""
        program, tap = tl.program_id(0), tl.arange(0, TAPS)
        total = tl.zeros([TAPS, TAPS], dtype=tl.float32)
        for image in range(program, images, tl.num_programs(0)):
            for begin in range(0, HEIGHT * WIDTH, PIXELS):
                pixel = begin + tl.arange(0, PIXELS)
                patches = _patches(padded, image, pixel, HEIGHT, WIDTH, TAPS)
                total += tl.dot(tl.trans(patches), patches, input_precision=PRECISION)
        tl.store(sums + (program * TAPS + tap[:, None]) * TAPS + tap[None], total)

    @compiled
    def _before_relu(
        patches, taps, shift, CHANNELS: tl.constexpr, TAPS: tl.constexpr, PRECISION: tl.constexpr
    ):
        channel = tl.arange(0, CHANNELS)[None]
        w = tl.load(taps + tl.arange(0, TAPS)[:, None] * CHANNELS + channel)
        return tl.dot(patches, w, input_precision=PRECISION) + tl.load(shift + channel)

    @compiled
    def there(
        padded, taps, shift, out, CHANNELS: tl.constexpr,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr,
        PRECISION: tl.constexpr,
    ):  # fmt: skip
        image = tl.program_id(0)
        pixel, channel = tl.program_id(1) * PIXELS + tl.arange(0, PIXELS), tl.arange(0, CHANNELS)
        patches = _patches(padded, image, pixel, HEIGHT, WIDTH, TAPS)
        value = _before_relu(patches, taps, shift, CHANNELS, TAPS, PRECISION)
        place = (image * HEIGHT * WIDTH + pixel)[:, None] * CHANNELS + channel[None]
        there = (pixel < HEIGHT * WIDTH)[:, None]
        tl.store(out + place, tl.maximum(value, 0.0).to(out.dtype.element_ty), there)

    @compiled
    def back(
        slope, padded, taps, shift, sums, images, CHANNELS: tl.constexpr,
        HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PIXELS: tl.constexpr, TAPS: tl.constexpr,
        PRECISION: tl.constexpr,
    ):  # fmt: skip
        """S, a part of it for each program."""
        program, tap = tl.program_id(0), tl.arange(0, TAPS)
        channel, size = tl.arange(0, CHANNELS), HEIGHT * WIDTH
        total = tl.zeros([TAPS, CHANNELS], dtype=tl.float32)
        for image in range(program, images, tl.num_programs(0)):
            for begin in range(0, size, PIXELS):
                pixel = begin + tl.arange(0, PIXELS)
                patches = _patches(padded, image, pixel, HEIGHT, WIDTH, TAPS)
                value = _before_relu(patches, taps, shift, CHANNELS, TAPS, PRECISION)
                place = (image * size + pixel)[:, None] * CHANNELS + channel[None]
                by_out = tl.load(slope + place, (pixel < size)[:, None], 0.0).to(tl.float32)
                by_value = tl.where(value > 0, by_out, 0.0)
                total += tl.dot(tl.trans(patches), by_value, input_precision=PRECISION)
        tl.store(sums + (program * TAPS + tap[:, None]) * CHANNELS + channel[None], total)

    @compiled
    def _loaded(
        gram, weight, CHANNELS: tl.constexpr, TAPS: tl.constexpr, CONSTANT: tl.constexpr
    ):  # fmt: skip
        """G, its row of the 1 over the number of pixels, that number, and the weights by tap."""
        tap, channel = tl.arange(0, TAPS), tl.arange(0, CHANNELS)
        g = tl.load(gram + tap[:, None] * TAPS + tap[None])
        w = tl.load(weight + channel[None] * 9 + tap[:, None], (tap < 9)[:, None], 0.0)
        row = tl.sum(tl.where((tap == CONSTANT)[:, None], g, 0.0), 0)
        count = tl.sum(tl.where(tap == CONSTANT, row, 0.0), 0)
        return g, row / count, count, w

    @compiled
    def folded(
        gram, weight, gamma, beta, mean, var, taps, shift, eps,
        CHANNELS: tl.constexpr, TAPS: tl.constexpr, CONSTANT: tl.constexpr,
    ):  # fmt: skip
        """Mean and variance, and convolution and batch-norm in one: what ReLU reads."""
        tap, channel = tl.arange(0, TAPS), tl.arange(0, CHANNELS)
        g, middle, count, w = _loaded(gram, weight, CHANNELS, TAPS, CONSTANT)
        spread = g / count - middle[:, None] * middle[None]
        m = tl.sum(middle[:, None] * w, 0)
        v = tl.maximum(tl.sum(tl.sum(spread[:, :, None] * w[None], 1) * w, 0), 0.0)
        scale = tl.load(gamma + channel) / tl.sqrt(v + eps)
        tl.store(mean + channel, m)
        tl.store(var + channel, v)
        tl.store(taps + tap[:, None] * CHANNELS + channel[None], w * scale[None])
        tl.store(shift + channel, tl.load(beta + channel) - m * scale)

    @compiled
    def unfolded(
        sums, gram, weight, gamma, mean, var, by_weight, by_gamma, by_beta, eps,
        CHANNELS: tl.constexpr, TAPS: tl.constexpr, CONSTANT: tl.constexpr,
    ):  # fmt: skip
        """The slopes, from S and G."""
        tap, channel = tl.arange(0, TAPS), tl.arange(0, CHANNELS)
        g, middle, count, w = _loaded(gram, weight, CHANNELS, TAPS, CONSTANT)
        s = tl.load(sums + tap[:, None] * CHANNELS + channel[None])
        scale = 1 / tl.sqrt(tl.load(var + channel) + eps)
        one, off = (tap == CONSTANT)[:, None], tl.load(mean + channel) * scale
        # n of a patch, what is taken off being the weight of its 1
        n = tl.where(one, -off[None], w * scale[None])
        along, total = tl.sum(n * s, 0), tl.sum(tl.where(one, s, 0.0), 0)
        tl.store(by_gamma + channel, along)
        tl.store(by_beta + channel, total)
        moved = tl.sum(g[:, :, None] * n[None], 1)
        s -= middle[:, None] * total[None] + moved * (along / count)[None]
        by_taps = s * (tl.load(gamma + channel) * scale)[None]
        tl.store(by_weight + channel[None] * 9 + tap[:, None], by_taps, (tap < 9)[:, None])
