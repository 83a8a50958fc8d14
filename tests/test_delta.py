"""The delta rule by another road, and learners without positions."""

import pytest
import torch
from torch.testing import assert_close

from onepass.benchmarks.base import draw
from onepass.checks import TIGHT
from onepass.config import Component, build
from onepass.episodes import Examples
from onepass.learner import probe
from onepass.registry import MIXERS


def test_a_token_is_a_gradient_step_towards_its_value():
    mixer = MIXERS.build("delta", 16, heads=2).double()
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    with torch.no_grad():
        q, k, v, rate = (part[0] for part in mixer._project(x))
    state, outputs = torch.zeros(2, 8, 8, dtype=torch.float64), []
    for t in range(9):
        for head in range(2):
            memory = state[head].clone().requires_grad_()
            loss = (k[head, t] @ memory - v[head, t]).square().sum() / 2
            (slope,) = torch.autograd.grad(loss, memory)
            state[head] -= rate[head, t] * slope
        outputs.append(mixer.out(torch.cat([q[head, t] @ state[head] for head in range(2)])))
    found, after = mixer.scan(x, mixer.init_state(1))
    assert_close(found[0], torch.stack(outputs), **TIGHT)
    assert_close(after[0], state, **TIGHT)


def test_the_last_word_of_a_key_stands():
    mixer = MIXERS.build("delta", 16, heads=1).double()
    with torch.no_grad():
        mixer.rate.weight.zero_()
        mixer.rate.bias.fill_(50.0)  # a rate of one
    first, second = torch.randn(2, 1, 16, dtype=torch.float64)
    _, state = mixer.scan(torch.stack([first, second, first], 1), mixer.init_state(1))
    _, k, v, _ = mixer._project(first[:, None])
    assert_close(k[0, 0, 0] @ state[0, 0], v[0, 0, 0], **TIGHT)


def test_a_long_stream_does_not_swell_the_state():
    mixer = MIXERS.build("delta", 16, heads=2)
    state, largest = mixer.init_state(1), []
    with torch.no_grad():
        for _ in range(20):
            _, state = mixer.scan(torch.randn(1, 500, 16), state)
            largest.append(float(state.abs().max()))
    assert max(largest[10:]) < 1.2 * max(largest[:10])


@pytest.mark.parametrize("mixer", ["attention", "delta"])
def test_without_positions_time_does_not_count(mixer, tiny):
    options = {"width": 16, "layers": 1, "heads": 2, "norm": "group", "mixer": mixer}
    options |= {"tokens": "joint", "positions": False}
    config = tiny(learner=Component("sequence", options))
    torch.manual_seed(0)
    benchmark, learner = build(config)
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "test", config.spec, 2, rng)
    backwards = episodes._replace(train=Examples(*(part.flip(1) for part in episodes.train)))
    length = config.spec.length
    ((first,), (second,)) = (
        probe(learner.eval(), given, [length]) for given in (episodes, backwards)
    )
    # attention is a sum over a set; the delta rule hears the last word loudest
    same = bool(torch.allclose(first, second, rtol=1e-4, atol=1e-5))
    assert same == (mixer == "attention")


def test_interleaved_tokens_need_positions(tiny):
    config = tiny(learner=Component("transformer", {"positions": False}))
    with pytest.raises(ValueError, match="which y belongs to which x: tokens=joint"):
        build(config)


def test_tied_codes_are_interchangeable(tiny):
    """Other vectors for the same codes, and the answers move with them."""
    options = {"width": 16, "layers": 1, "heads": 2, "norm": "group", "tied": True}
    config = tiny(
        benchmark=Component("glyphs"),
        learner=Component("sequence", options | {"vocabulary": 12, "encoder": "cnn_small"}),
    )
    torch.manual_seed(0)
    benchmark, learner = build(config)
    learner.eval()
    episodes = draw(
        benchmark, learner.target, "test", config.spec, 2, torch.Generator().manual_seed(0)
    )
    (before,) = probe(learner, episodes, [config.spec.length])
    other = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    renamed = episodes._replace(train=episodes.train._replace(y=other[episodes.train.y]))
    with torch.no_grad():
        learner.embed_y.weight[other] = learner.embed_y.weight.clone()
    (after,) = probe(learner, renamed, [config.spec.length])
    assert_close(after[..., other], before)


def test_only_classes_have_codes_to_tie(tiny):
    config = tiny(learner=Component("transformer", {"tied": True}))
    with pytest.raises(ValueError, match=r"tied=true is for classes.*not for"):
        build(config)
