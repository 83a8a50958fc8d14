"""What only a CUDA card can show (make test-gpu)."""

import copy
import json
from dataclasses import replace
from itertools import islice, pairwise
from statistics import median
from typing import get_args

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.testing import assert_close

from onepass import checks, encoders, ranks, training
from onepass.benchmarks import bank, ink_kernel
from onepass.benchmarks.augment import small_maps
from onepass.benchmarks.bank import ByClass, Stored
from onepass.benchmarks.base import draw
from onepass.benchmarks.images import Images
from onepass.benchmarks.ink import ink
from onepass.benchmarks.views import ViewName, rotate
from onepass.benchmarks.warp import warp
from onepass.config import Component, build
from onepass.cost import fresh_or_trained, streamed
from onepass.episodes import EpisodeSpec
from onepass.fast import captured_steps
from onepass.learners import dual, dual_kernel
from onepass.mixers.attention_ops import attend, fits
from onepass.objectives import meta_loss
from onepass.prefetch import ahead
from onepass.registry import BENCHMARKS, MIXERS
from onepass.run import Run
from onepass.seeds import generator
from onepass.step import plain_steps
from onepass.targets import Classes
from onepass.training import make_optimiser, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA card here"),
]
SMALL = {"width": 64, "layers": 2, "heads": 4, "encoder": "cnn_small"}
OTHERS = {
    "pn": {"encoder": "cnn_small"},
    "gemcl": {"encoder": "cnn_small"},
    "oml": {"hidden": 16},
    "anml": {"channels": (4, 8), "strides": (4, 4)},
}


@pytest.mark.parametrize("name", MIXERS)
def test_mixers_say_the_same_on_the_card(name):
    torch.manual_seed(0)
    mixer = MIXERS.build(name, 32, heads=2).double()
    given = torch.randn(2, 70, 32).double(), torch.randn(2, 5, 1, 32).double()
    stop = torch.tensor([[0, 3, 40, 69, 70]] * 2)
    own = torch.arange(70) // 14 == torch.arange(5)[:, None]
    for asked in ({}, {"stop": stop}, {"own": own.expand(2, 5, 70)}):
        on_cpu = outputs_and_slopes(mixer.cpu(), given, asked)
        on_card = outputs_and_slopes(mixer.cuda(), given, asked)
        for card, cpu in zip(on_card, on_cpu, strict=True):
            assert_close(card.cpu(), cpu, **checks.TIGHT)


def outputs_and_slopes(mixer, given, asked):
    """What it says on its device, and the slopes by what it is given and by its weights."""
    device = next(mixer.parameters()).device
    x, queries = (tensor.to(device).requires_grad_() for tensor in given)
    asked = {name: tensor.to(device) for name, tensor in asked.items()}
    mixed = mixer.mix(x, queries, **asked)
    total = mixed.stream.square().mean() + mixed.queries.square().mean() + mixed.guidance
    slopes = torch.autograd.grad(total, [x, queries, *mixer.parameters()], allow_unused=True)
    there = [slope for slope in slopes if slope is not None]
    return [mixed.stream, mixed.queries, mixed.guidance, *there]


# the fast forms of every learner, against plain ones in float64: the size of what is wrong with the
# slope by all weights, in the size of that slope; prototypes make 0.12 of rounding to bf16
@pytest.mark.parametrize(("precision", "most"), [("float32", 0.05), ("bf16", 0.25)])
@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "performer", *OTHERS])
def test_slopes_on_the_card_are_those_of_the_cpu(name, precision, most, tiny):
    options = OTHERS.get(name, SMALL | {"dropout": 0.0})
    config = tiny(
        benchmark=Component("glyphs"), learner=Component(name, options), precision=precision
    )
    benchmark, learner = build(config)
    rng = torch.Generator().manual_seed(0)
    episodes = draw(benchmark, learner.target, "train", config.spec, 4, rng)
    learner.train()
    expected = meta_slope(copy.deepcopy(learner).double(), episodes, "cpu", False)
    found = meta_slope(learner.cuda(), episodes, "cuda", precision == "bf16")
    assert (found.cpu() - expected).norm() < most * expected.norm()


def meta_slope(learner, episodes, device, is_bf16):
    kind = next(learner.parameters()).dtype

    def placed(tensor):
        return tensor.to(device, kind) if tensor.is_floating_point() else tensor.to(device)

    moved = torch.utils._pytree.tree_map_only(torch.Tensor, placed, episodes)
    with torch.autocast(device, torch.bfloat16, enabled=is_bf16):
        loss = meta_loss(learner, moved).loss
    slopes = torch.autograd.grad(loss, list(learner.parameters()), allow_unused=True)
    return torch.cat([slope.double().flatten() for slope in slopes if slope is not None])


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "performer", "pn", "gemcl"])
def test_learners_train_on_the_card_and_resume(name, precision, tiny, tmp_path, monkeypatch):
    options = SMALL if name not in ("pn", "gemcl") else {"encoder": "cnn_small"}
    config = tiny(
        benchmark=Component("glyphs"), learner=Component(name, options), precision=precision
    )
    original = training.steps

    def crashing(*arguments):
        yield from islice(original(*arguments), 7)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(training, "steps", crashing)
        with pytest.raises(KeyboardInterrupt):
            train(config, tmp_path / "run", "cuda", lambda line: None)
    said: list[str] = []
    train(config, tmp_path / "run", "cuda", said.append)
    assert said == ["resumed from step 5"]
    assert Run(tmp_path / "run").read("result.json")["device"] == torch.cuda.get_device_name()


def curve(config, steps, mode, said):
    """The losses of the first steps, taken one way or the other."""
    losses, _ = taken(config, steps, mode, said)
    return losses


def taken(config, steps, mode, said, ends=()):
    """Losses, and how the weights moved between one end (the first is step 0) and the next."""
    benchmark, learner = build(config)
    learner.cuda().train()
    ranks.share_statistics(learner)
    optimiser = make_optimiser(config, list(learner.parameters()), torch.device("cuda"))
    parts = config, 0, benchmark, learner, optimiser
    if mode == "plain":
        losses = plain_steps(*parts)
    else:
        losses = captured_steps(*parts, tell=said.append, compiled=mode == "compiled")

    def weights():
        return torch.cat([p.detach().flatten() for p in learner.parameters()]).clone()

    found, passed = [], [weights()]
    for step, each in enumerate(islice(losses, steps), 1):
        found.append(each)
        if step in ends:
            passed.append(weights())
    return torch.stack(found).cpu(), [after - before for before, after in pairwise(passed)]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("transformer", "captured"),
        ("transformer", "compiled"),
        ("linear_transformer", "compiled"),
        ("performer", "compiled"),
        ("anml", "compiled"),
    ],
)
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_captured_step_is_the_plain_step(name, mode, precision, tiny):
    """The same losses and the same ways of the weights, through all phases and rates.

    Rounding grows with the steps: on a CPU, float32 and bf16 go ways whose lengths are within 3 %
    and whose cosines are 0.98, 0.93 and 0.81.
    """
    options = OTHERS.get(name, SMALL | {"dropout": 0.0})
    config = tiny(
        benchmark=Component("glyphs"),
        learner=Component(name, options),
        precision=precision,
        steps=200,
        guidance_steps=120,
        # an inner loop that stops wherever its queries stand is not one that can be recorded
        objective="final" if name == "anml" else "midstream",
        objective_steps=60,
    )
    said: list[str] = []
    (plain, ways), (captured, other_ways) = (
        taken(config, 200, kind, said, ends=(60, 120, 200)) for kind in ("plain", mode)
    )
    assert said == []
    for way, other in zip(ways, other_ways, strict=True):
        assert 0.9 < other.norm() / way.norm() < 1.1
        assert F.cosine_similarity(other, way, 0) > 0.6
    close = {"float32": 2e-2, "bf16": 1e-1}[precision]
    same_losses(captured[:5], plain[:5], close / 10)
    means = (part.unflatten(0, (10, 20)).mean(1) for part in (captured, plain))
    assert_close(*means, rtol=close, atol=close)


@pytest.mark.parametrize("mode", ["captured", "compiled"])
def test_a_step_with_exchanges_can_be_recorded(mode, tiny, tmp_path):
    """A group of one: gradients and batch statistics go through all that a group of many has."""
    learner = Component("transformer", SMALL | {"dropout": 0.0})
    config = tiny(benchmark=Component("glyphs"), learner=learner, steps=20)
    plain, said = curve(config, 8, "plain", []), []
    where = {"init_method": f"file://{tmp_path / 'group'}", "rank": 0, "world_size": 1}
    dist.init_process_group("cpu:gloo,cuda:nccl", **where)
    try:
        together = curve(config, 8, mode, said)
    finally:
        dist.destroy_process_group()
    assert said == []
    # float32 sums in another order, which part further with every step
    same_losses(together, plain, 2e-3)


def same_losses(found: torch.Tensor, expected: torch.Tensor, close: float) -> None:
    """Loss and guidance; errors are counts, and rounding turns an answer or two of 48."""
    assert_close(found[:, :2], expected[:, :2], rtol=close, atol=close)
    assert (found[:, 2] - expected[:, 2]).abs().max() < 2.5 / 48


def test_the_same_seed_is_the_same_captured_run(tiny):
    config = tiny(benchmark=Component("glyphs"), learner=Component("transformer", SMALL))
    first, second = (curve(config, 12, "captured", []) for _ in range(2))
    # dropout and episodes are the same; sums by atomic additions may differ in the last digit
    assert_close(first, second, rtol=1e-4, atol=1e-5)
    other = curve(replace(config, seed=1), 12, "captured", [])
    assert (first[:, 0] - other[:, 0]).abs().max() > 1e-2


def test_what_cannot_be_recorded_is_taken_step_by_step(tiny):
    """Prototypes look at the stops of mid-stream queries on the host."""
    options = Component("pn", {"encoder": "cnn_small"})
    config = tiny(benchmark=Component("glyphs"), learner=options, objective="midstream")
    said: list[str] = []
    plain, captured = (curve(config, 8, mode, said) for mode in ("plain", "captured"))
    assert len(said) == 1
    assert "one by one" in said[0]
    assert_close(captured, plain, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("length", "classes"), [(11, 5), (70, 40)])
def test_the_kernel_of_the_inner_loop_is_the_loop(length, classes, monkeypatch):
    """Histories and all slopes, in float64, of more rows than one tile has."""
    rng = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=rng, device="cuda", dtype=torch.float64)

    z, hidden, bias = normal(3, length, 9), 0.3 * normal(1, 48, 9), normal(1, 48)
    last, rate = 0.3 * normal(1, classes, 48), torch.tensor(0.05, device="cuda").double()
    given = [part.requires_grad_() for part in (z, hidden, bias, last, rate)]
    # labels as they come: cut from rows that hold those of the queries, too
    y = torch.randint(classes, (3, 2 * length), generator=rng, device="cuda")[:, :length]
    found = []
    assert dual_kernel.fits([hidden, last], z)
    for there in (True, False):
        monkeypatch.setattr(dual_kernel, "fits", lambda weights, z, there=there: there)
        history = dual.learn([(hidden, bias), (last,)], z, y, rate, Classes(classes))
        parts = [part for steps in history for part in steps]
        weights = torch.Generator("cuda").manual_seed(1)
        loss = sum(
            (part * torch.randn(part.shape, generator=weights, device="cuda")).sum()
            for part in parts
        )
        found.append([*parts, *torch.autograd.grad(loss, given)])
    assert_close(*found, **checks.TIGHT)


@pytest.mark.parametrize("sharp", [1, 16, 24])
@pytest.mark.parametrize(
    ("length", "asked", "chunk", "alone", "stops"),
    [(200, 100, 1, False, False), (130, 40, 3, True, True), (70, 50, 2, False, True)],
)
def test_sharp_attention_keeps_its_slopes(length, asked, chunk, alone, stops, sharp):
    """In bf16, where the library's kernels give noise; against float64 with a mask."""
    rng = torch.Generator("cuda").manual_seed(0)

    def normal(*shape):
        return torch.randn(shape, generator=rng, device="cuda")

    tokens = length + asked * chunk
    # each token looks for one that it sees
    k, v = normal(2, 4, tokens, 64), normal(2, 4, tokens, 64)
    looked = torch.rand(2, 4, tokens, generator=rng, device="cuda")
    place = torch.arange(tokens, device="cuda")
    stop = torch.randint(length + 1, (2, asked), generator=rng, device="cuda") if stops else None
    until = (place + 1).clamp(max=length).expand(2, -1)
    if stop is not None:
        until = torch.cat([until[:, :length], stop.repeat_interleave(chunk, 1)], 1)
    found = (looked * until[:, None]).long().where(until[:, None] > 0, place)
    q = sharp / 8 * k.gather(2, found[..., None].expand_as(k)) + 0.3 * normal(*k.shape)
    apart = place[:, None] - place
    own = (apart >= 0) & (apart <= ((place - length) % chunk)[:, None]) & (place >= length)
    visible = ((place < until[..., None]) & (place < length) | own)[:, None]
    first = length if alone else 0
    q, visible = q[:, :, first:], visible[:, :, first:]
    # laid out as a projection gives them: the heads of a token side by side
    parts = [part.bfloat16().transpose(1, 2).contiguous().transpose(1, 2) for part in (q, k, v)]
    slope = normal(*q.shape).bfloat16()
    given = [part.clone().requires_grad_() for part in parts]
    assert fits(given[0])
    answers, _ = attend(*given, stop, length, chunk)
    slopes = torch.autograd.grad(answers, given, slope)
    exact = [part.double().requires_grad_() for part in parts]
    wanted = F.scaled_dot_product_attention(*exact, visible)
    by_exact = torch.autograd.grad(wanted, exact, slope.double())
    # at 24 all but 1e-5 of the weight is one token's, and float32 itself is off by 0.001
    for one, other in zip([answers, *slopes], [wanted, *by_exact], strict=True):
        assert (one.double() - other).norm() < 0.01 * other.norm()


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("form", ["mix", "ask"])
def test_attention_in_short_numbers_is_attention(form, stops):
    """With its kernel, against float64 without; answers and slopes, of queries of two tokens."""
    torch.manual_seed(0)
    mixer = MIXERS.build("attention", 64, heads=4).cuda()
    x, queries = torch.randn(2, 90, 64, device="cuda"), torch.randn(2, 20, 2, 64, device="cuda")
    stop = torch.randint(91, (2, 20), device="cuda") if stops else None
    found = []
    for short in (True, False):
        given = [part.clone().requires_grad_() for part in (x, queries)]
        if not short:
            mixer, given = mixer.double(), [part.detach().double() for part in given]
            given = [part.requires_grad_() for part in given]
        with torch.autocast("cuda", torch.bfloat16, enabled=short):
            answers = [part for part in getattr(mixer, form)(*given, stop) if part.ndim]
        loss = sum(part.double().square().sum() for part in answers)
        found.append([*answers, *torch.autograd.grad(loss, given)])
    for one, other in zip(*found, strict=True):
        assert (one.double() - other).norm() < 0.02 * other.norm()


@pytest.mark.parametrize("many", [0, 1_000])
@pytest.mark.parametrize("shape", [(6, 1, 32, 32), (3, 1, 7, 9)])
def test_the_first_layer_is_the_same_in_one_kernel(shape, many, monkeypatch):
    """Answers, slopes and what batch-norm remembers; products of the card round to TF32."""
    torch.manual_seed(0)
    # of more images than so many, what the second layer reads is made anew on the way back
    monkeypatch.setattr(encoders, "MANY", many)
    x, found = torch.randn(shape, device="cuda"), []
    made = encoders.cnn(shape[1:], channels=(32, 16), strides=(1, 2)).cuda().double().float()
    for there in (True, False):
        encoder = copy.deepcopy(made)
        assert there is False or encoders.fuses(list(encoder)[:3], x)
        with monkeypatch.context() as patched:
            if not there:
                patched.setattr(encoders, "HAS_KERNEL", False)
                x = x.double()
                encoder.double()
            out = encoder(x)
        slopes = torch.autograd.grad(out.square().mean(), list(encoder.parameters()))
        found.append([out, *slopes, *encoder.buffers()])
    for one, other in zip(*found, strict=True):
        scale = other.double().abs().max()
        assert ((one.double() - other.double()).abs().max() / scale) < 5e-3


NOISE = torch.randint(256, (60, 1, 16, 16), generator=torch.Generator().manual_seed(0))


def noise_images(view: ViewName, augment: bool = False) -> Images:
    counts, splits = [10, 30, 8, 12], {"train": range(4)}
    read = ByClass(NOISE.to(torch.uint8).numpy(), counts, splits)
    return Images(Stored("noise", (1, 16, 16), ("train",), lambda: read), view, augment)


@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("view", get_args(ViewName))
def test_images_on_the_host_give_the_episodes_of_those_on_the_card(view, augment, monkeypatch):
    spec, device = EpisodeSpec(3, 4, 4), torch.device("cuda")
    resident, mapped = noise_images(view, augment), noise_images(view, augment)

    def drawn(step: int, benchmark: Images):
        return benchmark.sample("train", spec, 5, generator(device, 0, "data", step))

    assert resident.on_device(device)
    expected = [drawn(step, resident) for step in range(20)]
    monkeypatch.setattr(bank, "room_for_images", lambda device: 0)
    assert not mapped.on_device(device)
    found = list(ahead(lambda step: drawn(step, mapped), 0, 20, 4, device))
    assert found[0].train.x.is_cuda
    assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("view", get_args(ViewName))
def test_drawing_views_can_be_recorded(view):
    spec, rng = EpisodeSpec(3, 4, 4), torch.Generator("cuda").manual_seed(0)
    benchmark, graph = noise_images(view, augment=True), torch.cuda.CUDAGraph()
    benchmark.sample("train", spec, 5, rng)
    torch.cuda.synchronize()
    graph.register_generator_state(rng)
    with torch.cuda.graph(graph):
        recorded = benchmark.sample("train", spec, 5, rng)
    for seed in (1, 2):
        rng.manual_seed(seed)
        graph.replay()
        expected = benchmark.sample("train", spec, 5, generator_of(seed))
        assert_close(recorded, expected, rtol=0, atol=0)


def generator_of(seed: int) -> torch.Generator:
    return torch.Generator("cuda").manual_seed(seed)


def test_images_are_turned_and_warped_on_the_card_as_on_the_host():
    images, rng = NOISE.to(torch.uint8), torch.Generator().manual_seed(0)
    turn, maps = 6 * torch.rand(60, generator=rng), small_maps(60, rng)
    for made, on_card in (
        (rotate(images, turn), rotate(images.cuda(), turn.cuda())),
        (warp(images, maps), warp(images.cuda(), maps.cuda())),
    ):
        # a pixel that is just between two may become the other
        assert ((made.int() - on_card.cpu().int()).abs() > 1).float().mean() < 1e-3


@pytest.mark.parametrize("size", [20, 32, 64])
def test_the_ink_of_the_kernel_is_that_of_the_definition(size):
    assert ink_kernel.HAS_KERNEL
    rng = torch.Generator().manual_seed(0)
    points = torch.rand(300, 96, 2, generator=rng) * (size + 4) - 2
    # points are segments too, and one drawing has none
    points[:, 5] = points[:, 4]
    down = torch.rand(300, 95, generator=rng) < 0.2
    down[:, 4], down[0] = True, False
    pen = torch.rand(300, 3, generator=rng) * torch.tensor([3, 1, 1]) + torch.tensor([0, 0.5, 0])
    on_card = ink(points.cuda(), down.cuda(), pen.cuda(), size)
    apart = (on_card.cpu().int() - ink(points, down, pen, size).int()).abs()
    # float32 may round a grey to its neighbour
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 0.01
    assert (on_card[0] == 255).all()


def recorded_drawing(name, spec, batch):
    """A benchmark, its generator, a recording of drawing from it, and what that draws."""
    benchmark, rng, graph = BENCHMARKS.build(name), generator_of(0), torch.cuda.CUDAGraph()
    try:
        benchmark.sample("train", spec, batch, rng)
    except ValueError as error:
        pytest.skip(str(error))
    torch.cuda.synchronize()
    graph.register_generator_state(rng)
    with torch.cuda.graph(graph):
        drawn = benchmark.sample("train", spec, batch, rng)
    return benchmark, rng, graph, drawn


@pytest.mark.parametrize("name", ["glyphs", "kanji"])
def test_drawing_by_hand_can_be_recorded(name):
    spec = EpisodeSpec(4, 2, 2)
    benchmark, rng, graph, drawn = recorded_drawing(name, spec, 3)
    for seed in (1, 2):
        rng.manual_seed(seed)
        graph.replay()
        expected = benchmark.sample("train", spec, 3, generator_of(seed))
        assert_close(drawn, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["glyphs", "kanji"])
def test_the_images_of_a_step_are_drawn_in_two_and_a_half_milliseconds(name):
    _, _, graph, drawn = recorded_drawing(name, EpisodeSpec(20, 5, 5), 16)
    assert drawn.train.x[:, :, 0].numel() + drawn.test.x[:, :, 0].numel() == 3_200 * 32 * 32
    times = []
    for _ in range(20):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    assert median(times) < 2.5


def test_a_row_of_bench_runs_on_the_card(command, tmp_path):
    rows = tmp_path / "rows.json"
    sizes = ["--tasks", "5", "--steps", "10", "--profile"]
    ended = command("bench", "transformer", "pn", *sizes, "--json", str(rows))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    for row in json.loads(rows.read_text()):
        assert row["card"] == torch.cuda.get_device_name()
        assert row["notes"] == [], "recorded, compiled and counted"
        assert row["episodes_per_s"] > 100
        assert 0 < row["peak_gb"] < 20
        assert 0 < row["flops_per_s"] < row["flops_ceiling"]
        assert 0 < row["least_bytes_per_s"] < row["bytes_ceiling"]
        assert 0 < row["profile"][0]["ms_per_step"] < 1.5 * row["ms_per_step_most"]


@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "pn", "oml"])
def test_streaming_is_measured_on_the_card(name):
    learner, x_shape = fresh_or_trained(name, ["encoder=cnn_small"])
    first, last = streamed(learner.cuda(), x_shape, [1, 300], torch.device("cuda"))
    assert 0 < last["observe_ms_low"] <= last["observe_ms_high"]
    assert (last["state_bytes"] == first["state_bytes"]) == (name != "transformer")
