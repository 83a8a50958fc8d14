"""The first command of the README, whole: it must really learn, and soon."""

import json
import time

import pytest
from PIL import Image

from onepass.config import build
from onepass.recipes import make_config


@pytest.mark.parametrize("learner", ["transformer", "linear_transformer", "performer", "sequence"])
def test_the_recipe_is_small_for_every_sequence_learner(learner):
    _, built = build(make_config("quickstart", "glyphs", learner))
    assert sum(p.numel() for p in built.parameters()) < 1_000_000


@pytest.mark.slow
def test_quickstart_learns_new_classes_in_minutes(command, tmp_path):
    started = time.monotonic()
    ended = command("quickstart", OMP_NUM_THREADS="2")
    assert ended.returncode == 0, ended.stderr
    assert time.monotonic() - started < 300
    result = json.loads((tmp_path / "runs/quickstart/result.json").read_text())
    assert result["meta_test"]["error"] <= 0.10
    assert (result["tasks"], result["shots"]) == (5, 3)
    assert "15 of 15 answers the same" in ended.stdout
    for name in ("chance", "untrained", "trained"):
        assert name in ended.stdout
    with Image.open(tmp_path / "runs/quickstart/quickstart.png") as picture:
        assert picture.size[0] > 1_000
