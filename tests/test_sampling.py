"""Episodes drawn from a bank are fair and leak nothing, by whichever method they are drawn."""

import hashlib
import resource

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from onepass import sampling
from onepass.benchmarks.bank import ByClass, Stored, check_enough
from onepass.benchmarks.images import Images
from onepass.benchmarks.views import to_unit
from onepass.episodes import EpisodeSpec, Examples, arranged, task_ids
from onepass.sampling import distinct, distinct_within

SIZES = (4, 9, 5, 20, 4, 7)
SPEC = EpisodeSpec(tasks=3, shots=2, queries=2)
quickly = settings(max_examples=50, deadline=None)


def floyd(rows, among, count, rng):
    return sampling._by_floyd(torch.full(rows, among), count, rng)


# what makes each way of choosing the one that is taken
METHODS = {
    "keys": {},
    "fine keys": {"FEW": 0, "_keys_are_cheap": lambda *_: True},
    "floyd": {"_keys_are_cheap": lambda *_: False, "_first_different": floyd},
}


@pytest.fixture(scope="module", autouse=True, params=METHODS)
def method(request):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in METHODS[request.param].items():
            patch.setattr(sampling, name, value)
        yield request.param


def numbered(sizes=SIZES, classes=None) -> Images:
    """Image i is the two bytes of i, so that a sample tells which image it is."""
    number = np.arange(sum(sizes))
    images = np.stack([number // 256, number % 256], -1).astype(np.uint8)[:, None, None]
    splits = {"train": range(len(sizes)) if classes is None else classes}
    return Images(Stored("it", (1, 1, 2), ("train",), lambda: ByClass(images, sizes, splits)))


def image_numbers(x):
    high, low = ((x + 1) * 127.5).round().long().flatten(2).unbind(-1)
    return 256 * high + low


def class_of(number, sizes=SIZES):
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))[number]


def drawn(batch, spec=SPEC, sizes=SIZES, seed=0):
    """The numbers of the images of the stream and of the queries, [B, tasks, shots or queries]."""
    rng = torch.Generator().manual_seed(seed)
    train, test, _ = numbered(sizes).sample("train", spec, batch, rng)
    return tuple(image_numbers(part.x).unflatten(1, (spec.tasks, -1)) for part in (train, test))


def chi_square(outcomes, cells: int) -> float:
    count = torch.bincount(outcomes.flatten(), minlength=cells).double()
    assert len(count) == cells
    expected = count.sum() / cells
    return float(((count - expected) ** 2 / expected).sum())


def one_in_a_thousand(cells: int) -> float:
    """What a fair chi-square exceeds once in 1,000 times (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * (cells - 1))
    return (cells - 1) * (1 - spread + 3.09 * spread**0.5) ** 3


@st.composite
def banks_and_specs(draw):
    sizes = tuple(draw(st.lists(st.integers(2, 12), min_size=1, max_size=8)))
    shots = draw(st.integers(1, min(sizes) - 1))
    queries = draw(st.integers(1, min(sizes) - shots))
    return sizes, EpisodeSpec(draw(st.integers(1, len(sizes))), shots, queries)


def test_a_seed_draws_the_same_episodes_as_ever(method):
    """Published results rest on these; a change makes them incomparable."""
    if method != "keys":
        pytest.skip("they were drawn with keys")
    stream, queries = drawn(16, EpisodeSpec(20, 5, 5), sizes=[20] * 964)
    assert stream[0, :2].flatten().tolist() == [
        *(7704, 7713, 7705, 7703, 7708),
        *(6758, 6742, 6747, 6748, 6749),
    ]
    assert queries[15, -1].tolist() == [12160, 12175, 12178, 12168, 12173]
    numbers = torch.cat([stream.flatten(1), queries.flatten(1)], 1).numpy().tobytes()
    assert hashlib.sha256(numbers).hexdigest() == (
        "c62c5ef478ff12f347ade715550559421f15512d2c33fe88cbacb042b06d4663"
    )


def test_the_limit_is_the_one_in_the_tables():
    # 99.9 % points for 5 and 29 degrees of freedom; the approximation is 1.2 % off at 5
    assert one_in_a_thousand(6) == pytest.approx(20.515, rel=0.02)
    assert one_in_a_thousand(30) == pytest.approx(58.301, rel=0.002)


def test_every_class_is_as_likely_at_every_place():
    stream, _ = drawn(6000)
    for place in class_of(stream[:, :, 0]).unbind(1):
        assert chi_square(place, len(SIZES)) < one_in_a_thousand(len(SIZES))


def test_every_pair_of_classes_is_as_likely():
    stream, _ = drawn(6000)
    first, second = class_of(stream[:, :2, 0]).unbind(1)
    # the second is one of the five others
    pair = first * (len(SIZES) - 1) + second - (second > first).long()
    cells = len(SIZES) * (len(SIZES) - 1)
    assert chi_square(pair, cells) < one_in_a_thousand(cells)


def test_every_image_of_a_class_is_as_likely_in_the_stream_and_as_a_query():
    for part in drawn(6000):
        for k, size in enumerate(SIZES):
            among = part[..., 0][class_of(part[..., 0]) == k] - sum(SIZES[:k])
            assert chi_square(among, size) < one_in_a_thousand(size)


@quickly
@given(case=banks_and_specs(), seed=st.integers(0, 2**32))
def test_no_class_comes_twice_in_an_episode(case, seed):
    sizes, spec = case
    stream, _ = drawn(4, spec, sizes, seed)
    for episode in class_of(stream[:, :, 0], sizes):
        assert len(set(episode.tolist())) == spec.tasks


@quickly
@given(case=banks_and_specs(), seed=st.integers(0, 2**32))
def test_no_image_comes_twice_in_an_episode(case, seed):
    sizes, spec = case
    stream, queries = drawn(4, spec, sizes, seed)
    for episode in torch.cat([stream, queries], 2).flatten(1):
        assert len(set(episode.tolist())) == spec.tasks * (spec.shots + spec.queries)


@quickly
@given(case=banks_and_specs(), seed=st.integers(0, 2**32))
def test_all_images_of_a_task_are_of_one_class_whatever_the_sizes(case, seed):
    sizes, spec = case
    stream, queries = drawn(4, spec, sizes, seed)
    of_task = class_of(torch.cat([stream, queries], 2), sizes)
    assert (of_task == of_task[..., :1]).all()


def test_stream_and_queries_are_disjoint():
    stream, queries = drawn(500)
    assert not (stream.flatten(1)[:, :, None] == queries.flatten(1)[:, None]).any()


def test_a_class_that_is_just_large_enough_is_used_up():
    spec = EpisodeSpec(tasks=2, shots=3, queries=2)
    stream, queries = drawn(20, spec, sizes=(5, 9, 5))
    for task in torch.cat([stream, queries], 2).flatten(0, 1).tolist():
        k = int(class_of(task[0], (5, 9, 5)))
        assert k == 1 or sorted(task) == list(range(14 * (k > 0), 14 * (k > 0) + 5))


def test_classes_are_numbered_in_order_of_appearance():
    rng = torch.Generator().manual_seed(0)
    train, test, codes = numbered().sample("train", SPEC, 7, rng)
    assert codes is None
    for part in (train, test):
        assert part.y.tolist() == part.task.tolist() == [[0, 0, 1, 1, 2, 2]] * 7


def test_the_generator_decides_all():
    assert_close(drawn(5, seed=3), drawn(5, seed=3), rtol=0, atol=0)
    assert not torch.equal(drawn(5, seed=3)[0], drawn(5, seed=4)[0])


def test_a_bank_of_only_some_classes_draws_only_those():
    some = [5, 0, 2]
    rng = torch.Generator().manual_seed(0)
    train, test, _ = numbered(classes=some).sample("train", SPEC, 50, rng)
    seen = class_of(image_numbers(torch.cat([train.x, test.x], 1)))
    assert set(seen.flatten().tolist()) == set(some)


def test_bytes_reach_both_ends_of_the_unit_range():
    unit = to_unit(torch.arange(256, dtype=torch.uint8))
    assert unit[0] == -1
    assert unit[255] == 1
    assert_close(unit.double(), torch.linspace(-1, 1, 256, dtype=torch.float64), rtol=0, atol=1e-6)


def test_a_bank_too_small_is_refused_with_both_numbers():
    check_enough("it", 3, 4, SPEC)
    with pytest.raises(ValueError, match="it has 2 classes, and tasks is 3"):
        check_enough("it", 2, 4, SPEC)
    with pytest.raises(ValueError, match=r"classes of 3 images, .* 2 \+ 2 = 4"):
        check_enough("it", 3, 3, SPEC)


@quickly
@given(data=st.data(), among=st.integers(1, 30), seed=st.integers(0, 2**32))
def test_distinct_gives_indices_in_range_and_none_twice(data, among, seed):
    count = data.draw(st.integers(1, among))
    rows = distinct((2, 3), among, count, torch.Generator().manual_seed(seed))
    assert rows.shape == (2, 3, count)
    for row in rows.flatten(0, 1).tolist():
        assert len(set(row)) == count
        assert set(row) <= set(range(among))


@quickly
@given(
    sizes=st.lists(st.integers(3, 40), min_size=1, max_size=9),
    count=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
def test_rows_choose_within_their_own_size_and_none_twice(sizes, count, seed):
    rng = torch.Generator().manual_seed(seed)
    rows = distinct_within(torch.tensor([sizes, sizes]), max(sizes), count, rng)
    assert rows.shape == (2, len(sizes), count)
    for row in rows.unbind(0):
        for chosen, size in zip(row.tolist(), sizes, strict=True):
            assert len(set(chosen)) == count
            assert set(chosen) <= set(range(size))


def test_every_ordered_choice_is_as_likely():
    rng = torch.Generator().manual_seed(0)
    first, second, third = distinct((12_000,), 5, 3, rng).unbind(1)
    _, outcome = (25 * first + 5 * second + third).unique(return_inverse=True)
    assert chi_square(outcome, 60) < one_in_a_thousand(60)


def test_every_ordered_choice_of_the_first_different_is_as_likely():
    """Of 5, far fewer than it is for, so that most draws come again."""
    rng = torch.Generator().manual_seed(0)
    chosen = sampling._first_different((12_000,), 5, 3, rng)
    assert all(len(set(row)) == 3 for row in chosen[:2_000].tolist())
    _, outcome = (chosen * torch.tensor([25, 5, 1])).sum(1).unique(return_inverse=True)
    assert chi_square(outcome, 60) < one_in_a_thousand(60)


def test_every_ordered_choice_within_a_size_is_as_likely():
    rng = torch.Generator().manual_seed(0)
    sizes = torch.tensor([3, 4, 6]).expand(6_000, 3)
    for size, row in zip((3, 4, 6), distinct_within(sizes, 6, 2, rng).unbind(1), strict=True):
        first, second = row.unbind(1)
        outcome = first * (size - 1) + second - (second > first).long()
        assert chi_square(outcome, size * (size - 1)) < one_in_a_thousand(size * (size - 1))


def test_a_few_of_very_many_are_chosen_from_all_over():
    rng = torch.Generator().manual_seed(0)
    chosen = torch.cat([distinct((40,), 100_000, 20, rng) for _ in range(10)])
    assert chi_square(chosen // 1_000, 100) < one_in_a_thousand(100)
    # the last digits too
    assert chi_square(chosen % 100, 100) < one_in_a_thousand(100)


def numbered_examples(batch: int, tasks: int, shots: int) -> Examples:
    """x and y say which example it is."""
    number = torch.arange(batch * tasks * shots).view(batch, -1)
    x = torch.stack([number, number**2], -1)
    return Examples(x, -number, task_ids(tasks, shots, batch, torch.device("cpu")))


@quickly
@given(tasks=st.integers(1, 5), shots=st.integers(1, 5), seed=st.integers(0, 2**32))
def test_shuffling_keeps_examples_whole_and_in_their_episode(tasks, shots, seed):
    before = numbered_examples(3, tasks, shots)
    x, y, task = arranged(before, "shuffled", torch.Generator().manual_seed(seed))
    number = x[..., 0]
    assert torch.equal(number.sort(1).values, before.x[..., 0])
    assert torch.equal(x[..., 1], number**2)
    assert torch.equal(y, -number)
    assert torch.equal(task, number % (tasks * shots) // shots)


def test_blocked_examples_come_task_after_task_and_use_no_randomness():
    rng = torch.Generator().manual_seed(0)
    state = rng.get_state()
    x, _, task = arranged(numbered_examples(2, 3, 2), "blocked", rng)
    assert x[0, :, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert task.tolist() == [[0, 0, 1, 1, 2, 2]] * 2
    assert torch.equal(rng.get_state(), state)


def test_every_order_is_as_likely():
    examples = numbered_examples(4800, tasks=2, shots=2)
    x, _, _ = arranged(examples, "shuffled", torch.Generator().manual_seed(0))
    place = (x[..., 0] % 4 * torch.tensor([64, 16, 4, 1])).sum(1)
    _, outcome = place.unique(return_inverse=True)
    assert chi_square(outcome, 24) < one_in_a_thousand(24)


@pytest.mark.parametrize("wrong", [{"tasks": 0}, {"shots": -1}, {"queries": 0}])
def test_an_impossible_spec_is_refused(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name} is {value}"):
        EpisodeSpec(**wrong)


def test_unequal_and_many_classes_cost_no_more_than_what_is_drawn(method):
    """A class of a million images, and a billion classes: by keys these would be gigabytes."""
    if method != "keys":
        pytest.skip("the method is the one that is right for the size")
    rng = torch.Generator().manual_seed(0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = torch.tensor([20, 3_000, 1_000_000]).expand(100, 3)
    within = distinct_within(sizes, 1_000_000, 10, rng)
    assert (within.amax((0, 2)) < sizes[0]).all()
    assert (within.amax((0, 2)) > sizes[0] / 2).all()
    assert distinct((32,), 2**33, 100, rng).max() > 2**32
    # thousands at once, each held against each, would be gigabytes
    assert distinct((16,), 2**33, 10_000, rng).shape == (16, 10_000)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    # in KiB on Linux; one key for each image would be 1.2 GB
    assert grown < 200_000
