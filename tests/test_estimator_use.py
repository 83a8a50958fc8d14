"""The estimators in use: pipelines, copies, files, threads, dicts, and long streams."""

import copy
import pickle
import subprocess
import sys
import threading
import time
from collections import Counter

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from onepass import ContinualClassifier, ContinualRegressor
from onepass.benchmarks.glyphs import Glyphs
from onepass.config import Component, override
from onepass.recipes import make_config
from onepass.registry import LEARNERS
from onepass.sealed import sealed, unsealed
from onepass.targets import Classes
from onepass.training import train

NAMES = ["transformer", "linear_transformer", "pn", "gemcl", "oml"]
IRIS = load_iris(return_X_y=True)


def vector_learner(name: str, classes: int = 4, features: int = 8, **options):
    torch.manual_seed(0)
    small = {"width": 16, "layers": 2, "heads": 2, "norm": "group"} | options
    takes = {key: small[key] for key in small if key in LEARNERS.options(name)}
    return LEARNERS.build(name, (features,), Classes(classes), **takes).eval()


def taught(name: str = "transformer", **options) -> ContinualClassifier:
    X, y = noise(9), list("abcabcabc")
    return ContinualClassifier(vector_learner(name), x_shape=(8,), **options).fit(X, y)


def noise(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 8))


# scikit-learn's world


def test_it_works_in_pipelines_and_searches():
    pipeline = make_pipeline(StandardScaler(), ContinualClassifier())
    assert cross_val_score(pipeline, *IRIS).mean() > 0.8
    search = GridSearchCV(ContinualRegressor(), {"ridge": [1e-3, 1e6]})
    search.fit(IRIS[0][:, :3], IRIS[0][:, 3])
    assert search.best_params_ == {"ridge": 1e-3}


def test_a_clone_has_the_settings_and_knows_nothing():
    original = taught(keep_examples=True, random_state=5)
    twin = clone(original)
    assert not hasattr(twin, "classes_")
    assert twin.get_params()["random_state"] == 5
    twin.fit(noise(9), list("abcabcabc"))
    assert np.array_equal(twin.predict_proba(noise(3)), original.predict_proba(noise(3)))


@pytest.mark.parametrize("name", [*NAMES, "online"])
def test_it_goes_through_joblib_and_goes_on_learning(name, tmp_path):
    original = taught(name, keep_examples=True)
    joblib.dump(original, tmp_path / "taught.joblib")
    for twin in (joblib.load(tmp_path / "taught.joblib"), pickle.loads(pickle.dumps(original))):
        assert np.array_equal(twin.predict_proba(noise(3)), original.predict_proba(noise(3)))
        twin.learn_one(noise(1)[0], "new")
        assert "new" not in original.classes_


def test_a_copy_goes_its_own_way_and_costs_nothing():
    original = taught(keep_examples=True)
    before, fork = original.predict_proba(noise(3)), copy.copy(original)
    assert fork._learned.state is original._learned.state
    fork.learn_one(noise(1)[0], "new")
    original.learn_one(noise(1)[0], "other").forget("other")
    np.testing.assert_allclose(original.predict_proba(noise(3)), before, rtol=1e-5)
    assert fork.classes_.tolist() == ["a", "b", "c", "new"]


def test_a_learner_that_is_trained_on_is_left_alone():
    learner = vector_learner("transformer").train()
    classifier = ContinualClassifier(learner, x_shape=(8,)).fit(noise(9), list("abcabcabc"))
    assert learner.training
    assert np.array_equal(classifier.predict_proba(noise(3)), classifier.predict_proba(noise(3)))
    shares = ContinualClassifier(learner.eval(), x_shape=(8,)).fit(noise(1), ["a"])
    assert shares._learned.model.learner is learner


def test_a_run_is_all_it_needs(tiny, tmp_path):
    small = {"width": 16, "layers": 1, "heads": 2, "encoder": "cnn_small"}
    config = tiny(benchmark=Component("glyphs"), learner=Component("transformer", small), steps=2)
    train(config, tmp_path / "run", "cpu", lambda line: None)
    classifier = ContinualClassifier(tmp_path / "run")
    images = np.random.default_rng(0).integers(0, 256, (3, 105, 105), np.uint8)
    classifier.partial_fit(images, ["a", "b", "c"])
    with pytest.raises(ValueError, match="codes for 3 classes, and 'd' is one more"):
        classifier.learn_one(images[0], "d")
    classifier.save(tmp_path / "learned.safetensors")
    again = ContinualClassifier(str(tmp_path / "run")).load(tmp_path / "learned.safetensors")
    assert np.array_equal(again.predict_proba(images), classifier.predict_proba(images))
    with pytest.raises(
        ValueError, match=r"x_shape is \(8,\), and this learner reads \(1, 32, 32\)"
    ):
        ContinualClassifier(tmp_path / "run", x_shape=(8,)).fit(images, ["a", "b", "c"])


# files


@pytest.mark.parametrize("options", [{}, {"keep_examples": True}, {"max_examples": 5}])
@pytest.mark.parametrize("name", NAMES)
def test_what_was_learned_is_there_again_and_goes_on(name, options, tmp_path):
    original, path = taught(name, **options), tmp_path / "learned.safetensors"
    original.save(path)
    again = ContinualClassifier(original.learner, x_shape=(8,), **options).load(path)
    for each in (original, again):
        each.partial_fit(noise(3, seed=1), ["c", "d", "d"])
        if options:
            each.forget("c")
    assert again.classes_.tolist() == original.classes_.tolist()
    assert np.array_equal(again.predict_proba(noise(5)), original.predict_proba(noise(5)))
    assert again.n_samples_seen_ == 12
    assert again.n_features_in_ == 8


def test_labels_and_features_of_all_kinds_are_there_again(tmp_path):
    labels = ["a", 1, ("b", (2, None)), 2.0, None, True]
    classifier = ContinualClassifier().partial_fit(noise(6), labels, classes=["later", *labels])
    classifier.save(tmp_path / "file")
    again = ContinualClassifier().load(tmp_path / "file")
    assert again.classes_.tolist() == classifier.classes_.tolist()
    assert np.array_equal(again.predict_proba(noise(6)), classifier.predict_proba(noise(6)))
    with pytest.raises(ValueError, match=r"the label frozenset\(\) cannot be saved"):
        classifier.learn_one(noise(1)[0], frozenset()).save(tmp_path / "file")
    by_name = ContinualRegressor().learn_one({"x": 1.0, "y": 2.0}, 3.0)
    by_name.save(tmp_path / "file")
    again = ContinualRegressor().load(tmp_path / "file")
    assert again.predict_one({"y": 2.0, "x": 1.0}) == by_name.predict_one({"x": 1.0, "y": 2.0})
    assert again.predict(np.zeros((2, 2))).shape == (2,)


def test_the_file_of_another_model_is_refused(tmp_path):
    path = tmp_path / "learned.safetensors"
    taught().save(path)
    with pytest.raises(ValueError, match=r"by a SequenceLearner .*; this is a Prototype that"):
        ContinualClassifier().load(path)
    other = vector_learner("transformer")
    with torch.no_grad():
        other.head.bias[0] += 1
    with pytest.raises(ValueError, match=r"answers 4 classes, .*; this is one with other weights"):
        ContinualClassifier(other, x_shape=(8,)).load(path)
    with pytest.raises(ValueError, match="saved by a classifier, and this is a regressor"):
        ContinualRegressor().load(path)


def test_files_that_are_damaged_or_something_else_are_refused(tmp_path):
    path, classifier = tmp_path / "file", taught()
    classifier.save(path)
    content = path.read_bytes()
    spoilt = bytearray(content)
    spoilt[-1] ^= 1
    tensors, marks = unsealed(content)
    new = sealed(tensors, {"learned": marks["learned"].replace('"version": 1', '"version": 2')})
    less = sealed({"state/0": tensors["state/0"]}, marks)
    for other, line in (
        (bytes(spoilt), "damaged, or no estimator saved it: wrong checksum"),
        (content[:-9], "damaged, or no estimator saved it"),
        (b"", "damaged, or no estimator saved it"),
        (pickle.dumps(classifier), "damaged, or no estimator saved it"),
        (new, "has version 2, and this onepass reads 1"),
        (less, "is damaged: 'state/1'"),
    ):
        path.write_bytes(other)
        before = classifier._learned
        with pytest.raises(ValueError, match=line):
            classifier.load(path)
        assert classifier._learned is before
    with pytest.raises(ValueError, match="there is no file"):
        classifier.load(tmp_path / "nowhere")
    with pytest.raises(OSError, match="could not write"):
        classifier.save(tmp_path)


def test_a_file_is_small_and_holds_no_weights(tmp_path):
    X, y = load_digits(return_X_y=True)
    classifier = ContinualClassifier().fit(X, y)
    classifier.save(tmp_path / "file")
    # 10 classes, room for 16: means and counts of 64 numbers, in double precision
    assert (tmp_path / "file").stat().st_size < 16 * 65 * 8 + 2_000


SCRIPT = """
import os
os.environ["OMP_NUM_THREADS"] = "2"
import numpy, torch
from onepass import ContinualClassifier
assert torch.get_num_threads() == 2
X = numpy.load("queries.npy")
found = ContinualClassifier("run", keep_examples=True).load("learned.safetensors").predict_proba(X)
numpy.save("found.npy", found)
"""


def test_another_process_with_more_threads_answers_the_same(tiny, tmp_path):
    small = {"width": 16, "layers": 1, "heads": 2, "encoder": "cnn_small", "vocabulary": 50}
    config = tiny(benchmark=Component("glyphs"), learner=Component("transformer", small), steps=2)
    train(config, tmp_path / "run", "cpu", lambda line: None)
    images = np.random.default_rng(0).integers(0, 256, (40, 32, 32), np.uint8)
    classifier = ContinualClassifier(tmp_path / "run", keep_examples=True)
    classifier.fit(images, [f"symbol {n}" for n in range(40)])
    classifier.save(tmp_path / "learned.safetensors")
    np.save(tmp_path / "queries.npy", images)
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    found = np.load(tmp_path / "found.npy")
    np.testing.assert_allclose(found, classifier.predict_proba(images), rtol=1e-4, atol=1e-6)


# threads


def test_who_asks_while_another_learns_gets_one_moment_of_it():
    classifier, wrong, stop = taught(keep_examples=True), [], threading.Event()

    def read():
        while not stop.is_set():
            shares = classifier.predict_proba_one(noise(1)[0])
            if abs(sum(shares.values()) - 1) > 1e-6 or not set("abc") <= set(shares):
                wrong.append(shares)

    def write(label):
        for x in noise(20, seed=1):
            classifier.learn_one(x, label)

    readers = [threading.Thread(target=read) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(label,)) for label in ("a", "d")]
    for thread in readers + writers:
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in readers:
        thread.join()
    assert not wrong
    # nothing that was learned at the same time got lost
    assert classifier.n_samples_seen_ == 49
    assert classifier.class_count_.tolist() == [23, 3, 3, 20]


# river's manner


def test_dicts_of_features_are_learned_by_name():
    rows = [({"height": 1.0, "width": 2.0}, "wide"), ({"width": 1.0, "height": 9.0}, "high")]
    classifier = ContinualClassifier()
    assert classifier.predict_one({"height": 1.0}) is None
    assert classifier.predict_proba_one({"height": 1.0}) == {}
    for x, label in rows:
        classifier.learn_one(x, label)
    assert classifier.predict_one({"width": 0.0, "height": 8.0}) == "high"
    assert classifier.predict_proba_one({"width": 1.0, "height": 9.0})["high"] > 0.99
    assert classifier.predict([[8.0, 0.0]]).tolist() == ["high"]
    with pytest.raises(ValueError, match=r"features are height, width; missing, or more.*: width"):
        classifier.predict_one({"height": 1.0})
    regressor = ContinualRegressor()
    assert regressor.predict_one({"x": 1.0}) is None
    for n in range(50):
        regressor.learn_one({"x": float(n)}, 2.0 * n)
    assert regressor.predict_one({"x": 60.0}) == pytest.approx(120, rel=1e-2)


# hard use


def test_three_hundred_classes_and_one_example_of_each():
    X = noise(300)
    y = [f"class {n}" for n in range(300)]
    classifier = ContinualClassifier()
    for x, label in zip(X, y, strict=True):
        classifier.learn_one(x, label)
    assert classifier.predict(X).tolist() == y
    assert classifier.predict_proba(X).shape == (300, 300)
    coded = ContinualClassifier(vector_learner("transformer", 300), x_shape=(8,)).fit(X, y)
    assert coded.predict_proba(X).shape == (300, 300)
    assert set(coded.predict(X)) <= set(y)


@pytest.mark.parametrize("name", NAMES)
def test_contradictions_are_learned_as_they_are(name):
    x = noise(1)[0]
    classifier = ContinualClassifier(vector_learner(name), x_shape=(8,))
    for _ in range(5):
        classifier.learn_one(x, "yes").learn_one(x, "no")
    shares = classifier.predict_proba_one(x)
    assert set(shares) == {"yes", "no"}
    assert sum(shares.values()) == pytest.approx(1)
    if name in ("pn", "gemcl"):
        assert shares["yes"] == pytest.approx(0.5)


def test_answers_that_are_not_finite_are_an_error():
    classifier = ContinualClassifier().fit([[0.0], [1e200]], ["a", "b"])
    with pytest.raises(FloatingPointError, match="answers are not finite"):
        classifier.predict([[-1e200]])
    oml = ContinualClassifier(vector_learner("oml", inner_rate=1e30), x_shape=(8,))
    oml.fit(noise(50), ["a", "b"] * 25)
    with pytest.raises(FloatingPointError, match="not finite; the inner rate is 1e"):
        oml.predict(noise(2))


def test_a_float32_learner_is_given_no_infinities():
    classifier = taught()
    with pytest.raises(ValueError, match=r"too large for dtype\('float32'\)"):
        classifier.predict(np.full((1, 8), 1e300))
    with pytest.raises(ValueError, match="Input X contains NaN"):
        classifier.learn_one(np.full(8, np.nan), "a")
    with pytest.raises(ValueError, match=r"X has 7 features, but .* is expecting 8"):
        classifier.predict(np.zeros((1, 7)))
    with pytest.raises(ValueError, match="Found array with dim 3"):
        classifier.predict(np.zeros((1, 8, 8)))
    assert classifier.predict(np.zeros((0, 8))).tolist() == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("share", [0.2, 0.4, 1.0])
def test_what_is_sure_by_then_is_not_learned(name, share):
    """By the definition, one by one; and the same however many come in a call."""
    X, y = noise(60), [f"{n}" for n in np.random.default_rng(1).integers(0, 4, 60)]
    options = {"learner": vector_learner(name), "x_shape": (8,)}
    expected, learned = ContinualClassifier(**options), Counter()
    for x, label in zip(X, y, strict=True):
        if learned[label] < 5 or expected.predict_proba_one(x)[label] < share:
            expected.learn_one(x, label)
            learned[label] += 1
    learned = sum(learned.values())
    assert learned == 60 if share == 1 else 20 <= learned < 60
    for pieces in ([60], [1] * 60, [7, 33, 20]):
        found, done = ContinualClassifier(**options, skip_above=share, keep_examples=True), 0
        for size in pieces:
            found.partial_fit(X[done : done + size], y[done : done + size])
            done += size
        assert found.n_samples_seen_ == 60
        assert found.class_count_.sum() == learned
        assert found.class_count_.tolist() == expected.class_count_.tolist()
        same = expected.predict_proba(X), found.predict_proba(X)
        np.testing.assert_allclose(*same, atol=1e-5)


def test_what_is_skipped_drops_nothing_from_a_full_budget():
    X = np.repeat(np.eye(8)[:2] * 9, 8, 0)
    classifier = ContinualClassifier(skip_above=0.5, max_examples=10)
    classifier.partial_fit(X, ["a"] * 8 + ["b"] * 8)
    assert classifier.class_count_.tolist() == [5, 5]
    assert classifier.n_samples_seen_ == 16
    # news in a full budget takes the place of a quarter, as ever
    classifier.learn_one(X[0], "c")
    assert classifier.class_count_.sum() == 9


def test_answers_that_are_no_numbers_are_news():
    classifier = ContinualClassifier(skip_above=0.5)
    classifier.fit(np.array([[1e200], [-1e200], [0.0]] * 3), list("abc") * 3)
    assert classifier.class_count_.tolist() == [3, 3, 3]


def test_a_lesson_that_fails_leaves_all_as_it_was():
    classifier = ContinualClassifier()
    with pytest.raises(ValueError, match="X has 3 examples, and y has 1"):
        classifier.partial_fit(np.zeros((3, 5)), ["a"])
    assert not hasattr(classifier, "n_features_in_")
    classifier.fit([[0.0, 0], [1, 1]], ["a", "b"])
    with pytest.raises(ValueError, match="X has 3 examples, and y has 1"):
        classifier.fit(np.zeros((3, 5)), ["a"])
    assert classifier.predict([[0.0, 0]]).tolist() == ["a"]


def test_features_without_names_are_not_mixed_with_named_ones():
    classifier = ContinualClassifier().fit([[1, 2], [2, 1]], ["a", "b"])
    with pytest.raises(ValueError, match="come without names so far: give a list, not a dict"):
        classifier.predict_one({"p": 1, "q": 2})


@pytest.mark.parametrize("labels", [[(0.5, 1), (1, 2)], [("a", None), ((1, 0.25), "b")]])
def test_what_can_be_saved_can_be_loaded(labels, tmp_path):
    classifier = ContinualClassifier().fit([[0.0, 0], [1, 1]], labels)
    classifier.save(tmp_path / "taught")
    again = ContinualClassifier().load(tmp_path / "taught")
    assert again.predict_one([1.0, 1]) == labels[1]
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        ContinualClassifier().load(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", [None, "pn", "linear_transformer"])
def test_example_100000_costs_what_example_1000_did_and_nothing_is_lost(name):
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(20, 8))
    learner = name and vector_learner(name, 20, tokens="joint", positions=False)
    classifier = ContinualClassifier(learner, x_shape=name and (8,))
    early = scores = None
    for _ in range(100):
        y = rng.integers(0, 20, 1_000)
        classifier.partial_fit(centres[y] + 0.1 * rng.normal(size=(1_000, 8)), y)
        if early is None:
            early, scores = copy.copy(classifier), classifier.predict_proba(centres)
    assert classifier.n_samples_seen_ == 100_000
    assert classifier.state_bytes_ == early.state_bytes_
    # fresh weights have learned nothing of use, but more of the same changes no answer
    np.testing.assert_allclose(classifier.predict_proba(centres), scores, atol=0.05)
    times = []
    for x in centres.repeat(5, 0):
        times.append([])
        for each in (early, classifier):
            started = time.perf_counter()
            each.learn_one(x, 0).predict_one(x)
            times[-1].append(time.perf_counter() - started)
    # in turns, and the quickest of each: whatever else the machine does only makes them slower
    first, last = (min(column) for column in zip(*times, strict=True))
    assert last < 1.5 * first


@pytest.mark.slow
def test_a_learner_without_positions_goes_on_learning_beyond_what_it_was_trained_on(tmp_path):
    """Meta-trained on 15 examples, shown 15,000; chance is 80 % error."""
    small = ["width=32", "heads=2", "mixer.head_width=16", "tokens=joint", "positions=false"]
    rate = ["steps=800", "rate=0.002", "halve_every=400", "evaluation_episodes=32"]
    data = ["benchmark.size=16", "benchmark.bank=800", "order=shuffled"]
    config = make_config("quickstart", "glyphs", "linear_transformer")
    train(override(config, [*small, *rate, *data]), tmp_path / "run", "cpu", lambda line: None)
    errors = []
    for seed in range(3):
        rng = torch.Generator().manual_seed(seed)
        images = Glyphs(16).drawings(torch.arange(5) + 2**31 + 5 * seed, 220, rng).numpy()
        classifier = ContinualClassifier(tmp_path / "run")
        queries, asked = images[:, 200:].reshape(100, 16, 16), np.arange(5).repeat(20)
        classifier.fit(images[:, :3].reshape(15, 16, 16), np.arange(5).repeat(3))
        before = classifier.score(queries, asked)
        y, n = np.random.default_rng(seed).integers(0, [[5], [200]], (2, 15_000))
        errors.append(
            [1 - before, 1 - classifier.partial_fit(images[y, n, 0], y).score(queries, asked)]
        )
    early, late = np.mean(errors, 0)
    assert early < 0.5
    assert late < early
