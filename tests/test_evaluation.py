"""Evaluation: numbers that can be checked by hand, and fairness between learners."""

import json

import pytest
import torch
from torch.testing import assert_close

from onepass.benchmarks.base import Benchmark
from onepass.config import Component, build
from onepass.episodes import Episodes, EpisodeSpec, Examples, task_ids
from onepass.evaluation import evaluate, evaluate_run, summarise
from onepass.learner import Learner
from onepass.registry import BENCHMARKS
from onepass.targets import Classes
from onepass.training import train

CPU = torch.device("cpu")
SPEC = EpisodeSpec(tasks=3, shots=2, queries=2)


class Numbers(Benchmark):
    """x is the class itself, as a number."""

    x_shape = (1,)
    splits = ("train", "test")

    def target(self, spec):
        return Classes(spec.tasks)

    def sample(self, split, spec, batch, rng):
        def examples(count):
            task = task_ids(spec.tasks, count, batch, rng.device)
            return Examples(task[..., None].float(), task, task)

        return Episodes(examples(spec.shots), examples(spec.queries))


class Forgetful(Learner):
    """Remembers the last `memory` classes it was shown, and answers with the one that is nearest.

    So what it gets wrong, and what it forgets, is known without running it.
    """

    def __init__(self, memory: int):
        super().__init__()
        self.target, self.memory = Classes(3), memory
        self.encoder, self.weight = torch.nn.Identity(), torch.nn.Parameter(torch.zeros(()))

    def init_state(self, batch):
        return torch.zeros(batch, 0, 2)

    def observe(self, state, z, y):
        pairs = torch.cat([z, y[..., None].float()], -1)
        return torch.cat([state, pairs], 1)[:, -self.memory :]

    def predict(self, state, z):
        answers = torch.zeros(*z.shape[:2], 3)
        for b in range(len(z)):
            for q in range(z.shape[1]):
                for x, token in state[b]:
                    answers[b, q, int(token)] = 10 - (x - z[b, q, 0]).abs()
        return answers


def errors(memory: int, **options) -> list[list[float]]:
    return evaluate(Forgetful(memory), Numbers(), SPEC, episodes=4, batch=3, **options).task_error


def test_what_is_remembered_is_right_and_what_is_forgotten_is_wrong():
    assert errors(memory=6) == [[0.0, 0.0, 0.0]]
    assert errors(memory=4) == [[1.0, 0.0, 0.0]]
    assert errors(memory=2) == [[1.0, 1.0, 0.0]]


def test_stops_are_rows_and_tasks_are_columns():
    assert errors(memory=2, at=[2, 4, 6]) == [[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]]


def test_a_class_never_shown_is_no_answer():
    class Stubborn(Forgetful):
        """Always says token 2, whichever class that is."""

        def predict(self, state, z):
            return torch.tensor([0.0, 0.0, 9.0]).expand(*z.shape[:2], 3)

    found = evaluate(Stubborn(6), Numbers(), SPEC, episodes=64, at=[0, 2, 6])
    nothing, first, last = (torch.tensor(row) for row in found.task_error)
    # after one class there is one answer left, and it is right for that class
    assert first.tolist() == [0.0, 1.0, 1.0]
    # with nothing shown, or everything, the answer is a fixed token: right a third of the time
    assert nothing.mean() == pytest.approx(2 / 3)
    assert last.mean() == pytest.approx(2 / 3)


def test_a_split_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="no validation split; there are: train, test"):
        evaluate(Forgetful(6), Numbers(), SPEC, split="validation")


def test_means_and_standard_errors_by_hand():
    # two episodes, one stop, two tasks: errors 0, 1 and 1, 1
    outcomes = torch.tensor([[[[0.0, 1.0], [1.0, 2.0]]], [[[1.0, 3.0], [1.0, 4.0]]]])
    found = summarise(outcomes, [5])
    assert found.error == 0.75
    # whole episodes score 0.5 and 1: standard deviation 0.3536, over the root of 2
    assert found.stderr == pytest.approx(0.25)
    assert found.loss == 2.5
    assert found.task_error == [[0.5, 1.0]]
    assert found.task_stderr[0] == pytest.approx([0.5, 0.0])
    assert summarise(outcomes[:1], [5]).stderr == 0


def test_every_learner_gets_the_same_episodes(tiny):
    seen = []
    for name, options in (("pn", {}), ("transformer", {"width": 16, "layers": 1, "heads": 2})):
        config = tiny(
            benchmark=Component("glyphs"),
            learner=Component(name, options | {"encoder": "cnn_small"}),
        )
        benchmark, learner = build(config)
        original = benchmark.sample

        def watch(*arguments, original=original):
            episodes = original(*arguments)
            seen.append(episodes.test.x)
            return episodes

        benchmark.sample = watch
        evaluate(learner, benchmark, config.spec, episodes=4, batch=4)
    assert_close(seen[0], seen[1], rtol=0, atol=0)


@pytest.mark.parametrize("code", [{}, {"vocabulary": 2, "code_length": 2}], ids=["C=1", "C=2"])
def test_an_untrained_learner_is_at_chance(tiny, code):
    options = {"width": 16, "layers": 1, "heads": 2, "encoder": "cnn_small"}
    config = tiny(benchmark=Component("glyphs"), learner=Component("transformer", options | code))
    benchmark, learner = build(config)
    found = evaluate(learner, benchmark, config.spec, episodes=256)
    # it may well give every query of an episode one answer, and then there is no spread
    assert abs(found.error - 2 / 3) < 5 * found.stderr + 1e-9


def test_evaluating_leaves_the_learner_as_it_was(tiny):
    benchmark, learner = build(tiny(learner=Component("transformer", {"width": 16, "heads": 2})))
    learner.train()
    before = {name: value.clone() for name, value in learner.state_dict().items()}
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    evaluate(learner, benchmark, SPEC, episodes=4)
    assert_close(torch.rand(3), expected, rtol=0, atol=0)
    assert_close(dict(learner.state_dict()), before, rtol=0, atol=0)
    assert learner.training


def test_a_run_is_scored_on_other_episodes_and_the_score_is_kept(tiny, tmp_path):
    small = {"width": 16, "layers": 1, "heads": 2, "encoder": "cnn_small"}
    config = tiny(benchmark=Component("glyphs"), learner=Component("transformer", small))
    train(config, tmp_path / "run", "cpu", lambda line: None)

    def score(on=None, split="test", stops=False, **shape):
        return evaluate_run(tmp_path / "run", on, shape, split, 4, stops, None, CPU)

    found, kept, is_class = score(shots=1, stops=True)
    assert is_class
    assert found["stops"] == [1, 2, 3]
    assert json.loads(kept.read_text()) == found
    assert found["meta_train"]["stops"] == [1, 2, 3]
    again, other, _ = score(shots=1, queries=1, stops=True)
    assert other != kept
    assert again["queries"] == 1
    with pytest.raises(ValueError, match="only 3 codes"):
        score(tasks=4)
    with pytest.raises(ValueError, match="shots is 0"):
        score(shots=0)
    with pytest.raises(ValueError, match=r"reads \(1, 32, 32\).*sine shows \(50,\)"):
        score(on="sine")
    with pytest.raises(ValueError, match=r"no benchmark 'glyph'; there are: .*glyphs"):
        score(on="glyph")


def test_images_of_another_source_are_asked_about_in_the_same_way(tiny, tmp_path, monkeypatch):
    data = {"view": "rotation", "label_shift": False, "bank": 8}
    options = {"width": 16, "layers": 1, "heads": 2, "encoder": "cnn_small"}
    config = tiny(benchmark=Component("glyphs", data), learner=Component("transformer", options))
    train(config, tmp_path / "run", "cpu", lambda line: None)
    built, original = [], BENCHMARKS.build

    def watch(name, **options):
        built.append(options)
        return original(name, **options)

    monkeypatch.setattr(BENCHMARKS, "build", watch)
    found, _, is_class = evaluate_run(tmp_path / "run", "glyphs", {}, "test", 4, False, None, CPU)
    assert built[-1] == {"view": "rotation", "label_shift": False}
    assert not is_class
    assert found["benchmark"] == "glyphs"
