"""Ink on paper: every pixel is dark by its distance to the nearest line of the pen.

A pen of some width leaves full ink; the page is then seen through a triangle filter, as a scan
made smaller is. Across a straight line that is the area of the triangle under the pen.
"""

import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor

from onepass.benchmarks.ink_kernel import HAS_KERNEL, ink_on_card

# drawings inked at a time: their distances stay in the cache of a CPU, and bounded on a card
CHUNK = {"cpu": 16, "cuda": 1024}


def ink(
    points: Float[Tensor, "N P 2"],
    down: Bool[Tensor, "N segments"],
    pen: Float[Tensor, "N 3"],
    size: int,
) -> UInt8[Tensor, "N 1 S S"]:
    """Dark ink on white along the path of points, in pixels, where the pen is down.

    `pen` is the width of the line and the reach of the filter, in pixels, and the darkness.
    """
    if points.is_cuda and HAS_KERNEL:
        return ink_on_card(points, down, pen, size)
    chunk = CHUNK.get(points.device.type, 256)
    parts = zip(points.split(chunk), down.split(chunk), strict=True)
    distance = torch.cat([ink_distance(*trimmed(*part), size) for part in parts])
    width, reach, darkness = pen[:, :, None].unbind(1)
    near, far = (distance - width / 2) / reach, (distance + width / 2) / reach
    dark = darkness * (triangle_area(far) - triangle_area(near))
    return (255 * (1 - dark) + 0.5).to(torch.uint8).view(-1, 1, size, size)


def trimmed(
    points: Float[Tensor, "N P 2"], down: Bool[Tensor, "N segments"]
) -> tuple[Float[Tensor, "N p 2"], Bool[Tensor, "N s"]]:
    """Without the padding that all have, where looking costs nothing."""
    if points.device.type != "cpu":
        return points, down
    used = max(1, int((down.any(0) * torch.arange(1, down.shape[1] + 1)).max()))
    return points[:, : used + 1], down[:, :used]


def triangle_area(t: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
    """The part of a triangle on [-1, 1], of area 1, that lies left of t."""
    t = t.clamp(-1, 1)
    return 0.5 + t - t * t.abs() / 2


def ink_distance(
    points: Float[Tensor, "N P 2"], down: Bool[Tensor, "N segments"], size: int
) -> Float[Tensor, "N pixels"]:
    """How far each pixel is from the nearest segment that is drawn.

    With a the start, d the way along a segment and t in [0, 1] the nearest point of it,
    |p - a - t d|^2 = |p - a|^2 - t (2 (p - a).d - t |d|^2); the products are matrix products.
    """
    edge = torch.arange(size, device=points.device) + 0.5 - size / 2
    y, x = torch.meshgrid(edge, edge, indexing="ij")
    pixels = torch.stack([x, y], -1).view(-1, 2)
    points = points - size / 2
    # a segment that is not drawn is a point far away
    start = points[:, :-1].masked_fill(~down[..., None], 1e3)
    way = (points[:, 1:] - points[:, :-1]) * down[..., None]
    length = way.square().sum(-1)[:, None] + 1e-6
    along = pixels @ way.mT - (start * way).sum(-1)[:, None]
    nearest = (along / length).clamp_(0, 1)
    offset = pixels.square().sum(-1)[:, None] + start.square().sum(-1)[:, None]
    squared = torch.baddbmm(offset, pixels.expand(len(start), -1, -1), start.mT, alpha=-2)
    squared -= nearest * (2 * along - nearest * length)
    return squared.amin(-1).clamp(min=1e-8).sqrt()
