"""Every law on everything registered, and on the variants that options make of it."""

from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass import checks
from onepass.benchmarks.views import ViewName
from onepass.mixers import attention
from onepass.mixers.attention import Attention
from onepass.mixers.stack import Block, Position, Stack
from onepass.registry import BENCHMARKS, LEARNERS, MIXERS

SMALL = dict(width=16, layers=2, heads=2, encoder="auto", norm="batch")
TINY_CNN = {"channels": (4, 8), "strides": (4, 4)}
VARIANTS = {
    "anml": ("anml", TINY_CNN),
    "anml-segments": ("anml", TINY_CNN | {"segment": 5}),
    "online": ("online", {"encoder": "auto", "width": 16}),
    "delta": ("sequence", SMALL | dict(mixer="delta", tokens="joint", positions=False)),
    "tied": ("sequence", SMALL | dict(mixer="delta", tied=True, vocabulary=30)),
    "oml-three-layers": ("oml", {"hidden": 8, "layers": 3, "encoder": "cnn_small"}),
    "gemcl-published": ("gemcl", {"width": 16, "density": "published"}),
    "gemcl-map": ("gemcl", {"width": 16, "density": "map"}),
    "performer-codes-of-2": ("performer", SMALL | {"vocabulary": 3, "code_length": 2}),
    "linear-codes-of-2": ("linear_transformer", SMALL | {"vocabulary": 3, "code_length": 2}),
    "transformer-joint": ("transformer", SMALL | dict(tokens="joint")),
    "linear-without-position": (
        "linear_transformer",
        SMALL | dict(tokens="joint", positions=False),
    ),
    "transformer-codes-of-2": ("transformer", SMALL | dict(vocabulary=3, code_length=2)),
    "transformer-codes-of-3": ("transformer", SMALL | dict(vocabulary=2, code_length=3)),
    "transformer-layer-norm": ("transformer", SMALL | dict(block_norm="layer", norm="group")),
}


def small(name: str) -> dict:
    return {key: value for key, value in SMALL.items() if key in LEARNERS.options(name)}


# another size of a learner that is here, and nothing else
SIZES = {"transformer_s", "transformer_m", "transformer_xl", "oml_xl"}
LEARNER_CASES = {name: (name, small(name)) for name in LEARNERS if name not in SIZES} | VARIANTS


def build_mixer(name: str):
    if name == "stack":
        width = checks.WIDTH
        blocks = [
            Block(Attention(width, 2), width, 24, dropout=0.5, norm=norm)
            for norm in ("none", "layer")
        ]
        return Stack([Position(width), *blocks]).double().eval()
    return MIXERS.build(name, checks.WIDTH, heads=2).double().eval()


def test_attention_says_the_same_with_and_without_a_mask(monkeypatch):
    mixer, rng = build_mixer("attention"), torch.Generator().manual_seed(0)
    x = torch.randn(2, 30, checks.WIDTH, generator=rng).double()
    queries = torch.randn(2, 4, 3, checks.WIDTH, generator=rng).double()
    stop = torch.tensor([[0, 7, 29, 30]] * 2)
    found = []
    for many in (0, 10**9):
        monkeypatch.setattr(attention, "MANY_PAIRS", many)
        given = x.clone().requires_grad_(), queries.clone().requires_grad_()
        said = [mixer.mix(*given), mixer.mix(*given, stop)]
        total = sum(each.stream.sin().sum() + each.queries.cos().sum() for each in said)
        slopes = torch.autograd.grad(total, [*given, *mixer.parameters()])
        found.append([*(each.queries for each in said), *slopes])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, **checks.TIGHT)


@pytest.mark.parametrize("law", checks.MIXER_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", [*MIXERS, "stack"])
def test_mixer(name, law):
    torch.manual_seed(0)
    law(build_mixer(name))


def laws_of_learners():
    for case, (name, options) in LEARNER_CASES.items():
        for label, law in checks.laws_of(name, options):
            yield pytest.param(law, id=f"{case}: {label}")


@pytest.mark.parametrize("law", list(laws_of_learners()))
def test_learner(law):
    law()


@pytest.mark.parametrize("case", ["pn", "transformer", "transformer-codes-of-2"])
@settings(max_examples=15, deadline=None)
@given(cuts=st.lists(st.integers(0, checks.SPEC.length), max_size=6).map(sorted))
def test_chunking_is_invisible_wherever_it_is_cut(case, cuts):
    torch.manual_seed(0)
    name, options = LEARNER_CASES[case]
    checks.check_chunking_is_invisible(*checks._learner(name, options, "glyphs"), cuts)


def benchmark_cases():
    """Every benchmark, in every view, as it is and augmented."""
    # those that need an argument or files are held to the laws in test_stored
    for name in sorted(set(BENCHMARKS) - {"folder", "npz"}):
        takes = BENCHMARKS.options(name)
        for view in get_args(ViewName) if "view" in takes else [None]:
            for augment in (False, True) if "augment" in takes else [False]:
                options = {"view": view, "augment": augment} if view else {}
                yield pytest.param(name, options, id=f"{name} {view or ''}{' 8x' * augment}")


@pytest.mark.parametrize("law", checks.BENCHMARK_LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "options"), list(benchmark_cases()))
def test_benchmark(name, options, law):
    try:
        benchmark = BENCHMARKS.build(name, **options)
        benchmark.sample("train", checks.SPEC, 1, torch.Generator())
    except ValueError as error:
        pytest.skip(str(error))
    law(benchmark)
