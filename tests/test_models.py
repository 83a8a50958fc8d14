"""Models to hand on: they say the same, hold no surprise, and run as programs."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

import onepass
from onepass.benchmarks.base import draw
from onepass.config import Component
from onepass.learner import probe
from onepass.models import export, is_model, open_folder
from onepass.programs import write_programs
from onepass.registry import LEARNERS
from onepass.run import load_run
from onepass.training import train

SMALL = {"width": 16, "layers": 1, "heads": 2, "norm": "group"}
DELTA = {"mixer": "delta", "tokens": "joint", "positions": False}
CASES = {
    "classes": (Component("glyphs"), Component("transformer", SMALL | {"encoder": "cnn_small"})),
    "codes": (
        Component("glyphs"),
        Component("sequence", SMALL | DELTA | {"encoder": "cnn_small", "vocabulary": 40}),
    ),
    "favor": (Component("sine"), Component("performer", SMALL)),
    "numbers": (Component("sine"), Component("sequence", SMALL | DELTA)),
    "pixels": (
        Component("glyphs", {"view": "completion", "size": 16}),
        Component("oml", {"width": 16, "hidden": 16, "encoder": "cnn_small"}),
    ),
    "angles": (
        Component("glyphs", {"view": "rotation", "size": 16}),
        Component("sequence", SMALL | DELTA | {"encoder": "cnn_small"}),
    ),
    "pn": (Component("glyphs"), Component("pn", {"encoder": "cnn_small"})),
}


@pytest.fixture
def trained(tiny, tmp_path):
    def make(case):
        benchmark, learner = CASES[case]
        config = tiny(benchmark=benchmark, learner=learner, steps=2, evaluation_episodes=4)
        train(config, tmp_path / "run", "cpu", lambda line: None)
        return config, tmp_path / "run"

    return make


def answers(learner, benchmark, config):
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "test", config.spec, 2, rng)
    with torch.no_grad():
        return next(probe(learner, episodes, [config.spec.length]))


@pytest.mark.parametrize("case", CASES)
def test_a_model_answers_like_its_run(case, trained, tmp_path):
    config, run = trained(case)
    export(run, tmp_path / "model")
    _, benchmark, learner = load_run(run)
    again, x_shape = open_folder(tmp_path / "model")
    assert x_shape == benchmark.x_shape
    assert str(again.target) == str(learner.target)
    same = answers(learner, benchmark, config), answers(again, benchmark, config)
    assert torch.equal(*same)


def test_half_the_bytes_and_nearly_the_same_answers(trained, tmp_path):
    config, run = trained("codes")
    for name, half in (("full", False), ("half", True)):
        export(run, tmp_path / name, half)
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("full", "half")]
    assert sizes[1] < 0.6 * sizes[0]
    _, benchmark, _ = load_run(run)
    full, half = (
        answers(open_folder(tmp_path / n)[0], benchmark, config) for n in ("full", "half")
    )
    assert_close(full, half, rtol=0, atol=0.02)
    assert not torch.equal(full, half)


def test_the_card_says_how_it_was_made_and_what_it_scored(trained, tmp_path, answer):
    _, run = trained("classes")
    ended = answer("evaluate", "run", "--tasks", "2", "--shots", "1", "--episodes", "4")
    assert ended.returncode == 0, ended.stderr
    ended = answer("export", "run", "model")
    assert ended.returncode == 0, ended.stderr
    text = (tmp_path / "model" / "README.md").read_text()
    assert text.startswith("---\nlibrary_name: onepass\n")
    for said in ("| reads | 1 x 32 x 32 |", "| glyphs | made by onepass |", "| commit |"):
        assert said in text
    assert "| glyphs, meta-test | 2 x 1 |" in text
    assert "Its codes hold 3 classes." in text
    assert is_model(tmp_path / "model")
    assert not is_model(run)


def test_a_model_does_not_move_in_with_other_files(trained, tmp_path):
    _, run = trained("numbers")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.txt").write_text("here")
    with pytest.raises(ValueError, match="holds other files: name a new folder"):
        export(run, tmp_path / "model")
    export(run, tmp_path / "other")
    export(run, tmp_path / "other")  # its own files may be written again


def lie(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | changes))


def test_a_model_of_strangers_is_held_to_what_it_says(trained, tmp_path):
    _, run = trained("numbers")
    folder = tmp_path / "model"
    export(run, folder)
    learner = json.loads((folder / "config.json").read_text())["learner"]
    huge = learner | {"options": learner["options"] | {"width": 2**20, "layers": 1_000}}
    own = learner | {"name": "os:system"}
    mixer = learner | {"options": learner["options"] | {"mixer": "os:system"}}
    for changes, said in [
        ({"learner": huge}, "not those that the config describes"),
        ({"learner": own}, "needs a component of its author's own"),
        ({"learner": mixer}, "needs a component of its author's own"),
        ({"version": 9}, "version 9"),
        ({"learner": 3}, "describes no model"),
        ({"target": {"kind": "smell", "outputs": 3}}, "smell"),
    ]:
        export(run, folder)
        lie(folder, **changes)
        with pytest.raises(ValueError, match=said):
            open_folder(folder)
    export(run, folder)
    weights = load_file(folder / "model.safetensors")
    first = next(iter(weights))
    save_file(weights | {first: weights[first][:1]}, folder / "model.safetensors")
    with pytest.raises(ValueError, match="damaged or of another model"):
        open_folder(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"has no model\.safetensors"):
        open_folder(folder)
    with pytest.raises(ValueError, match=r"is no model: it has no config\.json"):
        open_folder(tmp_path)


def test_a_model_is_loaded_and_taught(trained, tmp_path):
    _, run = trained("codes")
    export(run, tmp_path / "model")
    images = np.random.default_rng(0).integers(0, 256, (4, 40, 30)).astype(np.uint8)
    answers = []
    for folder in (run, tmp_path / "model"):
        taught = onepass.load(folder, random_state=3).partial_fit(images, list("abca"))
        answers.append(taught.predict_proba(images))
    np.testing.assert_array_equal(*answers)
    with pytest.raises(ValueError, match="no model 'symbls'; there are: "):
        onepass.load("symbls")


def test_a_model_of_numbers_is_a_regressor(trained, tmp_path):
    config, run = trained("numbers")
    export(run, tmp_path / "model")
    _, benchmark, _ = load_run(run)
    taught = onepass.load(tmp_path / "model")
    assert isinstance(taught, onepass.ContinualRegressor)
    rng = torch.Generator().manual_seed(0)
    stream = benchmark.sample("test", config.spec, 1, rng).train
    taught.fit(stream.x[0].numpy(), stream.y[0].numpy())
    assert taught.predict(stream.x[0].numpy()).shape == stream.y[0].shape


@pytest.mark.slow
@pytest.mark.parametrize("case", ["codes", "numbers"])
def test_programs_do_what_the_learner_does(case, trained, tmp_path):
    config, run = trained(case)
    _, benchmark, learner = load_run(run)
    write_programs(learner, benchmark.x_shape, tmp_path)
    encode, observe, predict = (
        torch.export.load(tmp_path / f"{name}.pt2").module()
        for name in ("encode", "observe", "predict")
    )
    rng = torch.Generator().manual_seed(0)
    train_part, test, _ = draw(benchmark, learner.target, "test", config.spec, 1, rng)
    state = program_state = learner.init_state(1)
    with torch.no_grad():
        for n in range(config.spec.length):
            x, y = train_part.x[:, n : n + 1], train_part.y[:, n : n + 1]
            state = learner.observe(state, learner.encode(x), learner.encode_y(y))
            program_state = observe(program_state, encode(x), y)
        expected = learner.predict(state, learner.encode(test.x))
        assert_close(predict(program_state, encode(test.x)), expected, rtol=1e-5, atol=1e-5)


def test_a_growing_state_is_no_program(trained, tmp_path):
    _, run = trained("classes")
    _, benchmark, learner = load_run(run)
    with pytest.raises(ValueError, match="grows with the stream"):
        write_programs(learner, benchmark.x_shape, tmp_path)


def test_too_many_classes_name_the_shipped_model_that_holds_them(trained, tmp_path, monkeypatch):
    _, run = trained("codes")
    export(run, tmp_path / "weights" / "symbols")
    monkeypatch.setattr("onepass.models.SHIPPED", tmp_path / "weights")
    few = onepass.ContinualClassifier(
        LEARNERS.build("transformer", (1, 8, 8), onepass.Classes(3), **SMALL), x_shape=(1, 8, 8)
    )
    way = r"and 'd' is one more: set max_examples, load 'symbols' \(40 classes\), or meta-train"
    with pytest.raises(ValueError, match=way):
        few.partial_fit(np.zeros((5, 8, 8)), [*"abcde"])
    # it is of no use to one that reads vectors
    options = {"x_shape": (4,), "keep_examples": True}
    vectors = LEARNERS.build("transformer", (4,), onepass.Classes(3), **SMALL)
    kept = onepass.ContinualClassifier(vectors, **options).fit(np.eye(4)[:3], [*"abc"])
    with pytest.raises(ValueError, match="one more: forget some, or meta-train one with a larger"):
        kept.learn_one(np.eye(4)[3], "d")
    # and has no larger one itself
    full = onepass.load("symbols")
    with pytest.raises(ValueError, match="one more: set max_examples, or meta-train one with a"):
        full.partial_fit(np.zeros((41, 16, 16), np.uint8), range(41))


def test_a_model_is_known_by_name_and_a_path_is_a_folder(trained, tmp_path, monkeypatch):
    _, run = trained("codes")
    export(run, tmp_path / "weights" / "symbols")
    monkeypatch.setattr("onepass.models.SHIPPED", tmp_path / "weights")
    monkeypatch.chdir(tmp_path)
    classifier = onepass.ContinualClassifier("symbols").fit(np.zeros((2, 16, 16)), [*"ab"])
    assert set(classifier.classes_) == {"a", "b"}
    with pytest.raises(ValueError, match="no model 'symbols'"):
        onepass.load(Path("symbols"))


def test_programs_of_other_weights_do_not_stay(trained, tmp_path, answer):
    _, run = trained("classes")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "observe.pt2").write_bytes(b"old")
    ended = answer("export", str(run), "other", "--programs")
    assert "grows with the stream" in ended.stderr
    assert not (tmp_path / "other").exists()
    export(run, tmp_path / "model")
    assert not (tmp_path / "model" / "observe.pt2").exists()
