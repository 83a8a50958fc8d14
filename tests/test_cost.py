"""The cost of streaming: nothing of the past is computed again, and the command end to end."""

import json

import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from onepass.config import Component
from onepass.cost import Cost, fresh_or_trained, noise, streamed
from onepass.registry import LEARNERS
from onepass.training import train

CPU = torch.device("cpu")
SMALL = {
    "width": 16,
    "layers": 1,
    "heads": 2,
    "encoder": "cnn_small",
    "channels": [4, 8],
    "strides": [4, 4],
    "hidden": 16,
}
GROWING = {"transformer", "transformer_s", "transformer_m", "transformer_xl", "sequence"}


class Written(TorchDispatchMode):
    """Counts the numbers that every operation reads and writes, views aside."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            leaves = tree_leaves((args, kwargs, result))
            self.count += sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
        return result


def small(name):
    takes = LEARNERS.options(name)
    settings = [f"{key}={json.dumps(value)}" for key, value in SMALL.items() if key in takes]
    return fresh_or_trained(name, ["tasks=3", *settings])


@torch.no_grad()
def work_of_the_next(name: str, length: int) -> tuple[int, int]:
    """Numbers touched by observing one more example after so many, and by one query."""
    learner, x_shape = small(name)
    rng = torch.Generator().manual_seed(0)
    x, y = noise(learner, x_shape, length + 1, rng)
    z, told = learner.encode(x), learner.encode_y(y)

    def part(tree, start, stop):
        return tree_map(lambda leaf: leaf[:, start:stop].clone(), tree)

    state = learner.observe(learner.init_state(1), part(z, 0, length), part(told, 0, length))
    last = part(z, length, None), part(told, length, None)
    with Written() as observing:
        learner.observe(state, *last)
    with Written() as asking:
        learner.predict(state, last[0])
    return observing.count, asking.count


@pytest.mark.parametrize("name", sorted(set(LEARNERS) - GROWING))
def test_example_300_is_as_much_work_as_example_2(name):
    # further on than any chunk that a fast form works in
    assert work_of_the_next(name, 299) == work_of_the_next(name, 1)


def test_softmax_attention_grows_by_what_it_keeps_and_no_more():
    first, second, third = (work_of_the_next("transformer", n) for n in (100, 200, 300))
    for before, middle, after in zip(first, second, third, strict=True):
        # a straight line: each token more is read once more
        assert after - middle == middle - before > 0


def test_figures_come_at_every_length():
    learner, x_shape = small("linear_transformer")
    found = streamed(learner, x_shape, [1, 7, 130], CPU)
    assert [row["examples"] for row in found] == [1, 7, 130]
    assert len({row["state_bytes"] for row in found}) == 1
    for row in found:
        assert 0 < row["observe_ms_low"] <= row["observe_ms"] <= row["observe_ms_high"]
        assert 0 < row["predict_ms_low"] <= row["predict_ms"] <= row["predict_ms_high"]
    learner, x_shape = small("transformer")
    sizes = [row["state_bytes"] for row in streamed(learner, x_shape, [1, 7, 130], CPU)]
    # two tokens an example, keys and values of 16 numbers; and the position
    assert sizes == [2 * 2 * 16 * 4 * n + 8 for n in (1, 7, 130)]


def test_a_long_stream_leaves_no_way_back_in_memory(monkeypatch):
    learner, x_shape = small("pn")
    states, observe = [], learner.observe

    def watched(*arguments):
        states.append(observe(*arguments))
        return states[-1]

    monkeypatch.setattr(learner, "observe", watched)
    streamed(learner, x_shape, [1, 300], CPU)
    assert not any(leaf.requires_grad for leaf in tree_leaves(states))


def test_targets_that_are_numbers_will_do(tiny, tmp_path):
    train(tiny(steps=1), tmp_path / "run", "cpu", lambda line: None)
    learner, x_shape = fresh_or_trained(str(tmp_path / "run"), [])
    assert x_shape == (50,)
    assert [row["examples"] for row in streamed(learner, x_shape, [2], CPU)] == [2]
    with pytest.raises(ValueError, match=r"run is a run and has its settings; width=3 is for"):
        fresh_or_trained(str(tmp_path / "run"), ["width=3"])


def test_pictures_are_what_their_names_say_and_folders_hide_no_learner(tmp_path, command):
    (tmp_path / "pn").mkdir()
    asked = ["cost", "pn", "encoder=cnn_small", "--lengths", "1", "--device", "cpu", "--out"]
    assert command(*asked, "cost.svg").returncode == 0
    assert "<svg" in (tmp_path / "cost.svg").read_text()
    said = command(*asked, "cost.xyz").stderr
    assert said == "onepass: cost.xyz: a picture's name ends in .png, .pdf, .svg\n"


def test_runs_and_names_end_in_one_table_one_file_and_one_picture(tiny, tmp_path, command):
    config = tiny(benchmark=Component("glyphs"), learner=Component("pn", {"encoder": "cnn_small"}))
    train(config, tmp_path / "run", "cpu", lambda line: None)
    lengths = ["--lengths", "20,1", "--device", "cpu"]
    files = ["--json", "cost.json", "--out", "cost.png"]
    ended = command("cost", "run", *lengths, *files)
    assert ended.returncode == 0, ended.stderr
    rows = [Cost(**row) for row in json.loads((tmp_path / "cost.json").read_text())]
    assert [(row.learner, row.examples) for row in rows] == [("run", 1), ("run", 20)]
    assert "encoding comes on top" in ended.stdout
    ended = command("cost", "pn", "gemcl", "encoder=cnn_small", *lengths, *files)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads((tmp_path / "cost.json").read_text())
    assert [row["learner"] for row in rows] == ["pn", "pn", "gemcl", "gemcl"]
    assert rows[0]["encode_ms"] > 0
    with Image.open(tmp_path / "cost.png") as picture:
        assert picture.size[0] > 1_000
