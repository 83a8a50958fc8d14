"""The ink of `ink.py` in one pass on a CUDA card: no distance is ever written to memory."""

# triton comes with torch for CUDA alone, and its functions are no functions to a type-checker
# pyright: reportPossiblyUnboundVariable=false, reportMissingImports=false, reportIndexIssue=false

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from onepass.kernels import HAS_KERNEL, compiled

if HAS_KERNEL:
    import triton.language as tl

    @compiled
    def _triangle_area(t):
        t = tl.minimum(tl.maximum(t, -1.0), 1.0)
        return 0.5 + t - t * tl.abs(t) / 2

    @compiled
    def _ink(points, down, pen, out, segments, SIZE: tl.constexpr, BLOCK: tl.constexpr):
        """One program inks one block of pixels of one drawing."""
        drawing = tl.program_id(0).to(tl.int64)
        pixel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        x = (pixel % SIZE).to(tl.float32) + 0.5
        y = (pixel // SIZE).to(tl.float32) + 0.5
        squared = tl.full([BLOCK], 1e6, tl.float32)
        path = points + drawing * (segments + 1) * 2
        drawn = down + drawing * segments
        for s in range(segments):
            if tl.load(drawn + s) != 0:
                ax, ay = tl.load(path + 2 * s), tl.load(path + 2 * s + 1)
                dx, dy = tl.load(path + 2 * s + 2) - ax, tl.load(path + 2 * s + 3) - ay
                shrink = 1.0 / (dx * dx + dy * dy + 1e-6)
                px, py = x - ax, y - ay
                t = tl.minimum(tl.maximum((px * dx + py * dy) * shrink, 0.0), 1.0)
                ex, ey = px - t * dx, py - t * dy
                squared = tl.minimum(squared, ex * ex + ey * ey)
        distance = tl.sqrt(squared)
        width, reach = tl.load(pen + 3 * drawing), tl.load(pen + 3 * drawing + 1)
        near, far = (distance - width / 2) / reach, (distance + width / 2) / reach
        dark = tl.load(pen + 3 * drawing + 2) * (_triangle_area(far) - _triangle_area(near))
        grey = (255 * (1 - dark) + 0.5).to(tl.uint8)
        tl.store(out + drawing * SIZE * SIZE + pixel, grey, mask=pixel < SIZE * SIZE)


def ink_on_card(
    points: Float[Tensor, "N P 2"],
    down: Bool[Tensor, "N segments"],
    pen: Float[Tensor, "N 3"],
    size: int,
) -> UInt8[Tensor, "N 1 S S"]:
    """As `ink.ink`."""
    out = torch.empty(len(points), 1, size, size, dtype=torch.uint8, device=points.device)
    block = 1024
    grid = len(points), -(-size * size // block)
    parts = points.contiguous(), down.to(torch.int8).contiguous(), pen.contiguous()
    _ink[grid](*parts, out, down.shape[1], SIZE=size, BLOCK=block)
    return out
