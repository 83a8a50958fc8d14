"""The hand: every drawing is another one, and the ink is where it should be."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from onepass.benchmarks.glyphs import template
from onepass.benchmarks.hand import (
    Noise,
    Strokes,
    bounds,
    draw_by_hand,
    pick_pen,
    place_on_page,
    to_unit_square,
)
from onepass.benchmarks.ink import ink, ink_distance, triangle_area


def strokes_of(*paths: Sequence[tuple[float, float]], room: int = 12) -> Strokes:
    """One character from the points of its strokes."""
    points, stroke = torch.zeros(1, room, 2), torch.zeros(1, room, dtype=torch.long)
    flat = [(x, y, m) for m, path in enumerate(paths) for x, y in path]
    for place, (x, y, m) in enumerate(flat):
        points[0, place], stroke[0, place] = torch.tensor([x, y]), m
    return Strokes.of(points, stroke, torch.tensor([len(flat)]))


def drawn(strokes: Strokes, times: int, seed: int = 0, size: int = 32) -> torch.Tensor:
    """[times, size, size]: how dark each pixel is, 0 to 255."""
    many = strokes.rows(torch.zeros(times, dtype=torch.long))
    return 255 - draw_by_hand(many, torch.Generator().manual_seed(seed), size).float()[:, 0]


PLUS = strokes_of([(0.5, 0), (0.5, 0.5), (0.5, 1)], [(0, 0.5), (0.5, 0.5), (1, 0.5)])


def test_every_point_knows_its_stroke():
    strokes = strokes_of(
        [(0, 0), (1, 0), (2, 3)], [(4, 4), (6, 8)], [(1, 1), (1, 1), (1, 1), (5, 1)]
    )
    assert strokes.along[0, :9].tolist() == pytest.approx([-1, 0, 1, -1, 1, -1, -1 / 3, 1 / 3, 1])
    expected = [[1, 1]] * 3 + [[5, 6]] * 2 + [[2, 1]] * 4
    assert_close(strokes.centre[0, :9], torch.tensor(expected).float())
    assert all(part.isfinite().all() for part in strokes)


def test_a_character_is_put_into_the_unit_square():
    points = torch.tensor([[[2.0, 5], [6, 7], [100, 100]]])
    placed = to_unit_square(points, torch.tensor([2]))
    assert_close(placed[0, :2], torch.tensor([[0, 0.25], [1, 0.75]]))


def test_a_stroke_is_inked_where_it_is():
    # hands differ, so the mean of many is looked at
    dark = drawn(PLUS, 200).mean(0)
    cross, corners = dark[8:24, 8:24].mean(), dark[[0, 0, -1, -1], [0, -1, 0, -1]].mean()
    assert cross > 1.7 * dark.mean()
    assert corners < 0.2 * dark.mean()


def test_only_the_points_that_count_are_drawn():
    points, stroke, count, centre, along = template(torch.arange(20)).rows(torch.arange(20))
    count = torch.full_like(count, 10)
    other = torch.cat([points[:, :10], points[:, 10:].flip(0)], 1)
    images = [
        draw_by_hand(Strokes(path, stroke, count, centre, along), torch.Generator().manual_seed(0))
        for path in (points, other)
    ]
    assert torch.equal(*images)


def test_the_pen_is_lifted_between_strokes_and_sometimes_left_down():
    # two dots far apart: the way between them is inked only where they are joined
    dots = strokes_of([(0, 0), (0.05, 0)], [(0.95, 1), (1, 1)])
    dark = drawn(dots, 400)
    inked = (dark > 60).flatten(1).sum(1)
    joined = (inked > 40).float().mean().item()
    # 0.4 of the writers are fast and join 0.35 of the strokes: 0.14, give or take three deviations
    assert joined == pytest.approx(0.14, abs=0.055)


def test_a_seed_decides_the_drawing_and_no_two_are_the_same():
    assert torch.equal(drawn(PLUS, 50), drawn(PLUS, 50))
    first, second = drawn(PLUS, 50), drawn(PLUS, 50, seed=1)
    moved = ((first - second).abs() > 60).flatten(1).float().mean(1)
    assert moved.min() > 0.01
    assert len(first.flatten(1).unique(dim=0)) == 50


@pytest.mark.parametrize("size", [8, 32, 64])
def test_all_ink_is_on_the_page(size):
    strokes, noise = template(torch.arange(500)), Noise(500, torch.Generator().manual_seed(0))
    pen = pick_pen(size, noise)
    # however large it was, and wherever
    points = place_on_page(5 * strokes.points + 3, strokes, pen, size, noise)
    low, high = bounds(points, strokes.count)
    margin = pen[:, :1] / 2 + pen[:, 1:2]
    assert (low - margin).min() > -1e-3
    assert (high + margin).max() < size + 1e-3


@pytest.mark.parametrize("size", [8, 32, 64])
def test_every_drawing_can_be_seen(size):
    assert (drawn(PLUS, 300, size=size).flatten(1).amax(1) > 80).all()


def test_drawings_are_of_many_sizes_and_places():
    dark = drawn(PLUS, 400) > 60
    rows, columns = dark.any(2).float(), dark.any(1).float()
    height, width = rows.sum(1), columns.sum(1)
    longer = torch.maximum(height, width)
    assert longer.min() < 19
    assert longer.max() > 27
    place = torch.arange(32.0)
    across = (columns * place).sum(1) / width
    assert across.mean().item() == pytest.approx(15.5, abs=0.4)
    assert 1 < across.std() < 4


def test_the_area_of_a_triangle_is_its_integral():
    t = torch.linspace(-1.5, 1.5, 31, dtype=torch.float64)
    fine = torch.linspace(-1, 1, 200_001, dtype=torch.float64)
    height = 1 - fine.abs()
    expected = torch.stack([height[fine <= end].sum() * (fine[1] - fine[0]) for end in t])
    assert_close(triangle_area(t), expected, rtol=0, atol=1e-5)


def brute_force_distance(points, down, size):
    """Pixel by pixel and segment by segment, in plain double precision."""
    y, x = np.mgrid[:size, :size] + 0.5
    nearest = np.full((size, size), math.inf)
    for (ax, ay), (bx, by), drawn in zip(points[:-1], points[1:], down, strict=True):
        way_x, way_y = bx - ax, by - ay
        length = way_x**2 + way_y**2
        t = ((x - ax) * way_x + (y - ay) * way_y) / length if length else np.zeros_like(x)
        t = np.clip(t, 0, 1)
        if drawn:
            nearest = np.minimum(nearest, np.hypot(x - ax - t * way_x, y - ay - t * way_y))
    return nearest


def some_path(drawings: int, count: int, size: int):
    rng = torch.Generator().manual_seed(0)
    points = torch.rand(drawings, count, 2, generator=rng) * (size + 4) - 2
    # points are segments too, and some are drawn over the corners of the page
    points[:, 5] = points[:, 4]
    points[:, 8], points[:, 9] = 0, size
    down = torch.rand(drawings, count - 1, generator=rng) < 0.5
    down[:, [4, 8]] = True
    width, reach, darkness = torch.rand(3, drawings, generator=rng)
    return points, down, torch.stack([3 * width, 0.5 + reach, darkness], 1)


def test_ink_distance_is_the_distance_to_the_nearest_segment():
    size = 32
    points, down, _ = some_path(4, 40, size)
    found = ink_distance(points, down, size).double().view(-1, size, size)
    both = zip(points.double().numpy(), down.numpy(), strict=True)
    expected = torch.from_numpy(np.stack([brute_force_distance(*one, size) for one in both]))
    apart = (found - expected).abs()
    assert apart[expected > 0.1].max() < 1e-3
    # squares up to 1,000 in float32 are 2e-4 off, and the root of that is 0.014 on a segment
    assert apart.max() < 0.015


@pytest.mark.parametrize("size", [20, 32])
def test_ink_is_the_area_of_the_filter_under_the_pen(size):
    points, down, pen = some_path(4, 12, size)
    images = ink(points, down, pen, size)
    for i in range(4):
        distance = brute_force_distance(points[i].double().numpy(), down[i].numpy(), size)
        width, reach, darkness = pen[i].double().tolist()
        offset = np.linspace(-reach, reach, 4_001)[:, None, None]
        under = np.abs(offset - distance) <= width / 2
        area = (under * (1 - np.abs(offset) / reach)).sum(0) / (1 - np.abs(offset) / reach).sum()
        expected = torch.from_numpy(255 * (1 - darkness * area))
        assert_close(images[i, 0].double(), expected, rtol=0, atol=0.75)


def test_nothing_drawn_is_a_white_page():
    points, down, pen = some_path(2, 12, 32)
    assert (ink(points, torch.zeros_like(down), pen, 32) == 255).all()
