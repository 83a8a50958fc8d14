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
from onepass.mixer_laws import EXACT, MIXER_LAWS, TIGHT, WIDTH, assert_same_gradients
from onepass.mixers.base import Mixer
from onepass.objectives import meta_loss, midstream
from onepass.registry import BENCHMARKS, LEARNERS, MIXERS
from onepass.targets import Classes
from onepass.tree import span, state_bytes

SPEC = EpisodeSpec(tasks=4, shots=3, queries=2)


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
        assert_same_gradients(fast, slow, parameters)


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


def check_room_for_more_classes_changes_nothing(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    encoded = encode_episodes(learner, episodes)
    state = learner.observe(learner.init_state(2), encoded.z, encoded.y)
    if episodes.codes is None or learner.widen(state, 2 * SPEC.tasks) is None:
        return
    wider = learner.observe(
        learner.widen(learner.init_state(2), 2 * SPEC.tasks), encoded.z, encoded.y
    )
    scores = [learner.score(each, encoded.queries, episodes.codes) for each in (state, wider)]
    assert_close(*scores, **TIGHT)


def check_forgetting_a_class_is_never_having_seen_it(learner: Learner, benchmark: Benchmark):
    episodes = _episodes(learner, benchmark)
    encoded = encode_episodes(learner, episodes)
    state = learner.observe(learner.init_state(2), encoded.z, encoded.y)
    # of the first episode; the second's classes have codes of their own
    code = int(episodes.train.y[0, 0].flatten()[0])
    forgotten = learner.forget(state, code)
    if forgotten is None:
        return
    z, y = (tree_map(lambda leaf: leaf[:1], part) for part in (encoded.z, encoded.y))
    others = (episodes.train.y[0] != code).nonzero()[:, 0]
    rest = tree_map(lambda leaf: leaf[:, others], (z, y))
    never = learner.observe(learner.init_state(1), *rest)
    assert_close(
        tree_leaves(tree_map(lambda leaf: leaf[:1], forgotten)), tree_leaves(never), **TIGHT
    )


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
    check_room_for_more_classes_changes_nothing,
    check_forgetting_a_class_is_never_having_seen_it,
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


def _episodes(learner: Learner, benchmark: Benchmark) -> Episodes:
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "test", SPEC, 2, rng)
    return tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, episodes)


def _draw(benchmark: Benchmark, seed: int) -> Episodes:
    return benchmark.sample("train", SPEC, 5, torch.Generator().manual_seed(seed))
