"""The models that come with onepass: small, documented, and as good as their cards say."""

import json

import numpy as np
import pytest
import torch

import onepass
from onepass import EpisodeSpec
from onepass.benchmarks.glyphs import glyphs
from onepass.learner import most_classes
from onepass.models import shipped
from onepass.registry import BENCHMARKS
from onepass.tree import state_bytes

NAMES = ["symbols", "symbols-linear"]
ASKED = {"symbols": (0.025, 0.08), "symbols-linear": (0.05, 0.15)}  # 20 classes, 5 shots and 1


def pictures(benchmark, classes, shots, queries, seed=0):
    """A blocked stream of one episode and its queries, as arrays of paper (1) and ink (0)."""
    rng = torch.Generator().manual_seed(seed)
    train, test, _ = benchmark.sample("test", EpisodeSpec(classes, shots, queries), 1, rng)
    for part in (train, test):
        yield (part.x[0, :, 0].numpy() + 1) / 2, part.task[0].tolist()


def test_both_are_there_small_and_with_a_card():
    assert list(shipped()) == NAMES
    for folder in shipped().values():
        assert sum(path.stat().st_size for path in folder.iterdir()) < 12e6
        card = (folder / "README.md").read_text()
        for shape in ("5 x 1", "5 x 5", "20 x 1", "20 x 5", "50 x 1", "50 x 5"):
            assert f"| omniglot, meta-test | {shape} |" in card
        for said in (
            "| kanji | drawn from the strokes of KanjiVG: Ulrich Apel, CC BY-SA",
            "Limits",
        ):
            assert said in card
        assert len(json.loads((folder / "config.json").read_text())["trained"]["commit"]) == 40


@pytest.mark.parametrize("name", NAMES)
def test_the_card_has_the_error_that_was_asked_for(name):
    card = (shipped()[name] / "README.md").read_text()
    for shots, most in zip((5, 1), ASKED[name], strict=True):
        _, _, rest = card.partition(f"| omniglot, meta-test | 20 x {shots} | ")
        assert float(rest.split(" +-")[0]) <= 100 * most


@pytest.mark.parametrize("name", NAMES)
def test_a_few_drawings_are_enough(name):
    learner = onepass.load(name)
    assert most_classes(learner.learner) >= 1_000
    (X, y), asked = pictures(glyphs(), 20, 5, 5)
    learner.partial_fit(X, [f"symbol {number}" for number in y])
    assert learner.score(asked[0], [f"symbol {number}" for number in asked[1]]) > 0.93


def test_one_of_them_holds_the_same_after_any_stream():
    sizes = []
    for name in NAMES:
        learner = onepass.load(name)
        for number in range(2):
            learner.learn_one(np.ones((32, 32)), number)
            sizes.append(learner.state_bytes_)
    assert sizes[1] == 2 * sizes[0]
    assert sizes[2] == sizes[3] < 300_000
    empty = onepass.load("symbols-linear").learner.init_state(1)
    assert sizes[3] == state_bytes(empty)


@pytest.mark.parametrize("name", NAMES)
def test_three_hundred_classes_and_one_of_them_taught_again(name):
    (X, y), (asked, names) = pictures(glyphs(), 300, 1, 1)
    learner = onepass.load(name).partial_fit(X, y)
    assert len(learner.classes_) == 300
    # far more than were ever met in meta-training, and one drawing of each: well above chance
    assert learner.score(asked, names) > 0.2
    for _ in range(3):
        learner.learn_one(X[7], "another name")
    assert learner.predict_one(X[7]) == "another name"


@pytest.mark.parametrize("name", NAMES)
def test_omniglot_is_learned_as_the_card_says(name, real_cache, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(real_cache))
    right = []
    for seed in range(12):
        (X, y), asked = pictures(BENCHMARKS.build("omniglot"), 20, 5, 5, seed)
        right.append(onepass.load(name).partial_fit(X, y).score(*asked))
    # 1,200 answers: within three standard errors of the card's 2.3 %
    assert 1 - np.mean(right) < 0.023 + 3 * 0.008


@pytest.mark.slow
def test_a_long_stream_is_sound_where_only_news_is_learned():
    (X, y), asked = pictures(glyphs(), 5, 1_000, 40)
    learner, rng = onepass.load("symbols-linear", skip_above=0.5), np.random.default_rng(0)
    for _ in range(4):
        order = rng.permutation(len(y))
        learner.partial_fit(X[order], [y[n] for n in order])
    assert learner.n_samples_seen_ == 20_000
    assert learner.class_count_.sum() < 500
    assert learner.score(*asked) > 0.97
