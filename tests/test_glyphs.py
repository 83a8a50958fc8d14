"""Glyphs: a class is its number, a sample is a fresh drawing."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from onepass.benchmarks.glyphs import CLASSES, FIRST, Glyphs, glyphs, hashed_uniform, template
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
    together = template(ids)
    for i in range(len(ids)):
        for alone, expected in zip(template(ids[i : i + 1]), together, strict=True):
            assert torch.equal(alone[0], expected[i])


def test_a_template_fits_the_unit_square_and_has_one_to_four_strokes():
    strokes = template(some_ids(500))
    assert set(strokes.count.tolist()) == {10, 20, 30, 40}
    for points, count in zip(strokes.points, strokes.count.tolist(), strict=True):
        low, high = points[:count].aminmax(dim=0)
        assert_close((high - low).max(), torch.tensor(1.0))
        assert_close((low + high) / 2, torch.tensor([0.5, 0.5]))


def test_classes_differ():
    points, _, count, *_ = template(some_ids(500))
    seen = {tuple(path[:n].flatten().tolist()) for path, n in zip(points, count, strict=True)}
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
    moved = ((first - second).abs() > 60).flatten(1).float().mean(1)
    assert moved.min() > 0.01


def test_drawings_of_a_class_are_nearer_than_those_of_another():
    ids = some_ids(300)
    coarse = F.avg_pool2d(drawings(ids, 2).flatten(0, 1).float(), 8).flatten(1)
    distance = torch.cdist(*coarse.unflatten(0, (-1, 2)).unbind(1))
    others = ~torch.eye(len(ids), dtype=torch.bool)
    nearer = (distance.diagonal()[:, None] < distance)[others].float().mean()
    # chance is 0.5; six seeds gave 0.79 to 0.83
    assert nearer > 0.72


def test_episodes_are_of_the_classes_they_say():
    spec = EpisodeSpec(tasks=20, shots=4, queries=4)
    train, test, _ = glyphs().sample("test", spec, 8, torch.Generator().manual_seed(0))
    coarse = [F.avg_pool2d(part.x.flatten(0, 1), 4).flatten(1) for part in (train, test)]
    stream, queries = (part.unflatten(0, (8, 20, 4)) for part in coarse)
    nearest = torch.cdist(queries.flatten(1, 2), stream.mean(2)).argmin(-1)
    # chance is 0.05; six seeds gave 0.57 to 0.62
    assert (nearest == test.y).float().mean() > 0.45


def test_images_are_dark_ink_on_mostly_white_paper():
    images = drawings(some_ids(200), 2).float()
    assert images.mean() > 220
    white = (images > 200).flatten(2).float().mean(-1)
    assert white.mean() > 0.85
    assert white.min() > 0.6
    assert (images.flatten(2).amin(-1) < 180).all()


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
