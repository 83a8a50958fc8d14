"""The laws of mixers; see `checks.py`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map

from onepass.mixers.base import Mixer

TIGHT: dict[str, Any] = dict(rtol=1e-9, atol=1e-9)
EXACT: dict[str, Any] = dict(rtol=0, atol=0)
WIDTH = 16


def check_scan_is_repeated_step(mixer: Mixer):
    # the last one is longer than any chunk that a fast form works in
    for length in (0, 1, 2, 7, 33, 150):
        x = _tokens(3, length).requires_grad_()
        _, warm = mixer.scan(_tokens(3, 5), mixer.init_state(3))
        fast, fast_state = mixer.scan(x, warm)
        slow, slow_state = Mixer.scan(mixer, x, warm)
        assert_close(fast, slow, **TIGHT)
        assert_close(tree_leaves(fast_state), tree_leaves(slow_state), **TIGHT)
        if length:
            assert_same_gradients(fast, slow, [x, *mixer.parameters()])


def check_peek_is_a_dropped_scan(mixer: Mixer):
    _, state = mixer.scan(_tokens(3, 6), mixer.init_state(3))
    before = tree_map(torch.clone, state)
    for chunk in (1, 3):
        queries = _tokens(3, 4 * chunk).unflatten(1, (4, chunk)).requires_grad_()
        fast = mixer.peek(queries, state)
        slow = torch.stack([Mixer.scan(mixer, q, state)[0] for q in queries.unbind(1)], dim=1)
        assert_close(fast, slow, **TIGHT)
        assert_same_gradients(fast, slow, [queries, *mixer.parameters()])
    assert_close(tree_leaves(state), tree_leaves(before), **EXACT)


def check_mix_is_scan_and_peek(mixer: Mixer):
    stops = torch.tensor([[9, 9, 9], [0, 4, 9], [2, 9, 2]])
    for chunk, stop in ((1, stops), (2, stops), (1, None), (2, None)):
        x, queries = _tokens(3, 9).requires_grad_(), _tokens(3, 3 * chunk).unflatten(1, (3, chunk))
        fast, slow = mixer.mix(x, queries, stop), Mixer.mix(mixer, x, queries, stop)
        assert_close(fast[:2], slow[:2], **TIGHT)
        assert_same_gradients(
            torch.cat([fast.stream, fast.queries.flatten(1, 2)], 1),
            torch.cat([slow.stream, slow.queries.flatten(1, 2)], 1),
            [x, *mixer.parameters()],
        )
    nothing, asked = _tokens(3, 0), _tokens(3, 3)[:, :, None]
    for stop in (None, torch.zeros(3, 3, dtype=torch.long)):
        answers = mixer.peek(asked, mixer.init_state(3))
        assert_close(mixer.mix(nothing, asked, stop).queries, answers, **TIGHT)
        assert_close(mixer.ask(nothing, asked, stop).queries, answers, **TIGHT)


def check_asking_is_mixing_without_the_stream(mixer: Mixer):
    own = torch.zeros(3, 4, 150, dtype=torch.bool)
    own[:, :, 20:60] = True
    stops = torch.tensor([[150, 90, 70, 150]] * 3)
    for length, stop in ((9, None), (150, None), (150, stops)):
        x, queries = _tokens(3, length).requires_grad_(), _tokens(3, 8).unflatten(1, (4, 2))
        for given in (None, own[..., :length] if length > 60 else None):
            asked, mixed = (form(x, queries, stop, given) for form in (mixer.ask, mixer.mix))
            assert_close((asked.queries, asked.guidance), mixed[1:], **TIGHT)
            first, second = (part.queries.sum() + part.guidance for part in (asked, mixed))
            assert_same_gradients(first, second, [x, *mixer.parameters()])


def check_guidance_looks_no_further_than_the_stop(mixer: Mixer):
    x, queries = _tokens(3, 9), _tokens(3, 6).unflatten(1, (3, 2))
    own = torch.zeros(3, 3, 9, dtype=torch.bool)
    own[:, :, 1:4] = True
    stop = torch.full((3, 3), 6)
    cut, whole = mixer.mix(x[:, :6], queries, None, own[..., :6]), mixer.mix(x, queries, stop, own)
    assert_close(whole.guidance, cut.guidance, **TIGHT)
    assert_close(whole.queries, cut.queries, **TIGHT)


def check_causal(mixer: Mixer):
    x = _tokens(1, 9).requires_grad_()
    output, _ = mixer.scan(x, mixer.init_state(1))
    (slope,) = torch.autograd.grad(output[:, 4].sum(), x)
    assert slope[:, 5:].abs().max() == 0, "a token sees a later one"
    assert slope[:, :5].abs().amax(-1).min() > 0, "an earlier token has no influence at all"


MIXER_LAWS = [
    check_scan_is_repeated_step,
    check_peek_is_a_dropped_scan,
    check_mix_is_scan_and_peek,
    check_asking_is_mixing_without_the_stream,
    check_guidance_looks_no_further_than_the_stop,
    check_causal,
]


def _tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def assert_same_gradients(a: Tensor, b: Tensor, inputs: Sequence[Tensor]):
    weight = torch.randn_like(a)
    gradients = (
        torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True, allow_unused=True)
        for out in (a, b)
    )
    for left, right in zip(*gradients, strict=True):
        assert (left is None) == (right is None), "one form uses a parameter, the other does not"
        if left is not None:
            assert_close(left, right, **TIGHT)
