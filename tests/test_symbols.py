"""Episodes of any shape and order: varied streams, queries at any time, many benchmarks at once."""

import pytest
import torch

from onepass.benchmarks.base import draw, draw_varied
from onepass.benchmarks.symbols import Mixture
from onepass.config import Component
from onepass.episodes import Episodes, EpisodeSpec, Examples
from onepass.objectives import anytime
from onepass.registry import BENCHMARKS
from onepass.run import Run
from onepass.targets import Classes
from onepass.training import train

SPEC = EpisodeSpec(tasks=6, shots=4, queries=2, order="varied")


def varied(spec=SPEC, batch=8, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return draw_varied(BENCHMARKS.build("glyphs"), Classes(spec.tasks), "train", spec, batch, rng)


def test_varied_streams_have_few_tasks_with_many_shots_and_many_with_few():
    episodes = varied(batch=9)
    assert episodes.train.x.shape == (9, 24, 1, 32, 32)
    assert episodes.test.x.shape == (9, 12, 1, 32, 32)
    for row, tasks in enumerate([6, 6, 6, 3, 3, 3, 2, 2, 2]):
        for part, each in ((episodes.train, 24), (episodes.test, 12)):
            assert part.task[row].bincount().tolist() == [each // tasks] * tasks
            # an example is of the class that its code says
            assert len({*zip(part.task[row].tolist(), part.y[row].tolist(), strict=True)}) == tasks


def test_half_of_the_varied_streams_are_shuffled():
    shuffled = [
        bool((row.diff() < 0).any()) for seed in range(8) for row in varied(seed=seed).train.task
    ]
    assert 0.3 < sum(shuffled) / len(shuffled) < 0.7


def test_what_is_too_many_of_a_task_is_not_merged():
    episodes = varied(EpisodeSpec(tasks=2, shots=15, queries=10, order="varied"), batch=2)
    assert [len(row.unique()) for row in episodes.train.task] == [2, 2]


def test_varied_is_for_meta_training_alone():
    rng = torch.Generator().manual_seed(0)
    episodes = draw(BENCHMARKS.build("glyphs"), Classes(6), "train", SPEC, 2, rng)
    assert (episodes.train.task.diff() >= 0).all()
    assert len(episodes.train.task[0].unique()) == 6


def test_a_query_comes_at_any_time_after_the_first_example_of_its_task():
    task = torch.tensor([[0, 0, 1, 0, 2, 1]]).expand(4_000, -1)
    asked = torch.tensor([[0, 1, 2]]).expand(4_000, -1)
    nothing = torch.zeros(0)
    episodes = Episodes(Examples(nothing, nothing, task), Examples(nothing, nothing, asked))
    stop = anytime(episodes, 3, torch.Generator().manual_seed(0))
    for query, first in enumerate([0, 2, 4]):
        counts = stop[:, query].bincount(minlength=7)
        assert counts[: first + 1].sum() == 0
        places = 6 - first
        expected = 4_000 / places
        off = (counts[first + 1 :] - expected).square().sum() / expected
        assert off < 25, "not uniform"  # chi-square with 5 degrees or fewer: 1e-4 by chance


def test_a_batch_has_episodes_of_every_benchmark():
    plain, mirrored = BENCHMARKS.build("glyphs"), BENCHMARKS.build("glyphs", size=32, bank=40)
    both = Mixture([plain, mirrored])
    rng = torch.Generator().manual_seed(3)
    episodes = both.sample("train", EpisodeSpec(3, 2, 1), 5, rng)
    rng = torch.Generator().manual_seed(3)
    alone = plain.sample("train", EpisodeSpec(3, 2, 1), 2, rng)
    assert torch.equal(episodes.train.x[:2], alone.train.x)
    rest = mirrored.sample("train", EpisodeSpec(3, 2, 1), 3, rng)
    assert torch.equal(episodes.train.x[2:], rest.train.x)


def test_a_mixture_shows_one_kind_of_x():
    with pytest.raises(ValueError, match=r"mixture of \(1, 32, 32\) and \(1, 16, 16\)"):
        Mixture([BENCHMARKS.build("glyphs"), BENCHMARKS.build("glyphs", size=16)])
    with pytest.raises(ValueError, match="name at least one"):
        BENCHMARKS.build("symbols", of=[])


def test_credit_is_given_once_for_all():
    first, second = (Mixture([BENCHMARKS.build("glyphs")]) for _ in range(2))
    first.credit = second.credit = "theirs"
    assert Mixture([first, second]).credit == "theirs"


def test_a_learner_trains_on_varied_streams(tiny, tmp_path):
    options = {"width": 16, "layers": 1, "heads": 2, "norm": "group", "encoder": "cnn_small"}
    options |= {"tokens": "joint", "positions": False, "vocabulary": 12, "mixer": "delta"}
    config = tiny(
        benchmark=Component("symbols", {"of": ["glyphs"]}),
        learner=Component("sequence", options),
        tasks=4,
        order="varied",
        objective="anytime",
    )
    train(config, tmp_path / "run", "cpu", lambda line: None)
    result = Run(tmp_path / "run").read("result.json")
    assert 0 <= result["meta_test"]["error"] <= 1
