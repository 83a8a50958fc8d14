"""Forgetting: a matrix whose every number is known, and the command end to end."""

import json

import pytest
import torch
from PIL import Image

from onepass.config import Component
from onepass.forgetting import analyse
from onepass.run import Run
from onepass.training import train

# two episodes; row: after so many tasks, column: task
FIRST = [[0.0, 1.0, 1.0], [0.2, 0.1, 1.0], [0.4, 0.1, 0.3]]
SECOND = [[0.2, 1.0, 1.0], [0.4, 0.3, 1.0], [0.8, 0.5, 0.1]]


def test_curve_and_backward_transfer_by_hand():
    found = analyse(torch.tensor([FIRST, SECOND]), shots=5)
    assert found.error[2] == pytest.approx([0.6, 0.3, 0.2])
    # right after learning nothing is lost; one task later 0.2 and 0.0, then 0.2 and 0.2
    assert found.curve == pytest.approx([0.0, 0.15, 0.5])
    # means of the two episodes 0.1 and 0.2: spread 0.0707, over the root of 2
    assert found.curve_stderr[1] == pytest.approx(0.05)
    # task 1 gained 0.4 and 0.6, task 2 gained 0.0 and 0.2; the last task has no later one
    assert found.backward_transfer == pytest.approx(-0.3)
    assert found.backward_transfer_stderr == pytest.approx(0.1)


def test_five_consecutive_tasks_are_averaged_where_there_are_many():
    torch.manual_seed(0)
    errors = torch.rand(4, 20, 20)
    found = analyse(errors, shots=5)
    assert [(group["first"], group["last"]) for group in found.groups] == [
        (1, 5),
        (6, 10),
        (11, 15),
        (16, 20),
    ]
    lost = [errors[:, 11, k] - errors[:, k, k] for k in range(5, 10)]
    expected = torch.stack(lost).mean().item()
    group = found.groups[1]
    assert group["lost"][group["seen"].index(12)] == pytest.approx(expected)
    assert [g["first"] for g in analyse(errors[:, :3, :3], shots=5).groups] == [1, 2, 3]


ASKED = ["transformer", "codes", "performer", "pn", "gemcl", "oml", "anml"]


@pytest.mark.parametrize("name", ASKED)
def test_every_learner_can_be_asked(name, tiny, tmp_path, answer):
    options = {"channels": (4, 8), "strides": (4, 4)} if name == "anml" else {}
    if name != "anml":
        options["encoder"] = "cnn_small"
    if name in ("transformer", "codes", "performer"):
        options |= {"width": 16, "layers": 1, "heads": 2}
    if name == "codes":
        name, options = "transformer", options | {"vocabulary": 2, "code_length": 2}
    config = tiny(benchmark=Component("glyphs"), learner=Component(name, options))
    train(config, tmp_path / "run", "cpu", lambda line: None)
    ended = answer("forgetting", "run", "--episodes", "4", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found == Run(tmp_path / "run").read("forgetting.json")
    assert len(found["error"]) == len(found["error"][0]) == 3
    with Image.open(tmp_path / "run" / "forgetting.png") as picture:
        assert picture.size[0] > 1_000


def test_offline_and_online_end_in_the_same_file(tmp_path, answer):
    small = ["--tasks", "3", "--shots", "2", "--queries", "2"]
    settings = ["learner.repeats=12", "learner.updates=40", "learner.encoder=cnn_small"]
    ended = answer("train", "glyphs", "offline", *small, "--out", "offline", *settings)
    assert ended.returncode == 0, ended.stderr
    options = ["evaluation_episodes=16", "encoder=cnn_small"]
    kept = json.loads((tmp_path / "offline" / "config.json").read_text())["learner"]["options"]
    assert kept["norm"] == "none", "what was not said is written down, too"
    ended = answer("train", "glyphs", "online", *small, "--out", "online", *options)
    assert ended.returncode == 0, ended.stderr
    offline, online = (Run(tmp_path / name).read("result.json") for name in ("offline", "online"))
    assert set(offline) == set(online)
    assert offline["steps"] == online["steps"] == 0
    assert offline["meta_test"]["episodes"] == 12
    assert offline["meta_train"]["error"] is None
    # it may look as often as it likes, and does well; the other has forgotten all but the last
    assert offline["meta_test"]["error"] < 0.5
    assert online["meta_test"]["error"] > 0.6
    wrong = answer("train", "glyphs", "offline", *small, "--out", "other", "learner.epochs=3")
    assert "offline: epochs=3: Unexpected keyword argument" in wrong.stderr


def test_an_inner_rate_that_blows_up_is_said(tmp_path, answer):
    settings = [
        "inner_rate=1e25",
        "evaluation_episodes=4",
        "steps=3",
        "batch=2",
        "log_every=1",
        "encoder=cnn_small",
    ]
    ended = answer("train", "glyphs", "oml", "--tasks", "3", "--out", "run", *settings)
    assert ended.returncode == 2
    last = ended.stderr.strip().splitlines()[-1]
    assert "not finite" in last
    assert "a lower inner_rate may help" in last
