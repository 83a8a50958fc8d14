"""Glyphs: a class is its number, a sample is a fresh drawing, and the ink is where it should be."""

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from onepass.benchmarks.glyphs import CLASSES, FIRST, Glyphs, glyphs, hashed_uniform, template
from onepass.benchmarks.hand import draw_by_hand, ink_distance
from onepass.benchmarks.images import Images
from onepass.episodes import EpisodeSpec

SPEC = EpisodeSpec(tasks=5, shots=2, queries=1)
LAST = max(FIRST.values()) + CLASSES - 1
MASK = 2**64 - 1


def splitmix64(place: int) -> int:
    """Output number `place` of splitmix64 from seed 0 (Steele, Lea and Flood 2014)."""
    z = (place + 1) * 0x9E3779B97F4A7C15 & MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def some_ids(count: int, seed: int = 0):
    return torch.randint(LAST + 1, (count,), generator=torch.Generator().manual_seed(seed))


def drawings(ids, samples: int, seed: int = 0):
    return Glyphs().drawings(ids, samples, torch.Generator().manual_seed(seed))


def test_the_oracle_gives_the_published_numbers():
    first = [splitmix64(place) for place in range(3)]
    assert first == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


@settings(max_examples=50, deadline=None)
@given(ids=st.lists(st.integers(0, LAST), min_size=1, max_size=5), columns=st.integers(1, 40))
def test_hashed_numbers_are_splitmix64(ids, columns):
    expected = [
        [(splitmix64(i * columns + column) >> 40) / 2**24 for column in range(columns)] for i in ids
    ]
    # 24 bits fit a float32 exactly
    assert hashed_uniform(torch.tensor(ids), columns).tolist() == expected


def test_hashed_numbers_fill_the_unit_range_evenly():
    numbers = hashed_uniform(torch.arange(5000), 33)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    share = numbers.flatten().mul(16).long().bincount() / numbers.numel()
    assert_close(share, torch.full((16,), 1 / 16), rtol=0, atol=0.003)


def test_strokes_follow_from_the_id_alone():
    ids = some_ids(37)
    strokes, count = template(ids)
    for i in range(len(ids)):
        alone, alone_count = template(ids[i : i + 1])
        assert torch.equal(alone[0], strokes[i])
        assert alone_count[0] == count[i]


def test_a_template_fits_the_unit_square_and_has_one_to_four_strokes():
    strokes, count = template(some_ids(500))
    assert set(count.tolist()) == {1, 2, 3, 4}
    for points, strokes_drawn in zip(strokes, count.tolist(), strict=True):
        low, high = points[:strokes_drawn].flatten(0, 1).aminmax(dim=0)
        assert_close((high - low).max(), torch.tensor(1.0))
        assert_close((low + high) / 2, torch.tensor([0.5, 0.5]))


def test_classes_differ():
    strokes, count = template(some_ids(500))
    seen = {tuple(points[:n].flatten().tolist()) for points, n in zip(strokes, count, strict=True)}
    assert len(seen) == 500


@pytest.mark.parametrize("bank", [0, 8], ids=["fresh", "bank"])
def test_splits_share_no_class(bank, monkeypatch):
    source, used = Glyphs(bank=bank), {}
    for split in source.splits:

        def drawings(ids, samples, rng, split=split):
            used[split] = ids
            return torch.zeros(len(ids), samples, *source.x_shape, dtype=torch.uint8)

        monkeypatch.setattr(source, "drawings", drawings)
        Images(source).sample(split, SPEC, 200, torch.Generator().manual_seed(0))
        assert used[split].min() >= FIRST[split]
        assert used[split].max() < FIRST[split] + CLASSES
    first = sorted(FIRST.values())
    assert all(later - earlier >= CLASSES for earlier, later in pairwise(first))


@pytest.mark.parametrize("split", ["validation", "test"])
def test_a_bank_changes_meta_training_only(split):
    with_bank, without = (
        benchmark.sample(split, SPEC, 2, torch.Generator().manual_seed(0))
        for benchmark in (glyphs(bank=8), glyphs())
    )
    assert torch.equal(with_bank.train.x, without.train.x)


def test_a_sample_is_never_drawn_twice_the_same():
    first, second = drawings(some_ids(50), 2).float().unbind(1)
    # paper noise alone moves no pixel by 60 of 255
    moved = ((first - second).abs() > 60).flatten(1).float().mean(1)
    assert moved.min() > 0.01


def test_drawings_of_a_class_are_nearer_than_those_of_another():
    ids = some_ids(300)
    coarse = F.avg_pool2d(drawings(ids, 2).flatten(0, 1).float(), 8).flatten(1)
    distance = torch.cdist(*coarse.unflatten(0, (-1, 2)).unbind(1))
    others = ~torch.eye(len(ids), dtype=torch.bool)
    nearer = (distance.diagonal()[:, None] < distance)[others].float().mean()
    # chance is 0.5; six seeds gave 0.77 to 0.80
    assert nearer > 0.72


def test_episodes_are_of_the_classes_they_say():
    spec = EpisodeSpec(tasks=20, shots=4, queries=4)
    train, test, _ = glyphs().sample("test", spec, 8, torch.Generator().manual_seed(0))
    coarse = [F.avg_pool2d(part.x.flatten(0, 1), 4).flatten(1) for part in (train, test)]
    stream, queries = (part.unflatten(0, (8, 20, 4)) for part in coarse)
    nearest = torch.cdist(queries.flatten(1, 2), stream.mean(2)).argmin(-1)
    # chance is 0.05; six seeds gave 0.56 to 0.64
    assert (nearest == test.y).float().mean() > 0.45


def test_images_are_dark_ink_on_mostly_white_paper():
    images = drawings(some_ids(200), 2).float()
    assert images.mean() > 220
    white = (images > 200).flatten(2).float().mean(-1)
    assert white.mean() > 0.85
    assert white.min() > 0.6
    assert (images.flatten(2).amin(-1) < 180).all()


def brute_force_distance(start, stop, visible, size):
    """Pixel by pixel and segment by segment, in plain double precision."""
    distance = []
    for pixel in range(size * size):
        x, y = pixel % size + 0.5, pixel // size + 0.5
        nearest = math.inf
        for (ax, ay), (bx, by), seen in zip(start, stop, visible, strict=True):
            way_x, way_y = bx - ax, by - ay
            length = way_x**2 + way_y**2
            t = ((x - ax) * way_x + (y - ay) * way_y) / length if length else 0.0
            t = min(1.0, max(0.0, t))
            if seen:
                nearest = min(nearest, math.hypot(x - ax - t * way_x, y - ay - t * way_y))
        distance.append(nearest)
    return torch.tensor(distance, dtype=torch.float64)


def test_ink_distance_is_the_distance_to_the_nearest_segment():
    rng = torch.Generator().manual_seed(0)
    size, drawn, count = 32, 4, 40
    start = torch.rand(drawn, count, 2, generator=rng) * 36 - 2
    stop = start + 6 * torch.randn(drawn, count, 2, generator=rng)
    # points are segments too, and some are drawn over the corners of the page
    stop[:, :4] = start[:, :4]
    start[:, 4], stop[:, 4] = 0, size
    visible = torch.rand(drawn, count, generator=rng) < 0.5
    found = ink_distance(start, stop, visible, size).double()
    expected = torch.stack(
        [
            brute_force_distance(*(part.tolist() for part in one), size)
            for one in zip(start, stop, visible, strict=True)
        ]
    )
    apart = (found - expected).abs()
    assert apart[expected > 0.1].max() < 1e-3
    # squares up to 1,000 in float32 are 2e-4 off, and the root of that is 0.014 on a segment
    assert apart.max() < 0.015


def test_a_stroke_is_inked_where_it_is():
    # one vertical and one horizontal stroke, a plus; hands differ, so the mean of many is looked at
    along = torch.linspace(0, 1, 10)
    middle = torch.full_like(along, 0.5)
    plus = torch.stack([torch.stack([middle, along], -1), torch.stack([along, middle], -1)])
    strokes, count = plus.expand(200, 2, 10, 2), torch.full((200,), 2)
    ink = 255 - draw_by_hand(strokes, count, torch.Generator().manual_seed(0)).float().mean(0)[0]
    cross, corners = ink[8:24, 8:24].mean(), ink[[0, 0, -1, -1], [0, -1, 0, -1]].mean()
    assert cross > 1.7 * ink.mean()
    assert corners < 0.2 * ink.mean()


def test_only_the_strokes_that_count_are_drawn():
    strokes, _ = template(some_ids(20))
    one = torch.ones(20, dtype=torch.long)
    other = torch.cat([strokes[:, :1], strokes[:, 1:].flip(0)], 1)
    images = [draw_by_hand(s, one, torch.Generator().manual_seed(0)) for s in (strokes, other)]
    assert torch.equal(*images)


def test_a_bank_is_the_same_in_two_instances():
    first, second = (
        glyphs(bank=8, bank_samples=4).sample("train", SPEC, 3, torch.Generator().manual_seed(1))
        for _ in range(2)
    )
    assert torch.equal(first.train.x, second.train.x)
    assert torch.equal(first.test.x, second.test.x)


def test_a_bank_gives_the_same_drawings_again_and_no_bank_fresh_ones():
    spec, kinds = EpisodeSpec(tasks=5, shots=2, queries=1), {}
    for bank in (0, 5):
        benchmark, rng = glyphs(bank=bank, bank_samples=3), torch.Generator().manual_seed(0)
        train, _, _ = benchmark.sample("train", spec, 20, rng)
        kinds[bank] = len(train.x.flatten(0, 1).flatten(1).unique(dim=0))
    assert kinds == {0: 200, 5: 15}


def test_asking_a_bank_for_too_much_is_refused_with_both_numbers():
    rng = torch.Generator()
    with pytest.raises(ValueError, match="4 classes, and tasks is 5"):
        glyphs(bank=4).sample("train", SPEC, 1, rng)
    with pytest.raises(ValueError, match=r"classes of 2 images, .* 2 \+ 1 = 3"):
        glyphs(bank=8, bank_samples=2).sample("train", SPEC, 1, rng)


@pytest.mark.parametrize("wrong", [{"size": 7}, {"size": -1}, {"bank": -1}, {"bank_samples": 0}])
def test_bad_sizes_are_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} {value}\\b"):
        Glyphs(**wrong)


@pytest.mark.parametrize("size", [8, 20, 32])
def test_a_drawing_is_as_large_as_asked_for(size):
    benchmark = glyphs(size=size)
    train, test, _ = benchmark.sample("train", SPEC, 2, torch.Generator().manual_seed(0))
    assert train.x.shape == (2, 10, 1, size, size)
    assert test.x.shape == (2, 5, 1, size, size)
    assert benchmark.x_shape == (1, size, size)
