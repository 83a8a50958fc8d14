"""The laws. Every mixer, learner and benchmark passes them; a new one is tested by registering it.

They run in float64, where only a wrong formula is 1e-9 off, and in eval mode.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from onepass.benchmarks.base import Benchmark, draw
from onepass.config import Component, build_learner
from onepass.episodes import Episodes, EpisodeSpec
from onepass.learner import Learner, encode_episodes, probe, states
from onepass.mixers.base import Mixer
from onepass.objectives import meta_loss, midstream
from onepass.registry import BENCHMARKS, LEARNERS, MIXERS
from onepass.targets import Classes
from onepass.tree import span, state_bytes

TIGHT: dict[str, Any] = dict(rtol=1e-9, atol=1e-9)
EXACT: dict[str, Any] = dict(rtol=0, atol=0)
WIDTH = 16
SPEC = EpisodeSpec(tasks=4, shots=3, queries=2)


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
            _assert_same_gradients(fast, slow, [x, *mixer.parameters()])


def check_peek_is_a_dropped_scan(mixer: Mixer):
    _, state = mixer.scan(_tokens(3, 6), mixer.init_state(3))
    before = tree_map(torch.clone, state)
    for chunk in (1, 3):
        queries = _tokens(3, 4 * chunk).unflatten(1, (4, chunk)).requires_grad_()
        fast = mixer.peek(queries, state)
        slow = torch.stack([Mixer.scan(mixer, q, state)[0] for q in queries.unbind(1)], dim=1)
        assert_close(fast, slow, **TIGHT)
        _assert_same_gradients(fast, slow, [queries, *mixer.parameters()])
    assert_close(tree_leaves(state), tree_leaves(before), **EXACT)


def check_mix_is_scan_and_peek(mixer: Mixer):
    stops = torch.tensor([[9, 9, 9], [0, 4, 9], [2, 9, 2]])
    for chunk, stop in ((1, stops), (2, stops), (1, None), (2, None)):
        x, queries = _tokens(3, 9).requires_grad_(), _tokens(3, 3 * chunk).unflatten(1, (3, chunk))
        fast, slow = mixer.mix(x, queries, stop), Mixer.mix(mixer, x, queries, stop)
        assert_close(fast[:2], slow[:2], **TIGHT)
        _assert_same_gradients(
            torch.cat([fast.stream, fast.queries.flatten(1, 2)], 1),
            torch.cat([slow.stream, slow.queries.flatten(1, 2)], 1),
            [x, *mixer.parameters()],
        )


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


def check_chunking_is_invisible(
    learner: Learner, benchmark: Benchmark, cuts: Sequence[int] = (1, 1, 4, 11)
):
    episodes = _episodes(learner, benchmark)
    (whole,) = probe(learner, episodes, at=[SPEC.length])
    *_, pieces = probe(learner, episodes, at=[*cuts, SPEC.length])
    assert_close(whole, pieces, **TIGHT)
    encoded = encode_episodes(learner, episodes)
    (at_once,) = states(learner, encoded, 2, [SPEC.length])
    *_, in_pieces = states(learner, encoded, 2, [*cuts, SPEC.length])
    assert_close(tree_leaves(at_once), tree_leaves(in_pieces), **TIGHT)


def check_streaming_gives_the_same_gradients(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    parameters = {name: p for name, p in learner.named_parameters() if p.requires_grad}
    if not parameters:
        return
    parallel = torch.autograd.grad(
        meta_loss(learner, episodes).loss, list(parameters.values()), allow_unused=True
    )
    *_, streamed = probe(learner, episodes, at=range(1, SPEC.length + 1))
    streaming = torch.autograd.grad(
        learner.target.loss(streamed, episodes.test.y).mean(),
        list(parameters.values()),
        allow_unused=True,
    )
    for name, a, b in zip(parameters, parallel, streaming, strict=True):
        assert a is not None, f"{name} gets no meta-gradient"
        assert_close(a, b, **TIGHT, msg=lambda text, name=name: f"{name}: {text}")


def check_midstream_is_stop_by_stop(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    stop = midstream(episodes, SPEC.tasks, torch.Generator().manual_seed(0))
    encoded = encode_episodes(learner, episodes)
    fast, _ = learner.episode(encoded, stop)
    cuts = sorted(set(stop.flatten().tolist()))
    slow = torch.zeros_like(fast)
    for cut, answers in zip(cuts, probe(learner, episodes, at=cuts), strict=True):
        asked = (stop == cut).view(*stop.shape, *[1] * (fast.dim() - 2))
        slow = torch.where(asked, answers, slow)
    assert_close(fast, slow, **TIGHT)
    if parameters := [p for p in learner.parameters() if p.requires_grad]:
        _assert_same_gradients(fast, slow, parameters)


def check_answers_are_not_leaked(learner: Learner, benchmark: Benchmark):
    """The last token of a query's own answer is never looked at."""
    episodes = _episodes(learner, benchmark)
    encoded = encode_episodes(learner, episodes)
    spoilt = tree_map(lambda leaf: leaf.clone(), encoded.answers)
    for leaf in tree_leaves(spoilt):
        last = leaf[:, :, -1] if leaf.dim() > 2 else leaf
        last.copy_(torch.zeros_like(last))
    honest, _ = learner.episode(encoded)
    blind, _ = learner.episode(encoded._replace(answers=spoilt))
    assert_close(honest, blind, **EXACT)


def check_asking_is_free(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    encoded = encode_episodes(learner, episodes)
    state = learner.observe(learner.init_state(2), encoded.z, encoded.y)
    before = tree_map(torch.clone, state)
    together = learner.predict(state, encoded.queries)
    alone = [
        learner.predict(state, span(encoded.queries, i, i + 1)) for i in range(together.shape[1])
    ]
    assert_close(together, torch.cat(alone, dim=1), **TIGHT)
    assert_close(tree_leaves(state), tree_leaves(before), **EXACT)


def check_scores_rank_codes(learner: Learner, benchmark: Benchmark):
    """`score` is the summed log-likelihood of the tokens that `spell` gives one by one."""
    episodes = _episodes(learner, benchmark)
    if episodes.codes is None:
        return
    target = learner.target
    assert isinstance(target, Classes)
    encoded = encode_episodes(learner, episodes)
    state = learner.observe(learner.init_state(2), encoded.z, encoded.y)
    score = learner.score(state, encoded.queries, episodes.codes)
    for k in range(SPEC.tasks):
        code = target.spell(torch.full_like(episodes.test.task, k), episodes.codes)
        spelled = learner.spell(state, encoded.queries, learner.encode_y(code))
        expected = -target.loss(spelled, code) * target.tokens
        assert_close(score[..., k], expected, **TIGHT)


def check_episodes_do_not_mix(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    (together,) = probe(learner, episodes, at=[SPEC.length])
    (alone,) = probe(learner, tree_map_only(Tensor, lambda t: t[:1], episodes), at=[SPEC.length])
    assert_close(together[:1], alone, **TIGHT)


def check_answers_before_the_first_example(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    answer = learner.predict(learner.init_state(2), learner.encode(episodes.test.x))
    assert torch.isfinite(answer).all()


def check_state_carries_the_batch(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    encoded = encode_episodes(learner, episodes)
    state = learner.observe(learner.init_state(2), encoded.z, encoded.y)
    assert all(leaf.shape[0] == 2 for leaf in tree_leaves(state)), "axis 0 is not the batch"
    assert state_bytes(state) > 0, "nothing is kept of the stream"


def check_seeds_decide(benchmark: Benchmark):
    first = _draw(benchmark, 0)
    assert_close(tree_leaves(_draw(benchmark, 0)[:2]), tree_leaves(first[:2]), **EXACT)
    assert not torch.equal(_draw(benchmark, 1).train.x, first.train.x), "the seed changes nothing"


def check_episodes_have_the_shape_asked_for(benchmark: Benchmark):
    train, test, _ = _draw(benchmark, 0)
    for examples, per_task in ((train, SPEC.shots), (test, SPEC.queries)):
        assert examples.x.shape == (5, SPEC.tasks * per_task, *benchmark.x_shape)
        assert examples.task.shape == examples.x.shape[:2] == examples.y.shape[:2]
        assert (examples.task.diff() >= 0).all(), "tasks come one after the other"
        assert torch.isfinite(examples.x).all()
        assert torch.isfinite(examples.y).all()
    target = benchmark.target(SPEC)
    if isinstance(target, Classes):
        assert torch.equal(train.y, train.task), "classes are numbered by order of appearance"
    else:
        assert train.y.shape[2:] == (target.outputs,), "y is not what the target says"


MIXER_LAWS = [
    check_scan_is_repeated_step,
    check_peek_is_a_dropped_scan,
    check_mix_is_scan_and_peek,
    check_guidance_looks_no_further_than_the_stop,
    check_causal,
]
LEARNER_LAWS = [
    check_chunking_is_invisible,
    check_streaming_gives_the_same_gradients,
    check_midstream_is_stop_by_stop,
    check_answers_are_not_leaked,
    check_asking_is_free,
    check_scores_rank_codes,
    check_episodes_do_not_mix,
    check_answers_before_the_first_example,
    check_state_carries_the_batch,
]
BENCHMARK_LAWS = [check_seeds_decide, check_episodes_have_the_shape_asked_for]


def laws_of(name: str, options: dict[str, Any]) -> list[tuple[str, Callable[[], None]]]:
    """What to call to hold a component, by name or `MODULE:CLASS`, to its laws."""
    kind = _kind(name)
    if kind is MIXERS:
        if "heads" in MIXERS.options(name):
            options = {"heads": 2, **options}
        return _bound(MIXER_LAWS, lambda: MIXERS.build(name, WIDTH, **options).double().eval())
    if kind is BENCHMARKS:
        # files that are not there are no broken law
        _draw(BENCHMARKS.build(name, **options), 0)
        return _bound(BENCHMARK_LAWS, lambda: BENCHMARKS.build(name, **options))
    return [
        (f"{label} ({data})", law)
        for data in _answerable(name, options)
        for label, law in _bound(LEARNER_LAWS, lambda data=data: _learner(name, options, data))
    ]


def _bound(laws: list[Callable], build: Callable) -> list[tuple[str, Callable[[], None]]]:
    def run(law):
        torch.manual_seed(0)
        built = build()
        law(*built) if isinstance(built, tuple) else law(built)

    return [
        (law.__name__.removeprefix("check_").replace("_", " "), lambda law=law: run(law))
        for law in laws
    ]


def _kind(name: str):
    for registry in (MIXERS, LEARNERS, BENCHMARKS):
        if name in registry:
            return registry
    if ":" not in name:
        choices = ", ".join([*MIXERS, *LEARNERS, *BENCHMARKS])
        raise ValueError(f"nothing is called {name!r}; there are: {choices}, or MODULE:CLASS")
    found = MIXERS[name]
    made = found if inspect.isclass(found) else inspect.signature(found).return_annotation
    kinds = {Mixer: MIXERS, Learner: LEARNERS, Benchmark: BENCHMARKS}
    for base, registry in kinds.items():
        if inspect.isclass(made) and issubclass(made, base):
            return registry
    raise ValueError(
        f"{name} is no Mixer, Learner or Benchmark, nor a function annotated to return one"
    )


def _learner(name: str, options: dict[str, Any], data: str) -> tuple[Learner, Benchmark]:
    benchmark = BENCHMARKS.build(data)
    learner = build_learner(Component(name, options), benchmark, SPEC)
    return learner.double().eval(), benchmark


def _answerable(name: str, options: dict[str, Any]) -> list[str]:
    """Which of a benchmark of classes and one of vectors the learner takes."""
    refused = {}
    for data in ("glyphs", "sine"):
        try:
            _learner(name, options, data)
        except ValueError as error:
            refused[data] = error
    if len(refused) == 2:
        raise refused["glyphs"]
    return [data for data in ("glyphs", "sine") if data not in refused]


def _tokens(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, WIDTH, dtype=torch.float64)


def _episodes(learner: Learner, benchmark: Benchmark) -> Episodes:
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "test", SPEC, 2, rng)
    return tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, episodes)


def _draw(benchmark: Benchmark, seed: int) -> Episodes:
    return benchmark.sample("train", SPEC, 5, torch.Generator().manual_seed(seed))


def _assert_same_gradients(a: Tensor, b: Tensor, inputs: Sequence[Tensor]):
    weight = torch.randn_like(a)
    gradients = (
        torch.autograd.grad((out * weight).sum(), inputs, retain_graph=True, allow_unused=True)
        for out in (a, b)
    )
    for left, right in zip(*gradients, strict=True):
        assert (left is None) == (right is None), "one form uses a parameter, the other does not"
        if left is not None:
            assert_close(left, right, **TIGHT)
