"""New characters from parts of others: a few strokes in a row, turned or mirrored, and curved.

Kanji are made of many straight strokes, and most scripts of few and curved ones.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from onepass.benchmarks.glyphs import hashed_uniform
from onepass.benchmarks.hand import Strokes, of_stroke, to_unit_square

LONGEST = 6  # strokes in a row
SMALLEST = 0.5  # of the longer edge, in pages
CURVE = 0.25  # the most that the middle of a stroke is drawn aside, in edges of the character


def invent(strokes: Strokes, ids: Int[Tensor, " N"]) -> Strokes:
    """One new character from each given one; what it is follows from that and the id alone."""
    traits = hashed_uniform(ids, 5 + 2 * strokes.most)
    run, begin, turn, mirror, edge = traits[:, :5].unbind(-1)
    part = strokes_in_a_row(strokes, run, begin)
    aside = CURVE * (2 * traits[:, 5:].view(-1, strokes.most, 2) - 1)
    points = to_unit_square(part.points, part.count)
    points = points + of_stroke(part.stroke, aside) * (1 - part.along[..., None] ** 2)
    points = to_unit_square(points @ symmetry(turn, mirror), part.count) - 0.5
    points = points * (SMALLEST + (1 - SMALLEST) * edge)[:, None, None] + 0.5
    return Strokes.of(points, part.stroke, part.count)


def strokes_in_a_row(
    strokes: Strokes, run: Float[Tensor, " N"], begin: Float[Tensor, " N"]
) -> Strokes:
    """A part of each character: how many strokes and which is the first, as shares."""
    points, stroke, count, *_ = strokes
    total = stroke.amax(1) + 1
    number = torch.minimum(1 + (run * LONGEST).long(), total)
    first = (begin * (total - number + 1)).long()
    place = torch.arange(points.shape[1], device=points.device)
    real = place < count[:, None]
    start, stop = ((real & (stroke < bound[:, None])).sum(1) for bound in (first, first + number))
    index = (start[:, None] + place).clamp(max=len(place) - 1)
    kept = (stroke.gather(1, index) - first[:, None]) * (place < (stop - start)[:, None])
    points = points.gather(1, index[..., None].expand_as(points))
    return Strokes.of(points, kept, stop - start)


def symmetry(turn: Float[Tensor, " N"], mirror: Float[Tensor, " N"]) -> Float[Tensor, "N 2 2"]:
    """One of the eight symmetries of the square, each from a number in [0, 1)."""
    angle = (turn * 4).long() * (math.pi / 2)
    cos, sin = angle.cos().round(), angle.sin().round()
    flip = torch.where(mirror < 0.5, 1.0, -1.0)
    return torch.stack([torch.stack([cos, -sin], -1), torch.stack([flip * sin, flip * cos], -1)], 1)
