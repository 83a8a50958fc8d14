"""What of the fast step a machine without a card can show."""

import shutil

import jaxtyping
import pytest
import torch
from torch._inductor.graph import GraphLowering
from torch.testing import assert_close
from torch.utils._pytree import tree_map_only

from onepass.benchmarks.base import draw
from onepass.config import Component, build
from onepass.fast import compiled_loss, melted_methods
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


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler here")
def test_the_body_of_a_long_loop_is_compiled_on_its_own(tiny, monkeypatch):
    learner = Component("anml", {"channels": (4, 8), "strides": (2, 2)})
    config = tiny(benchmark=Component("glyphs"), learner=learner)
    benchmark, learner = build(config)
    learner.double()
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "train", config.spec, 2, rng)
    episodes = tree_map_only(
        torch.Tensor, lambda t: t.double() if t.is_floating_point() else t, episodes
    )
    lowered = []
    original = GraphLowering.codegen
    monkeypatch.setattr(
        GraphLowering, "codegen", lambda self: lowered.append(self) or original(self)
    )
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)
    # no compiler sees through the checks of types
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    found, said = [], []
    for loss, names in ((meta_loss, ()), (compiled_loss(said.append, 48), learner.loop_bodies)):
        with melted_methods(learner, names, said.append):
            total = loss(learner, episodes, None, False).loss
        found.append([total, *torch.autograd.grad(total, list(learner.parameters()))])
    assert said == []
    bodies = [graph for graph in lowered if "baddbmm" in str(graph.graph)]
    # a first step, from weights that all episodes share, and all others, there and back
    assert len(bodies) == 4
    assert "_step" not in vars(learner)
    assert_close(found[1], found[0], rtol=1e-9, atol=1e-9)
