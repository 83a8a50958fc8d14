"""Does it train? Every learner beats chance by far, in a minute or less."""

import pytest

from onepass.config import Component, Config, override
from onepass.recipes import make_config
from onepass.run import Run
from onepass.training import train

pytestmark = pytest.mark.slow

SMALL = {"width": 64, "layers": 2, "heads": 4, "dropout": 0.0, "encoder": "cnn_small"}

ANY_LENGTH = ["tokens=joint", "positions=false"]


def meta_test_error(config: Config, path) -> float:
    train(config, path / "run", "cpu", lambda line: None)
    return Run(path / "run").read("result.json")["meta_test"]["error"]


CASES = {
    "transformer": ("transformer", ["steps=600"], 0.25),
    "joint tokens": ("transformer", ["steps=600", "tokens=joint"], 0.25),
    "codes of two": ("transformer", ["steps=1200", "vocabulary=3", "code_length=2"], 0.50),
    "midstream": ("transformer", ["steps=700", "objective=midstream"], 0.25),
    "shuffled": ("transformer", ["steps=900", "order=shuffled"], 0.35),
    "linear": ("linear_transformer", ["steps=700"], 0.35),
    "delta": ("sequence", [*ANY_LENGTH, "steps=300", "mixer=delta"], 0.25),
    "many codes": (
        "sequence",
        [*ANY_LENGTH, "steps=300", "mixer=delta", "vocabulary=1024", "tied=true"],
        0.40,
    ),
    "anytime": ("transformer", ["steps=900", "order=varied", "objective=anytime"], 0.35),
    "performer": ("performer", ["steps=700"], 0.45),
    "pn": ("pn", ["steps=200"], 0.12),
    "gemcl": ("gemcl", ["steps=100"], 0.15),
    "oml": ("oml", ["steps=200"], 0.30),
}


@pytest.mark.parametrize("case", CASES)
def test_new_glyphs_are_learned(case, tmp_path):
    """Chance is 80 % error."""
    learner, settings, most = CASES[case]
    config = override(
        make_config("quickstart", "glyphs", learner),
        ["benchmark.bank=800", "evaluation_episodes=128", *settings],
    )
    assert meta_test_error(config, tmp_path) < most


def test_bottom_halves_of_new_glyphs_are_learned(tmp_path):
    """The mean bottom half, whatever the top, scores 0.166."""
    view = ["benchmark.view=completion", "benchmark.size=16", "benchmark.bank=800"]
    config = override(
        make_config("quickstart", "glyphs", "sequence"),
        [*view, *ANY_LENGTH, "mixer=delta", "steps=400", "evaluation_episodes=128"],
    )
    assert meta_test_error(config, tmp_path) < 0.160


def test_new_sines_are_learned(tmp_path):
    """Answering 0 scores 0.54, and so does whoever learns nothing from the stream."""
    config = Config(
        Component("sine"),
        Component("transformer", {"width": 64, "layers": 2, "heads": 4, "dropout": 0.0}),
        tasks=3,
        shots=5,
        queries=3,
        steps=1_000,
        rate=1e-3,
        halve_every=1_000,
        evaluation_episodes=128,
    )
    assert meta_test_error(config, tmp_path) < 0.25
