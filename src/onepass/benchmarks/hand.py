"""A hand that draws characters, never twice the same.

A character is the path of a pen in the unit square, stroke after stroke. Drawing it shakes each
stroke, bends and slants the whole, joins some strokes, puts it somewhere on the page and inks it.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from onepass.benchmarks.ink import ink

# of a stroke: how far it turns, stretches, moves, bows to one side and to both (normal)
TURN, STRETCH, MOVE, BOW, SWAY = 0.10, 0.15, 0.025, 0.035, 0.02
# of a character: waves that bend it, then slant and aspect (normal)
WAVES, BEND, SLANT, ASPECT = 3, 0.05, 0.10, 0.12
# of a writer: how many are fast, and how often those do not lift the pen
FAST, JOIN = 0.4, 0.35
# of the page: the part of it that a unit is, more for each stroke, how much that differs, and the
# distance from the middle (normal)
UNIT, UNIT_PER_STROKE, ZOOM, OFF_CENTRE = 0.75, 0.01, 0.16, 0.05
# of the pen: width of the line and reach of the blur, in pixels of a page of 32, and darkness
WIDTH, REACH, DARKNESS = (1.1, 2.0), (0.7, 1.1), (0.75, 1.0)


class Strokes(NamedTuple):
    """Characters as the points of their strokes, one stroke after the other, then padding."""

    points: Float[Tensor, "N P 2"]
    stroke: Int[Tensor, "N P"]  # that each point is part of: 0, 1, ...
    count: Int[Tensor, " N"]  # of points; the rest is padding
    centre: Float[Tensor, "N P 2"]  # of the point's stroke
    along: Float[Tensor, "N P"]  # how far the point is along its stroke, from -1 to 1

    @staticmethod
    def of(points: Tensor, stroke: Tensor, count: Tensor) -> "Strokes":
        """From the points, in order, and the stroke that each is part of."""
        place = torch.arange(points.shape[1], device=points.device)
        real = (place < count[:, None]).long()
        each = real.new_zeros(len(points), len(place) // 2)
        number = each.scatter_add(1, stroke, real)
        first = number.cumsum(1) - number
        past, last = place - first.gather(1, stroke), number.gather(1, stroke) - 1
        # the sum over a stroke is that up to its end, less that up to its begin
        upto = F.pad(points.cumsum(1), (0, 0, 1, 0))
        ends = [of_stroke(bound, upto) for bound in (first, first + number)]
        centre = (ends[1] - ends[0]) / number.clamp(min=1)[..., None]
        along = 2 * past / last.clamp(min=1) - 1
        return Strokes(points, stroke, count, of_stroke(stroke, centre), along)

    @property
    def most(self) -> int:
        """Strokes that there is room for: each has two points or more."""
        return self.points.shape[1] // 2

    def rows(self, chosen: Int[Tensor, " K"]) -> "Strokes":
        """Some of the characters, in the order asked for."""
        return Strokes(*(part[chosen] for part in self))

    def to(self, device: torch.device) -> "Strokes":
        return Strokes(*(part.to(device) for part in self))


def of_stroke(stroke: Int[Tensor, "N P"], each: Float[Tensor, "N M D"]) -> Float[Tensor, "N P D"]:
    """For every point what its stroke has."""
    return each.gather(1, stroke[..., None].expand(-1, -1, each.shape[-1]))


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
    strokes: Strokes, rng: torch.Generator, size: int = 32
) -> UInt8[Tensor, "N 1 S S"]:
    """One fresh drawing of each character, dark ink on white."""
    noise = Noise(len(strokes.points), rng)
    points = slant(bend(shake(strokes, noise), noise), noise)
    down = pen_down(strokes, noise)
    pen = pick_pen(size, noise)
    return ink(place_on_page(points, strokes, pen, size, noise), down, pen, size)


def pick_pen(size: int, noise: Noise) -> Float[Tensor, "N 3"]:
    """Width, reach and darkness."""
    # less than this would leave gaps on a small page
    width = (between(WIDTH, noise.uniform(1)) * (size / 32)).clamp(min=0.8)
    reach = (between(REACH, noise.uniform(1)) * (size / 32)).clamp(min=0.5)
    # most ink is nearly black
    return torch.cat([width, reach, between(DARKNESS, noise.uniform(1).sqrt())], 1)


def between(limits: tuple[float, float], share: Tensor) -> Tensor:
    low, high = limits
    return low + (high - low) * share


def shake(strokes: Strokes, noise: Noise) -> Float[Tensor, "N P 2"]:
    """Each stroke a little moved, turned, stretched and bowed."""
    numbers = of_stroke(strokes.stroke, noise.normal(strokes.most, 8))
    turn, stretch, move, bow, sway = numbers.split([1, 1, 2, 2, 2], -1)
    turn, stretch = TURN * turn, 1 + STRETCH * stretch
    out = strokes.points - strokes.centre
    turned = out * turn.cos() + torch.stack([-out[..., 1], out[..., 0]], -1) * turn.sin()
    along = strokes.along[..., None]
    bent = (BOW * bow + SWAY * along * sway) * (1 - along**2)
    return strokes.centre + turned * stretch + MOVE * move + bent - 0.5


def bend(points: Float[Tensor, "N P 2"], noise: Noise) -> Float[Tensor, "N P 2"]:
    """A smooth warp of the whole character: a few slow sine waves."""
    wave = torch.arange(1, WAVES + 1, device=points.device)
    strength = BEND * noise.normal(1, 2, WAVES) / wave
    phase = 2 * math.pi * noise.uniform(1, 2, WAVES)
    across = points.flip(-1)[..., None]
    return points + (strength * torch.sin(math.pi * wave * across + phase)).sum(-1)


def slant(points: Float[Tensor, "N P 2"], noise: Noise) -> Float[Tensor, "N P 2"]:
    """Slant, shear and aspect of one writer."""
    matrix = torch.eye(2, device=points.device) + SLANT * noise.normal(2, 2)
    # sums of products, since a matrix product may round to fewer bits on a card
    slanted = (points[..., None] * matrix[:, None]).sum(2)
    return slanted * torch.exp(ASPECT * noise.normal(1, 2))


def pen_down(strokes: Strokes, noise: Noise) -> Bool[Tensor, "N segments"]:
    """Which points are joined to the next: those of a stroke, and more by a fast writer."""
    stroke = strokes.stroke
    same = stroke[:, 1:] == stroke[:, :-1]
    fast = noise.uniform(1) < FAST
    joined = (noise.uniform(stroke.shape[1] - 1) < JOIN) & fast
    inside = torch.arange(1, stroke.shape[1], device=stroke.device) < strokes.count[:, None]
    return (same | joined) & inside


def place_on_page(
    points: Float[Tensor, "N P 2"],
    strokes: Strokes,
    pen: Float[Tensor, "N 3"],
    size: int,
    noise: Noise,
) -> Float[Tensor, "N P 2"]:
    """To pixels: of some size, somewhere near the middle, all ink on the page."""
    low, high = bounds(points, strokes.count)
    extent = (high - low).clamp(min=1e-3)
    margin = pen[:, :1] / 2 + pen[:, 1:2]
    # nobody writes many strokes small
    unit = UNIT + UNIT_PER_STROKE * strokes.stroke.amax(1, keepdim=True)
    scale = size * unit * torch.exp(ZOOM * noise.normal(1))
    scale = torch.minimum(scale, (size - 2 * margin) / extent.amax(-1, keepdim=True))
    room = (size - scale * extent) / 2 - margin
    off = (size * OFF_CENTRE * noise.normal(2)).clamp(-room, room)
    return (points - ((low + high) / 2)[:, None]) * scale[:, None] + (size / 2 + off)[:, None]


def bounds(
    points: Float[Tensor, "N P 2"], count: Int[Tensor, " N"]
) -> tuple[Float[Tensor, "N 2"], Float[Tensor, "N 2"]]:
    """The corners of the box around what is drawn."""
    padding = (torch.arange(points.shape[1], device=points.device) >= count[:, None])[..., None]
    low = points.masked_fill(padding, math.inf).amin(1)
    return low, points.masked_fill(padding, -math.inf).amax(1)


def to_unit_square(
    points: Float[Tensor, "N P 2"], count: Int[Tensor, " N"]
) -> Float[Tensor, "N P 2"]:
    """In the middle of the unit square, the longer edge 1."""
    low, high = bounds(points, count)
    edge = (high - low).amax(-1).clamp(min=1e-2)
    return (points - ((low + high) / 2)[:, None]) / edge[:, None, None] + 0.5
