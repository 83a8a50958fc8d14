"""What of the fast step a machine without a card can show."""

import shutil

import pytest
import torch
from torch._inductor.graph import GraphLowering
from torch.testing import assert_close

from onepass.benchmarks.base import draw
from onepass.config import build
from onepass.fast import compiled_loss
from onepass.objectives import meta_loss


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler here")
def test_a_way_back_that_cannot_be_compiled_is_told_and_taken_as_it_is(tiny, monkeypatch):
    original = GraphLowering.codegen

    def codegen(self):
        if self.is_backward:
            raise RuntimeError("no way back")
        return original(self)

    monkeypatch.setattr(GraphLowering, "codegen", codegen)
    config = tiny()
    benchmark, learner = build(config)
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "train", config.spec, 2, rng)
    learner.eval()
    said: list[str] = []
    loss = compiled_loss(said.append, 48)(learner, episodes, None, False).loss
    slopes = torch.autograd.grad(loss, list(learner.parameters()))
    assert len(said) == 1
    assert "steps are not compiled" in said[0]
    assert "no way back" in said[0]
    expected = meta_loss(learner, episodes, None, False).loss
    assert_close(slopes, torch.autograd.grad(expected, list(learner.parameters())))
