"""What only a CUDA card can show (make test-gpu)."""

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from onepass import checks, training
from onepass.config import Component, build
from onepass.registry import MIXERS
from onepass.run import Run
from onepass.training import train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA card here"),
]
SMALL = {"width": 64, "layers": 2, "heads": 4, "encoder": "cnn_small"}


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_say_the_same_on_the_card(name):
    torch.manual_seed(0)
    mixer = MIXERS.build(name, 32, heads=2).double()
    x, queries = torch.randn(2, 70, 32).double(), torch.randn(2, 5, 1, 32).double()
    on_cpu = mixer.mix(x, queries)
    on_card = mixer.cuda().mix(x.cuda(), queries.cuda())
    assert_close(on_card.stream.cpu(), on_cpu.stream, **checks.TIGHT)
    assert_close(on_card.queries.cpu(), on_cpu.queries, **checks.TIGHT)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "performer", "pn", "gemcl"])
def test_learners_train_on_the_card_and_resume(name, precision, tiny, tmp_path, monkeypatch):
    options = SMALL if name not in ("pn", "gemcl") else {"encoder": "cnn_small"}
    config = tiny(
        benchmark=Component("glyphs"), learner=Component(name, options), precision=precision
    )
    original, done = training.train_step, []

    def crash(*arguments):
        done.append(1)
        if len(done) == 8:
            raise KeyboardInterrupt
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(training, "train_step", crash)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", "cuda", lambda line: None)
    said: list[str] = []
    train(config, tmp_path / "run", "cuda", said.append)
    assert said == ["resumed from step 5"]
    assert Run(tmp_path / "run").read("result.json")["device"] == torch.cuda.get_device_name()


@pytest.mark.parametrize("name", ["oml", "anml"])
def test_inner_loops_give_the_same_loss_on_the_card(name, tiny):
    options = {"channels": (4, 8), "strides": (4, 4)} if name == "anml" else {"hidden": 16}
    config = tiny(benchmark=Component("glyphs"), learner=Component(name, options))
    _, learner = build(config)
    rng = torch.Generator().manual_seed(0)
    from onepass.benchmarks.base import draw
    from onepass.benchmarks.glyphs import glyphs
    from onepass.objectives import meta_loss

    episodes = draw(glyphs(), learner.target, "test", replace(config.spec), 2, rng)
    learner.eval()
    on_cpu = meta_loss(learner, episodes).loss
    moved = torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.cuda(), episodes)
    on_card = meta_loss(learner.cuda(), moved).loss
    # float32, and the card may round products to TF32
    assert_close(on_card.cpu(), on_cpu, rtol=2e-3, atol=2e-3)
