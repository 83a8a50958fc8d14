"""Means, spreads and paired differences against numbers worked out by hand."""

import math

import pytest

from onepass.statistics import over_seeds, paired, spread


def result(seed: int, errors: list[float], **changes) -> dict:
    config = {
        "benchmark": {"name": "omniglot", "options": {"validation": False}},
        "tasks": 2,
        "shots": 1,
        "queries": 1,
        "order": "blocked",
        "seed": seed,
        "evaluation_episodes": len(errors),
        "evaluation_batch": 2,
    }
    score = {"error": sum(errors) / len(errors), "stderr": 0.125, "episode_error": errors}
    return {"meta_test": score, "device": "cpu", "config": config} | changes


def test_mean_std_and_standard_error_are_those_of_a_sample():
    found = spread([1.0, 2.0, 6.0])
    assert (found.mean, found.count) == (3.0, 3)
    assert found.std == pytest.approx(math.sqrt((4 + 1 + 9) / 2))
    assert found.stderr == pytest.approx(math.sqrt(7 / 3))


def test_one_value_has_no_spread_and_none_have_no_mean():
    assert spread([5.0]).std == 0.0
    with pytest.raises(ValueError, match="no mean of no values"):
        spread([])


def test_one_seed_has_the_standard_error_of_its_episodes():
    assert over_seeds([result(0, [0.0, 0.5])]).stderr == 0.125
    assert over_seeds([result(0, [0.0, 0.5]), result(1, [0.5, 0.75])]).std == pytest.approx(
        0.375 / math.sqrt(2)
    )


def test_paired_difference_of_one_seed_is_over_episodes():
    # differences 0.5, 0.25, 0, 0.25: mean 0.25, variance (0.0625 + 0.0625) / 3
    found = paired([result(0, [0.5, 0.5, 0.0, 1.0])], [result(0, [0.0, 0.25, 0.0, 0.75])])
    assert found is not None
    assert (found.mean, found.seeds, found.episodes) == (0.25, 1, 4)
    assert found.stderr == pytest.approx(math.sqrt(0.125 / 3 / 4))


def test_paired_difference_of_several_seeds_is_over_seeds():
    first = [result(0, [0.5, 0.5]), result(1, [1.0, 1.0]), result(7, [1.0, 1.0])]
    second = [result(1, [0.5, 0.0]), result(0, [0.25, 0.25])]
    found = paired(first, second)
    # 0.25 in both episodes of seed 0, 0.75 on average at seed 1; seed 7 has no partner
    assert found is not None
    assert (found.mean, found.seeds, found.episodes) == (0.5, 2, 4)
    assert found.stderr == pytest.approx(0.25)


@pytest.mark.parametrize(
    "other",
    [
        result(1, [0.0, 0.5]),
        result(0, [0.0, 0.5], device="NVIDIA H200"),
        result(0, [0.0, 0.5, 0.5]),
        result(0, [0.0, 0.5], meta_test={"error": 0.25, "stderr": 0.1}),
    ],
    ids=["seed", "device", "episodes", "old file"],
)
def test_runs_on_other_episodes_make_no_pair(other):
    assert paired([result(0, [0.5, 0.5])], [other]) is None
