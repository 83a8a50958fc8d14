"""Independent ways to the same numbers. The laws say that two forms agree; these say on what."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn
from torch.testing import assert_close

from onepass import checks
from onepass.benchmarks.base import draw
from onepass.config import Component, Config
from onepass.describe import describe
from onepass.encoders import IMAGE_ENCODERS, by_patches, make_encoder
from onepass.episodes import EpisodeSpec
from onepass.learner import encode_episodes, probe
from onepass.mixers.attention import Attention
from onepass.mixers.stack import Block
from onepass.objectives import meta_loss, midstream
from onepass.recipes import make_config
from onepass.registry import BENCHMARKS, LEARNERS, MIXERS
from onepass.targets import Classes, Vector, angle, pixels

SPEC = EpisodeSpec(tasks=4, shots=3, queries=2)
# float64, but for the position code, whose rates were rounded to float32 when it was built
ROUNDED = {"rtol": 1e-6, "atol": 1e-6}


def small_transformer(target, **options):
    torch.manual_seed(0)
    options = {"width": 16, "layers": 2, "heads": 4} | options
    return LEARNERS.build("transformer", (1, 32, 32), target, **options).double().eval()


def glyph_episodes(learner, batch=2):
    rng = torch.Generator().manual_seed(0)
    episodes = draw(BENCHMARKS.build("glyphs"), learner.target, "test", SPEC, batch, rng)
    train, test, _ = episodes
    return episodes._replace(
        train=train._replace(x=train.x.double()), test=test._replace(x=test.x.double())
    )


def paper_transformer(learner, episodes):
    """The published model by hand: one masked pass over x1 y1 x2 y2 ... and then all queries.

    Every query sits one position after the stream and sees the stream, its own earlier code tokens
    and itself. Gives the logits and, for each layer, the attention of queries on the stream.
    """
    train, test, _ = episodes
    code = learner.target.length

    def embed(x):
        return learner.encoder(x.flatten(0, 1)).unflatten(0, x.shape[:2])

    def table(y):
        return learner.embed_y.weight[y.view(*y.shape[:2], code)]

    stream = torch.cat([embed(train.x)[:, :, None], table(train.y)], 2).flatten(1, 2)
    asked = torch.cat([embed(test.x)[:, :, None], table(test.y)[:, :, :-1]], 2).flatten(1, 2)
    h = torch.cat([stream, asked], 1)
    length, queries = stream.shape[1], test.x.shape[1]
    own = torch.block_diag(*[torch.ones(code, code).tril()] * queries).bool()
    visible = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).tril()
    visible[length:, length:] = own
    place = torch.cat([torch.arange(length), length + torch.arange(code).repeat(queries)])
    width = h.shape[-1]
    for i in range(width // 2):
        angles = place / 10_000 ** (2 * i / width)
        h[..., 2 * i] += angles.sin()
        h[..., 2 * i + 1] += angles.cos()
    attention = []
    for block in learner.mixer.layers[1:]:
        q, k, v = rearrange(
            block.mixer.qkv(h), "b l (n h k) -> n b h l k", n=3, h=block.mixer.heads
        )
        logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf)
        attention.append(logits[:, :, length:, :length].softmax(-1))
        h = h + block.mixer.out(rearrange(logits.softmax(-1) @ v, "b h l k -> b l (h k)"))
        h = h + block.mlp(h)
    return learner.head(h[:, length:]).unflatten(1, (queries, code)), attention


@pytest.mark.parametrize("code", [{}, {"vocabulary": 3, "code_length": 2}], ids=["C=1", "C=2"])
def test_transformer_is_one_masked_pass(code):
    learner = small_transformer(Classes(4), **code)
    episodes = glyph_episodes(learner)
    (streamed,) = probe(learner, episodes, at=[SPEC.length])
    expected, _ = paper_transformer(learner, episodes)
    assert_close(streamed, expected.view_as(streamed), **ROUNDED)
    parallel, _ = learner.episode(encode_episodes(learner, episodes))
    assert_close(parallel, expected.view_as(streamed), **ROUNDED)


def test_guidance_is_the_cross_entropy_of_the_right_task():
    """As the paper has it: first half of the heads, weights summed by task, mean, all layers."""
    learner = small_transformer(Classes(4))
    episodes = glyph_episodes(learner)
    _, attention = paper_transformer(learner, episodes)
    token_task = episodes.train.task.repeat_interleave(2, 1)
    expected = 0
    for weight in attention:
        by_task = torch.stack(
            [(weight * (token_task == k)[:, None, None]).sum(-1) for k in range(4)], -1
        )[:, :2]
        task = episodes.test.task[:, None].expand(by_task.shape[:3])
        expected = expected + F.nll_loss(by_task.log().flatten(0, 2), task.flatten())
    guidance = meta_loss(learner, episodes, guided=True).guidance
    assert_close(guidance, expected, **ROUNDED)
    assert meta_loss(learner, episodes).guidance == 0


@pytest.mark.parametrize("code", [{}, {"vocabulary": 3, "code_length": 2}], ids=["C=1", "C=2"])
def test_reading_is_the_attention_of_the_last_layer(code):
    learner = small_transformer(Classes(4), **code)
    episodes = glyph_episodes(learner)
    _, attention = paper_transformer(learner, episodes)
    tokens = learner.target.length
    # of each query its first token, of each example all of them
    by_example = attention[-1][:, :, ::tokens].unflatten(-1, (-1, 1 + tokens)).sum(-1)
    shares = learner.read_weights(encode_episodes(learner, episodes))
    assert_close(shares, by_example, **ROUNDED)


def test_reading_of_linear_attention_is_its_kernel():
    torch.manual_seed(0)
    mixer = MIXERS.build("linear", 8, heads=2).double()
    x, queries = torch.randn(2, 5, 8).double(), torch.randn(2, 3, 1, 8).double()
    q, _, _ = rearrange(mixer.qkv(queries[:, :, 0]), "b l (n h k) -> n b h l k", n=3, h=2)
    _, k, _ = rearrange(mixer.qkv(x), "b l (n h k) -> n b h l k", n=3, h=2)
    kernel = (F.elu(q) + 1) @ (F.elu(k) + 1).mT
    shares = mixer.read_weights(x, queries)
    assert_close(shares[:, :, :, 0], kernel / kernel.sum(-1, keepdim=True))


def test_guidance_starts_near_ln_k_in_every_layer():
    learner = small_transformer(Classes(4))
    guidance = meta_loss(learner, glyph_episodes(learner), guided=True).guidance
    assert 0.7 < guidance / (2 * math.log(4)) < 1.5


def test_prototypes_are_nearest_means():
    torch.manual_seed(0)
    learner = LEARNERS.build("pn", (1, 32, 32), Classes(4), width=16).double().eval()
    train, test, _ = episodes = glyph_episodes(learner)
    (answer,) = probe(learner, episodes, at=[SPEC.length])
    stream, queries = learner.encode(train.x), learner.encode(test.x)
    for b in range(2):
        for token in range(4):
            mean = stream[b][train.y[b] == token].mean(0)
            assert_close(answer[b, :, token], -((queries[b] - mean) ** 2).sum(-1))


COUNTS = {
    (20, "transformer"): 9_926_900,
    (20, "transformer_s"): 2_303_476,
    (20, "transformer_m"): 5_725_428,
    (20, "transformer_xl"): 35_652_340,
    (20, "linear_transformer"): 39_330_036,
    (20, "performer"): 26_722_548,
    (20, "oml"): 1_513_697,
    (20, "oml_xl"): 11_511_521,
    (20, "anml"): 1_977_077,
    (20, "pn"): 1_503_456,
    (20, "gemcl"): 1_503_458,
    (100, "transformer"): 10_008_900,
    (100, "transformer_s"): 2_344_516,
    (100, "transformer_m"): 5_807_428,
    (100, "transformer_xl"): 35_816_260,
    (100, "linear_transformer"): 39_412_036,
    (100, "performer"): 26_804_548,
    (100, "oml"): 1_554_657,
    (100, "oml_xl"): 11_675_361,
}


def parameters(learner):
    return sum(p.numel() for p in learner.parameters() if p.requires_grad)


@pytest.mark.parametrize(("tasks", "name"), COUNTS)
def test_parameters_are_the_published_ones(tasks, name):
    with torch.device("meta"):
        learner = LEARNERS.build(name, (1, 32, 32), Classes(tasks))
    assert parameters(learner) == COUNTS[tasks, name]


def test_parameters_of_the_other_published_inputs_and_targets():
    def count(x_shape, target, name="transformer", **options):
        return parameters(LEARNERS.build(name, x_shape, target, **options))

    with torch.device("meta"):
        assert count((1, 32, 32), Classes(20), encoder="resnet") == 11_743_796
        assert count((50,), Vector(50)) == 9_534_514
        assert count((50,), Vector(50), "linear_transformer") == 38_937_650
        assert count((50,), Vector(50), "oml") == 841_217
        assert count((1, 32, 32), angle()) == 10_435_810
        assert count((1, 16, 32), pixels(512)) == 10_696_416


# floats after 100 examples of 20 classes; counters and stabilisers are named beside them
STATES = {
    "transformer": (4_096 * 200, 2),  # the position, one 64-bit integer
    "linear_transformer": (8_404_992, 2),
    "performer": (2_101_248, 2),
    "oml": (535_040, 0),
    "anml": (998_420, 0),
    "pn": (512 * 20, 20),  # a count for each class
    "gemcl": (1_024 * 20, 20),
}


@pytest.mark.parametrize("name", STATES)
def test_state_is_the_published_size(name):
    floats, aside = STATES[name]
    facts = describe(make_config("paper", "glyphs", name))
    assert facts["state_bytes"] == 4 * (floats + aside)


@pytest.mark.parametrize("name", IMAGE_ENCODERS)
@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("x_shape", [(1, 32, 32), (3, 16, 32), (1, 28, 28)])
def test_encoders_end_in_the_features_they_say(name, norm, x_shape):
    encoder = make_encoder(x_shape, 64, name, norm).eval()
    assert encoder(torch.zeros(2, *x_shape)).shape == (2, encoder.features)


@pytest.mark.parametrize(("norm", "mixes"), [("batch", True), ("group", False), ("none", False)])
def test_only_batch_norm_mixes_examples(norm, mixes):
    torch.manual_seed(0)
    encoder = make_encoder((1, 32, 32), 64, "cnn_small", norm).double().train()
    x = torch.randn(4, 1, 32, 32, dtype=torch.float64)
    alone = torch.cat([encoder(x[:2]), encoder(x[2:])])
    assert torch.allclose(encoder(x), alone, atol=1e-9) != mixes


def test_sine_is_as_specified():
    rng = torch.Generator().manual_seed(0)
    benchmark = BENCHMARKS.build("sine")
    train, _, _ = benchmark.sample("train", EpisodeSpec(tasks=50, shots=5), 200, rng)
    # answering 0 scores E[A^2] / 2 = 13/24; the spread over tasks is below 0.003 here
    zero = Vector(50).loss(torch.zeros_like(train.y), train.y).mean()
    assert abs(zero - 13 / 24) < 0.01
    # all examples of a task are one curve, scaled; y has no noise, x has
    y = train.y.unflatten(1, (50, 5))
    rank_one = y / y.norm(dim=-1, keepdim=True)
    assert_close(rank_one[:, :, 0], rank_one[:, :, 1], rtol=1e-3, atol=1e-4)
    clean = BENCHMARKS.build("sine", noise=0.0)
    noisy = benchmark.sample("train", EpisodeSpec(), 8, torch.Generator().manual_seed(1))
    still = clean.sample("train", EpisodeSpec(), 8, torch.Generator().manual_seed(1))
    assert abs((noisy.train.x - still.train.x).std() - 0.1) < 0.005
    # the two phases are independent: on average over tasks the curves have nothing in common
    x = train.x.unflatten(1, (50, 5))
    likeness = F.cosine_similarity(x, y, dim=-1)[:, :, 0].flatten()
    assert abs(likeness.mean()) < 5 * likeness.std() / len(likeness) ** 0.5
    assert likeness.std() > 0.5
    # x and y have one frequency in [0.1, 1.1): their spectra peak at the same place
    fine = BENCHMARKS.build("sine", points=500, noise=0.0)
    train, _, _ = fine.sample("train", EpisodeSpec(tasks=200, shots=1), 1, rng)
    window = torch.hann_window(500)
    peaks = [
        torch.fft.rfft(part[0] * window, n=8192).abs().argmax(-1) / 8192 * 499 / 10
        for part in (train.x, train.y)
    ]
    assert (peaks[0] - peaks[1]).abs().median() < 0.02
    # short of the slowest ones, whose phase moves the peak
    assert peaks[0].min() > 0.02
    assert peaks[0].max() < 1.15


def test_losses_by_hand():
    prediction = torch.tensor([[[3.0, 4.0], [0.03, 0.04]]])
    y = torch.tensor([[[1.0, 0.0], [1.0, 0.0]]])
    # a unit vector beyond a norm of 0.1; below, only divided by 0.1
    assert_close(angle().loss(prediction, y), torch.tensor([[1 - 0.6, 1 - 0.3]]))
    flat = torch.tensor([[[0.5, -2.0]]])
    expected = ((torch.tanh(flat) - 1) ** 2).mean(-1)
    assert_close(pixels(2).loss(flat, torch.ones(1, 1, 2)), expected)
    assert_close(Vector(2).loss(flat, torch.ones(1, 1, 2)), torch.tensor([[(0.25 + 9) / 2]]))
    logits, label = torch.tensor([[[0.0, math.log(3)]]]), torch.tensor([[1]])
    assert_close(Classes(2).loss(logits, label), torch.tensor([[-math.log(0.75)]]))
    assert Classes(2).error(logits, label).item() == 0
    assert Classes(2).error(logits, 1 - label).item() == 1


@pytest.mark.parametrize("target", [Classes(6), Classes(6, 3, 2), Classes(6, 2, 3)], ids=str)
def test_codes_are_distinct_uniform_and_say_the_class(target):
    rng = torch.Generator().manual_seed(0)
    codes = target.draw_codes(4_000, 6, rng)
    assert codes.shape == (4_000, 6, target.length)
    number = (codes * target.outputs ** torch.arange(target.length)).sum(-1)
    assert all(len(row.unique()) == 6 for row in number[:200])
    share = number.flatten().bincount(minlength=target.outputs**target.length) / number.numel()
    expected = 1 / target.outputs**target.length
    assert (share - expected).abs().max() < 5 * (expected / number.numel()) ** 0.5
    # the book is the same for stream and queries, and another one in every episode
    episodes = draw(BENCHMARKS.build("glyphs"), target, "test", EpisodeSpec(6, 2, 2), 2, rng)
    assert episodes.codes is not None
    for part in (episodes.train, episodes.test):
        for b in range(2):
            for n in range(12):
                told = part.y[b, n].view(-1)
                assert torch.equal(told, episodes.codes[b, part.task[b, n]])
    assert not torch.equal(episodes.codes[0], episodes.codes[1])


def test_more_classes_than_codes_are_refused():
    with pytest.raises(ValueError, match=r"9 classes need as many codes.*make only 8"):
        Classes(9, vocabulary=2, length=3)
    with pytest.raises(ValueError, match="only 4 codes"):
        Classes(4).draw_codes(1, 5, torch.Generator())


def test_midstream_queries_come_at_the_end_of_their_own_or_a_later_task():
    rng = torch.Generator().manual_seed(0)
    spec = EpisodeSpec(tasks=4, shots=3, queries=2)
    episodes = BENCHMARKS.build("sine").sample("train", spec, 3_000, rng)
    stop = midstream(episodes, 4, rng)
    for k in range(4):
        stops = stop[episodes.test.task == k]
        allowed = [3 * (j + 1) for j in range(k, 4)]
        assert sorted(stops.unique().tolist()) == allowed
        for end in allowed:
            share = (stops == end).float().mean()
            assert abs(share - 1 / len(allowed)) < 0.03


def test_the_schedule_is_the_published_one():
    config = make_config("paper", "omniglot", "transformer")
    assert (config.steps, config.batch, config.rate) == (50_000, 16, 1e-4)
    assert config.benchmark.options == {"validation": False, "label_shift": False}
    rates = [config.rate_at(step) for step in (0, 9_999, 10_000, 20_000, 49_999)]
    assert rates == [1e-4, 1e-4, 5e-5, 2.5e-5, 6.25e-6]
    assert config.guided(0)
    assert config.guided(9_999)
    assert not config.guided(10_000)
    short = Config(Component("sine"), Component("transformer"), steps=1_000)
    assert [short.guided(step) for step in (199, 200)] == [True, False]
    assert [short.rate_at(step) for step in (199, 200, 999)] == [1e-4, 5e-5, 6.25e-6]
    shortest = replace(short, steps=9)
    assert [shortest.rate_at(step) for step in (1, 2, 8)] == [1e-4, 5e-5, 6.25e-6]
    objective = Config(
        Component("sine"), Component("transformer"), objective="midstream", objective_steps=5
    )
    assert [objective.objective_at(step) for step in (4, 5)] == ["midstream", "final"]
    # a fifth of the steps, as of the published ones
    for steps, stage in ((50_000, 10_000), (10_000, 2_000)):
        performer = replace(make_config("paper", "sine", "performer"), steps=steps)
        asked = [performer.objective_at(step) for step in (stage - 1, stage)]
        assert asked == ["midstream", "final"]


def test_stream_and_queries_share_batch_statistics():
    """As published: all inputs of all episodes pass the encoder in one call, targets likewise."""
    torch.manual_seed(0)
    benchmark = BENCHMARKS.build("sine")
    learner = LEARNERS.build("transformer", (50,), Vector(50), width=8, layers=1, heads=1).train()
    train, test, _ = episodes = benchmark.sample("train", SPEC, 3, torch.Generator().manual_seed(0))
    encode_episodes(learner, episodes)
    for body, parts in ((learner.encoder, "x"), (learner.embed_y.body, "y")):
        together = torch.cat([getattr(train, parts), getattr(test, parts)], 1).flatten(0, 1)
        expected = 0.1 * body[0](together).mean(0)
        assert_close(body[1].running_mean, expected, rtol=1e-4, atol=1e-6)
        assert body[1].num_batches_tracked == 1


def test_dropout_is_on_both_branches_and_not_on_attention():
    torch.manual_seed(0)
    block = Block(Attention(8, 2), 8, 16, dropout=1.0).train()
    x = torch.randn(2, 5, 8)
    # everything a branch says is dropped, so that the block passes x through
    assert_close(block.scan(x, block.init_state(2))[0], x)
    assert not [m for m in block.mixer.modules() if isinstance(m, nn.Dropout)]


@pytest.mark.parametrize(("channels", "stride"), [(1, 1), (1, 2), (3, 2)])
def test_a_product_with_patches_is_a_convolution(channels, stride):
    x = torch.randn(4, channels, 7, 8, dtype=torch.float64)
    weight = torch.randn(5, channels, 3, 3, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(x, weight, stride=stride, padding=1)
    found = by_patches(x, weight, stride)
    assert_close(found, expected, **checks.TIGHT)
    slope = torch.randn_like(expected)
    assert_close(
        *(torch.autograd.grad(out, weight, slope) for out in (found, expected)), **checks.TIGHT
    )
