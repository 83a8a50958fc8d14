"""A hand that draws stroke templates, never twice the same.

A character is up to M strokes of P points in the unit square. Drawing it shakes each stroke, bends
the page, joins some strokes, crops tight and inks every pixel by its distance to the nearest
segment.
"""

import math

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

WAVES = 3
# drawings inked at a time: their distances stay in the cache of a CPU, and bounded on a card
CHUNK = {"cpu": 16, "cuda": 4096}


class Noise:
    """Random numbers on a generator's device, one row per drawing."""

    def __init__(self, drawings: int, rng: torch.Generator):
        self.drawings, self.rng = drawings, rng

    def normal(self, *shape: int) -> Tensor:
        size = self.drawings, *shape
        return torch.randn(size, generator=self.rng, device=self.rng.device)

    def uniform(self, *shape: int) -> Tensor:
        size = self.drawings, *shape
        return torch.rand(size, generator=self.rng, device=self.rng.device)


def draw_by_hand(
    strokes: Float[Tensor, "N M P 2"],
    count: Int[Tensor, " N"],
    rng: torch.Generator,
    size: int = 32,
) -> UInt8[Tensor, "N 1 S S"]:
    """One fresh drawing of each character, dark ink on white."""
    noise = Noise(len(strokes), rng)
    drawn = torch.arange(strokes.shape[1], device=strokes.device) < count[:, None]
    points = shake_strokes(strokes - 0.5, noise)
    points = slant_and_stretch(bend_page(points, noise), noise)
    width = 0.6 + 1.3 * noise.uniform(1) ** 1.5
    start, stop, visible = segments(points, drawn, noise)
    centre, scale = page(points, drawn, size, margin=width)
    start, stop = ((ends - centre) * scale + size / 2 for ends in (start, stop))
    softness, pressure = 0.5 + 0.5 * noise.uniform(1), 0.45 + 0.55 * noise.uniform(1)
    chunk = CHUNK.get(strokes.device.type, 256)
    parts = zip(start.split(chunk), stop.split(chunk), visible.split(chunk), strict=True)
    distance = torch.cat([ink_distance(a, b, seen, size) for a, b, seen in parts])
    dark = ((width / 2 + softness / 2 - distance) / softness).clamp(0, 1) * pressure
    grey = 255 * (1 - dark) + 3 * noise.normal(size * size)
    return grey.clamp(0, 255).round().to(torch.uint8).view(-1, 1, size, size)


def shake_strokes(points: Tensor, noise: Noise) -> Float[Tensor, "N M P 2"]:
    """Each stroke a little moved, turned, stretched and bowed."""
    _, m, p, _ = points.shape
    centre = points.mean(2, keepdim=True)
    turn, stretch = 0.10 * noise.normal(m, 1), 1 + 0.15 * noise.normal(m, 1, 1)
    x, y = (points - centre).unbind(-1)
    turned = torch.stack([x * turn.cos() - y * turn.sin(), x * turn.sin() + y * turn.cos()], dim=-1)
    along = torch.linspace(-1, 1, p, device=points.device)[:, None]
    bow = 0.03 * noise.normal(m, 1, 2) * (1 - along**2)
    moved = 0.025 * noise.normal(m, 1, 2) + 0.012 * noise.normal(m, p, 2)
    return centre + turned * stretch + bow + moved


def bend_page(points: Tensor, noise: Noise) -> Float[Tensor, "N M P 2"]:
    """A smooth warp of the whole character: a few slow sine waves."""
    wave = torch.arange(1, WAVES + 1, device=points.device)
    strength = 0.06 * noise.normal(1, 1, 2, WAVES) / wave
    phase = 2 * math.pi * noise.uniform(1, 1, 2, WAVES)
    across = points.flip(-1)[..., None]
    return points + (strength * torch.sin(math.pi * wave * across + phase)).sum(-1)


def slant_and_stretch(points: Tensor, noise: Noise) -> Float[Tensor, "N M P 2"]:
    """Slant, shear and aspect of one writer."""
    slant = torch.eye(2, device=points.device) + 0.12 * noise.normal(1, 2, 2)
    slanted = torch.einsum("nmij,nmpj->nmpi", slant, points)
    return slanted * (1 + 0.18 * noise.normal(1, 1, 2))


def segments(
    points: Tensor, drawn: Bool[Tensor, "N M"], noise: Noise
) -> tuple[Float[Tensor, "N S 2"], Float[Tensor, "N S 2"], Bool[Tensor, "N S"]]:
    """Every line segment; a fast hand does not lift the pen between all strokes."""
    n, m, p, _ = points.shape
    fast = noise.uniform(1) < 0.6
    joined = (noise.uniform(m) < 0.35) & fast & drawn & drawn.roll(-1, 1)
    joined[:, -1] = False
    following = points[:, :, 0].roll(-1, 1)[:, :, None]
    stop = torch.cat([points[:, :, 1:], following], 2)
    visible = torch.cat([drawn[..., None].expand(n, m, p - 1), joined[..., None]], 2)
    return points.flatten(1, 2), stop.flatten(1, 2), visible.flatten(1)


def page(
    points: Tensor, drawn: Bool[Tensor, "N M"], size: int, margin: Float[Tensor, "N 1"]
) -> tuple[Float[Tensor, "N 1 2"], Float[Tensor, "N 1 1"]]:
    """Centre and scale that crop tight: the longer edge of the drawing fills the page."""
    centre, edge = bounds(points, drawn)
    return centre[:, None], ((size - 1 - margin) / edge)[:, None]


def bounds(
    points: Float[Tensor, "N M P 2"], drawn: Bool[Tensor, "N M"]
) -> tuple[Float[Tensor, "N 2"], Float[Tensor, "N 1"]]:
    """Centre and longer edge of what is drawn."""
    hidden = ~drawn[:, :, None, None]
    low = points.masked_fill(hidden, math.inf).amin((1, 2))
    high = points.masked_fill(hidden, -math.inf).amax((1, 2))
    return (low + high) / 2, (high - low).amax(-1, keepdim=True).clamp(min=1e-2)


def ink_distance(
    start: Float[Tensor, "N S 2"],
    stop: Float[Tensor, "N S 2"],
    visible: Bool[Tensor, "N S"],
    size: int,
) -> Float[Tensor, "N pixels"]:
    """How far each pixel is from the nearest visible segment.

    With a the start, d the way along a segment and t in [0, 1] the nearest point of it,
    |p - a - t d|^2 = |p - a|^2 - t (2 (p - a).d - t |d|^2); the products are matrix products.
    """
    edge = torch.arange(size, device=start.device) + 0.5 - size / 2
    y, x = torch.meshgrid(edge, edge, indexing="ij")
    pixels = torch.stack([x, y], -1).view(-1, 2)
    start, stop = start - size / 2, stop - size / 2
    # a hidden segment is a point far away
    start = start.masked_fill(~visible[..., None], 1e3)
    way = torch.where(visible[..., None], stop - start, 0.0)
    length = way.square().sum(-1)[:, None] + 1e-6
    along = pixels @ way.mT - (start * way).sum(-1)[:, None]
    nearest = (along / length).clamp_(0, 1)
    offset = pixels.square().sum(-1)[:, None] + start.square().sum(-1)[:, None]
    squared = torch.baddbmm(offset, pixels.expand(len(start), -1, -1), start.mT, alpha=-2)
    squared -= nearest * (2 * along - nearest * length)
    return squared.amin(-1).clamp(min=1e-8).sqrt()
