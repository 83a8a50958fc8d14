"""Each method of the paper by another road: SGD by hand, finite differences, explicit matrices."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from onepass.benchmarks.base import draw
from onepass.episodes import Episodes, EpisodeSpec, Examples
from onepass.learner import encode_episodes, probe
from onepass.learners import anml, gemcl
from onepass.learners.gemcl import Moments
from onepass.mixers.base import Mixer
from onepass.mixers.features import Elu, Favor, orthogonal_gaussian
from onepass.mixers.linear import Means, favor, linear
from onepass.objectives import meta_loss
from onepass.registry import BENCHMARKS, LEARNERS, MIXERS
from onepass.targets import Classes, Vector, angle, pixels
from onepass.tree import state_bytes

SPEC = EpisodeSpec(tasks=3, shots=2, queries=2)
TIGHT = {"rtol": 1e-9, "atol": 1e-9}
SMALL_CNN = {"channels": (4, 8), "strides": (4, 4)}
TARGETS = {"classes": Classes(3), "vectors": Vector(3), "pixels": pixels(3), "angles": angle()}


def learner_for(name, target, x_shape=(1, 32, 32), **options):
    torch.manual_seed(0)
    return LEARNERS.build(name, x_shape, target, **options).double().eval()


def one_episode(target, spec=SPEC):
    """Images, and targets of the kind asked for."""
    rng = torch.Generator().manual_seed(0)
    train, test, codes = draw(BENCHMARKS.build("glyphs"), Classes(3), "test", spec, 1, rng)

    def told(part: Examples):
        y = part.y
        if isinstance(target, Vector):
            y = torch.randn(1, part.x.shape[1], target.outputs, generator=rng).double()
            y = F.normalize(y, dim=-1) if target.outputs == 2 else y.tanh()
        return Examples(part.x.double(), y, part.task)

    return Episodes(told(train), told(test), codes)


def loss_by_hand(kind, output, y):
    """The inner losses as the paper has them, one example."""
    if kind == "classes":
        return F.cross_entropy(output[None], y[None])
    if kind == "vectors":
        return F.mse_loss(output, y)
    if kind == "pixels":
        return F.mse_loss(output.tanh(), y)
    return 1 - (output / output.norm().clamp(min=0.1) * y).sum()


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize(("layers", "shots"), [(2, 2), (4, 2), (2, 25)])
def test_oml_is_sgd(kind, layers, shots):
    """The last case is long enough for the history to be laid out anew, twice over."""
    target, spec = TARGETS[kind], EpisodeSpec(tasks=3, shots=shots, queries=2)
    options = {"hidden": 8, "layers": layers, "inner_rate": 0.1, "encoder": "cnn_small"}
    learner = learner_for("oml", target, **options)
    train, test, _ = episodes = one_episode(target, spec)
    with torch.no_grad():
        (answer,) = probe(learner, episodes, at=[spec.length])
        z, queries = learner.encode(train.x)[0], learner.encode(test.x)[0]
    net = nn.Sequential()
    for layer in learner.fast:
        net.extend([copy.deepcopy(layer), nn.ReLU()])
    net = net[:-1]
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in zip(z, train.y[0], strict=True):
        sgd.zero_grad()
        loss_by_hand(kind, net(x), y).backward()
        sgd.step()
    assert_close(answer[0], net(queries), rtol=1e-7, atol=1e-7)


def test_anml_is_sgd():
    learner = learner_for("anml", Classes(3), inner_rate=0.1, **SMALL_CNN)
    train, test, _ = episodes = one_episode(Classes(3))
    with torch.no_grad():
        (answer,) = probe(learner, episodes, at=[SPEC.length])
        gate, asked = learner.encoder(train.x[0]), learner.encoder(test.x[0])
    assert gate.min() > 0
    assert gate.max() < 1
    body, head = copy.deepcopy(learner.fast.body), copy.deepcopy(learner.fast.head)
    sgd = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    for x, g, y in zip(train.x[0], gate, train.y[0], strict=True):
        sgd.zero_grad()
        F.cross_entropy(head(body(x[None]) * g), y[None]).backward()
        sgd.step()
    assert_close(answer[0], head(body(test.x[0]) * asked), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in ("anml", "oml") for kind in TARGETS]
)
def test_meta_gradients_are_finite_differences(name, kind):
    """Of one weight in every part of the learner, through the whole inner loop."""
    options = SMALL_CNN if name == "anml" else {"hidden": 8, "encoder": "cnn_small"}
    learner = learner_for(name, TARGETS[kind], inner_rate=0.1, **options)
    # long enough for OML's history to be laid out anew
    episodes = one_episode(TARGETS[kind], EpisodeSpec(tasks=3, shots=12, queries=2))
    loss = meta_loss(learner, episodes).loss
    parameters = list(learner.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    step = 1e-6
    for parameter, gradient in zip(parameters, gradients, strict=True):
        place = gradient.abs().argmax()
        flat, values = parameter.data.view(-1), []
        for change in (step, -2 * step):
            flat[place] += change
            with torch.no_grad():
                values.append(meta_loss(learner, episodes).loss)
        flat[place] += step
        slope = (values[0] - values[1]) / (2 * step)
        # a central difference of 1e-6 leaves about 1e-9 of rounding over the step
        assert_close(gradient.view(-1)[place], slope, rtol=1e-5, atol=1e-8)


def test_the_inner_rate_is_learned():
    learner = learner_for("oml", Classes(3), hidden=8, encoder="cnn_small")
    loss = meta_loss(learner, one_episode(Classes(3))).loss
    (slope,) = torch.autograd.grad(loss, [learner.log_rate])
    assert slope.abs() > 0
    assert learner.log_rate.exp().item() == pytest.approx(0.03)


def moments_by_hand(z, y, token):
    mine = z[y == token]
    return len(mine), mine.mean(0), ((mine - mine.mean(0)) ** 2).sum(0)


@pytest.mark.parametrize("density", ["student", "published", "map"])
def test_gemcl_is_its_closed_form(density):
    learner = learner_for("gemcl", Classes(3), width=6, alpha=3.0, beta=2.0, density=density)
    train, test, _ = episodes = one_episode(Classes(3))
    # uneven classes: one was seen once, one three times
    y = torch.tensor([[0, 1, 1, 2, 2, 2]])
    episodes = episodes._replace(train=train._replace(y=y))
    (answer,) = probe(learner, episodes, at=[SPEC.length])
    z, queries = learner.encode(train.x)[0], learner.encode(test.x)[0]
    for token in range(3):
        count, mean, spread = moments_by_hand(z, y[0], token)
        alpha, beta = 3 + count / 2, 2 + spread / 2
        squared = beta / alpha * (1 + 1 / count)
        if density == "student":
            student = torch.distributions.StudentT(2 * alpha, mean, squared.sqrt())
            expected = student.log_prob(queries).sum(-1)
        elif density == "map":
            variance = beta / (alpha - 0.5)
            normal = torch.distributions.Normal(mean, variance.sqrt())
            expected = (normal.log_prob(queries) + 0.5 * math.log(2 * math.pi)).sum(-1)
        else:
            distance = (queries - mean) ** 2
            tail = (alpha + 0.5) * (1 + distance / (2 * alpha * squared)).log()
            expected = -(tail + (squared + 1e-8).log()).sum(-1)
        assert_close(answer[0, :, token], expected, **TIGHT)


def test_what_gemcl_makes_again_on_the_way_back_has_the_same_slopes(monkeypatch):
    learner = learner_for("gemcl", Classes(3), width=6)
    z, queries = torch.randn(2, 9, 6).double(), torch.randn(2, 5, 6).double()
    y = torch.arange(9).remainder(3).expand(2, 9)
    found = []
    again = gemcl.call_again
    for call, most in ((again, 2**20), (again, 18), (lambda f, *given: f(*given), 2**20)):
        monkeypatch.setattr(gemcl, "call_again", call)
        monkeypatch.setattr(gemcl, "KEPT_NUMBERS", most)
        given = z.clone().requires_grad_(), queries.clone().requires_grad_()
        answers = learner.predict(learner.observe(learner.init_state(2), given[0], y), given[1])
        wanted = *given, learner.alpha, learner.beta
        found.append([answers, *torch.autograd.grad(answers.sin().sum(), wanted)])
    for other in found[:2]:
        assert_close(other, found[2], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("edges", [(8, 8), (7, 5), (1, 1), (2, 3)], ids=str)
def test_patches_sent_back_place_by_place_are_those_of_fold(stride, edges):
    maps = torch.randn(2, 3, 4, *edges).double()
    sent = torch.randn_like(anml.patches(maps, stride))
    expected = anml.folded(sent, maps.shape, stride)
    assert_close(anml.folded_by_places(sent, maps.shape, stride), expected)


def test_gemcl_with_no_spread_and_with_classes_never_seen():
    learner = learner_for("gemcl", Classes(3), width=6)
    z = torch.ones(1, 4, 6, dtype=torch.float64)
    state = learner.observe(learner.init_state(1), z, torch.tensor([[0, 0, 0, 1]]))
    answer = learner.predict(state, z)
    assert torch.isfinite(answer).all()
    assert (answer[..., 2] < -1e8).all(), "a class never seen is no answer"
    assert torch.equal(state.spread, torch.zeros_like(state.spread))


def explicit_linear_attention(mixer, x, features):
    """Rows of the whole matrix, masked and normalised."""
    heads, key = mixer.heads, mixer.key
    q, k, v = mixer.qkv(x).split([heads * key, heads * key, heads * mixer.value], -1)
    outputs = []
    for h in range(heads):
        part = slice(h * key, (h + 1) * key)
        weight = (features(q[..., part]) @ features(k[..., part]).mT).tril()
        weight = weight / weight.sum(-1, keepdim=True)
        outputs.append(weight @ v[..., h * mixer.value : (h + 1) * mixer.value])
    return mixer.out(torch.cat(outputs, -1))


@pytest.mark.parametrize("length", [5, 300])
def test_linear_attention_is_the_normalised_matrix(length):
    torch.manual_seed(0)
    mixer = linear(16, heads=2).double()
    x = torch.randn(2, length, 16, dtype=torch.float64)
    expected = explicit_linear_attention(mixer, x, lambda t: F.elu(t) + 1)
    assert_close(mixer.scan(x, mixer.init_state(2))[0], expected, **TIGHT)


@pytest.mark.parametrize("length", [5, 300])
def test_performer_is_the_normalised_matrix(length):
    torch.manual_seed(0)
    mixer = favor(32, heads=2).double()
    x = torch.randn(2, length, 32, dtype=torch.float64)

    def features(t):
        u = t / 8**0.25
        along = u @ mixer.phi.directions.T
        size = (u**2).sum(-1, keepdim=True) / 2
        return torch.cat([(along - size).exp(), (-along - size).exp()], -1) / 8**0.5

    expected = explicit_linear_attention(mixer, x, features)
    assert_close(mixer.scan(x, mixer.init_state(2))[0], expected, **TIGHT)


@pytest.mark.parametrize("phi", [Elu(6), Favor(6, 6)])
def test_raised_features_and_their_slopes_are_those_of_the_logs(phi):
    """Of rows far below 0, far above, across it, and at it."""
    rows = torch.tensor([[0.0], [-300.0], [300.0], [1e30 if isinstance(phi, Elu) else 3.0]])
    spread = torch.tensor([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    x = (rows.double() + spread)[None, None].requires_grad_()
    phi = phi.double()
    raised, largest = phi.raised(x, phi(x), 20.0)
    assert_close(largest, phi(x).amax(-1), **TIGHT)
    expected = (phi(x) - largest.detach()[..., None] + 20).exp()
    assert_close(raised, expected, **TIGHT)
    slopes = [torch.autograd.grad(found.sum(), x)[0] for found in (raised, expected)]
    assert_close(*slopes, **TIGHT)


def test_favor_features_are_unbiased_for_the_softmax_kernel():
    torch.manual_seed(0)
    width = 8
    q, k = torch.randn(2, 1, 1, 5, width, dtype=torch.float64)
    estimates = []
    for _ in range(600):
        phi = Favor(width, 16).double()
        estimates.append(torch.einsum("bhlf,bhtf->bhlt", phi(q).exp(), phi(k).exp()))
    estimates = torch.stack(estimates)
    kernel = torch.einsum("bhlk,bhtk->bhlt", q, k).div(width**0.5).exp()
    stderr = estimates.std(0) / len(estimates) ** 0.5
    assert ((estimates.mean(0) - kernel).abs() < 5 * stderr).all()


def test_directions_are_orthogonal_with_gaussian_lengths():
    torch.manual_seed(0)
    rows = orthogonal_gaussian(64, 128).double()
    product = rows @ rows.T
    assert (product - product.diag().diag()).abs().max() < 1e-4
    assert abs(product.diag().mean() / 128 - 1) < 0.1


def test_directions_are_saved_with_the_weights():
    first, second = favor(32, heads=2), favor(32, heads=2)
    assert not torch.equal(first.phi.directions, second.phi.directions)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.phi.directions, second.phi.directions)


def test_performer_survives_tokens_of_any_size():
    """The scale is carried, not floored: a huge key late in the stream spoils nothing before it."""
    torch.manual_seed(0)
    mixer = favor(32, heads=2)
    x = torch.randn(1, 200, 32)
    x[:, 150:] *= 60
    output, state = mixer.scan(x, mixer.init_state(1))
    before, _ = mixer.scan(x[:, :150], mixer.init_state(1))
    assert torch.isfinite(output).all()
    assert torch.isfinite(state.values).all()
    # the first chunk of 128 is the same; the next one is cut elsewhere, float32 rounds otherwise
    assert_close(output[:, :150], before, rtol=1e-3, atol=1e-4)


def in_both_precisions(mixer, x):
    """Outputs and slopes of a scan in float32, and in float64 where nothing is rounded away."""
    found = []
    for dtype in (torch.float32, torch.float64):
        given = x.to(dtype).requires_grad_()
        output, _ = mixer.to(dtype).scan(given, mixer.init_state(len(x)))
        (slope,) = torch.autograd.grad(output.sin().sum(), [given])
        found.append((output.double(), slope.double()))
    return found


@pytest.mark.parametrize("bias", [-18.0, -30.0, -300.0])
def test_heads_that_look_away_are_as_exact_as_others(bias):
    """Queries and keys far on the negative side have features near 0: small, but not 0 / 0."""
    torch.manual_seed(0)
    mixer = linear(16, heads=2)
    mixer.qkv.bias.data[: 2 * mixer.heads * mixer.key] += bias
    single, double = in_both_precisions(mixer, torch.randn(1, 150, 16))
    # a bias of 300 leaves 5 digits of what is added to it
    assert_close(single, double, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("scale", [1, 10])
def test_a_performer_with_large_weights_is_as_exact_as_others(scale):
    torch.manual_seed(0)
    mixer = favor(128, heads=2)
    mixer.qkv.weight.data *= scale
    single, double = in_both_precisions(mixer, torch.randn(1, 40, 128))
    assert_close(single[0], double[0], rtol=1e-3, atol=1e-3 * scale)


def test_no_token_of_a_performer_is_too_far_off_to_be_read():
    """Its features are hundreds of e-folds apart; from single tokens and from a state."""
    torch.manual_seed(0)
    mixer = favor(128, heads=2)
    mixer.qkv.weight.data[: 2 * mixer.heads * mixer.key] *= 30
    x = torch.randn(1, 60, 128)
    by_steps, _ = Mixer.scan(mixer, x, mixer.init_state(1))
    at_once, _ = mixer.scan(x, mixer.init_state(1))
    mixer.double()
    q, k, v = mixer.qkv(x.double())[0].split([64, 64, 256], -1)
    q, k, v = (part.unflatten(-1, (2, -1)).transpose(0, 1) for part in (q, k, v))
    a, b = mixer.phi(q[None])[0], mixer.phi(k[None])[0]
    logits = (a[:, :, None] + b[:, None]).logsumexp(-1)
    assert logits.max() - logits.min() > 300
    weight = logits.masked_fill(torch.ones(60, 60).triu(1).bool(), -torch.inf).softmax(-1)
    expected = mixer.out((weight @ v).transpose(0, 1).flatten(1))
    for found in (by_steps, at_once):
        assert_close(found[0].double(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("stops", "chunk"), [(False, 408), (True, 408), (False, 32)])
@pytest.mark.parametrize("kind", [favor, linear])
def test_steep_features_are_as_exact_as_others_in_short_numbers(kind, stops, chunk):
    """Exponents of 50 rounded to 8 bits are features that are off by a tenth, and so are slopes."""
    torch.manual_seed(0)
    mixer = kind(256, heads=2)
    mixer.chunk = chunk
    exponents = 2 * mixer.heads * mixer.key
    mixer.qkv.weight.data[:exponents] *= 12
    x = torch.randn(2, 100, 256)
    queries = (x[:, ::2] + 0.3 * torch.randn(2, 50, 256))[:, :, None]
    stop = torch.randint(101, (2, 50)) if stops else None
    found = []
    for short in (True, False):
        mixer, dtype = (mixer, torch.float32) if short else (mixer.double(), torch.float64)
        with torch.autocast("cpu", torch.bfloat16, enabled=short):
            stream, answers, _ = mixer.mix(x.to(dtype), queries.to(dtype), stop)
        loss = stream.to(dtype).sin().sum() + answers.to(dtype).sin().sum()
        (slope,) = torch.autograd.grad(loss, [mixer.qkv.weight])
        found.append(
            [part.double() for part in (stream, answers, *slope.tensor_split([exponents]))]
        )
    for one, other in zip(*found, strict=True):
        assert (one - other).norm() < 0.015 * other.norm()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", MIXERS)
def test_slopes_of_a_small_loss_do_not_vanish_on_the_way(name, precision):
    """A mean over thousands of answers has small slopes everywhere; halves round as wholes do."""
    torch.manual_seed(0)
    mixer = MIXERS.build(name, 64, heads=2)
    x, queries = torch.randn(2, 60, 64), torch.randn(2, 12, 1, 64)
    own = (torch.arange(60) // 5 == torch.arange(12)[:, None]).expand(2, -1, -1)
    small, slopes = 0.5**36, []
    for scale in (1.0, small):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            stream, answers, guidance = mixer.mix(x, queries, None, own)
        loss = stream.float().sin().mean() + answers.float().sin().mean() + guidance
        slopes.append(torch.autograd.grad(scale * loss, list(mixer.parameters())))
    for one, other in zip(*slopes, strict=True):
        assert other.abs().max() > 0
        assert_close(other / small, one, rtol=1e-4, atol=1e-4 * one.abs().max().item())


def test_gemcl_tells_apart_classes_seen_very_often():
    """The constant of the density is the difference of huge numbers; 512 of them are added up."""
    torch.manual_seed(0)
    answers = []
    for dtype in (torch.float32, torch.float64):
        learner = learner_for("gemcl", Classes(3), width=64).to(dtype)
        count = torch.tensor([[10_000.0, 9_999.0, 5.0]], dtype=dtype)
        flat = torch.ones(1, 3, 64, dtype=dtype)
        state = Moments(count, 0 * flat, 3 * flat * count[..., None])
        answers.append(learner.predict(state, 0.1 * flat).double())
    assert_close(answers[0], answers[1], rtol=1e-5, atol=2e-3)


def test_an_answer_of_zero_has_a_second_slope():
    target, y = angle(), torch.tensor([[[1.0, 0.0]]])
    nothing = torch.zeros(1, 1, 2, requires_grad=True)
    slope = target.slope(nothing, y)
    (second,) = torch.autograd.grad(slope.sum(), [nothing])
    assert_close(slope, torch.tensor([[[-10.0, 0.0]]]))
    assert torch.isfinite(second).all()


def test_guidance_of_a_performer_that_looks_away_stays_finite():
    torch.manual_seed(0)
    mixer = favor(32, heads=2)
    mixer.qkv.weight.data *= 40
    x, queries = torch.randn(1, 12, 32, requires_grad=True), torch.randn(1, 4, 1, 32)
    own = torch.arange(12)[None, None] // 3 == torch.arange(4)[None, :, None]
    mixed = mixer.mix(x, queries, None, own)
    (mixed.guidance + mixed.queries.sum()).backward()
    assert torch.isfinite(mixed.guidance)
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "performer"])
def test_ten_thousand_examples_stay_finite(name, precision):
    options = {"width": 16, "layers": 2, "heads": 2}
    torch.manual_seed(0)
    learner = LEARNERS.build(name, (4,), Vector(4), **options).eval()
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(1, 10_000, 4, generator=rng)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        state = learner.init_state(1)
        for start in range(0, 10_000, 1_000):
            part = x[:, start : start + 1_000]
            state = learner.observe(state, learner.encode(part), learner.encode_y(part))
        answer = learner.predict(state, learner.encode(x[:, :5]))
    assert torch.isfinite(answer).all()
    if name != "transformer":
        means = [layer for layer in state if isinstance(layer, Means)]
        assert all(part.values.dtype == torch.float32 for part in means)


def test_a_state_of_linear_attention_does_not_grow():
    learner = learner_for("linear_transformer", Vector(4), x_shape=(4,), width=16, heads=2)
    sizes = set()
    for length in (1, 10, 1_000):
        x = torch.zeros(1, length, 4, dtype=torch.float64)
        state = learner.observe(learner.init_state(1), learner.encode(x), learner.encode_y(x))
        sizes.add(state_bytes(state))
    assert len(sizes) == 1


def test_guidance_of_linear_attention_is_the_cross_entropy_of_the_right_task():
    learner = learner_for("linear_transformer", Classes(3), width=16, layers=1, heads=2)
    train, test, _ = episodes = one_episode(Classes(3))
    guidance = meta_loss(learner, episodes, guided=True).guidance
    encoded = encode_episodes(learner, episodes)
    position, block = learner.mixer.layers
    stream = learner.tokens.stream(encoded.z, encoded.y)
    stream, queries, _ = position.mix(stream, encoded.queries[:, :, None])
    mixer = block.mixer
    keys = mixer.qkv(stream)[..., mixer.heads * mixer.key :][..., : mixer.key]
    asked = mixer.qkv(queries[:, :, 0])[..., : mixer.key]
    weight = (F.elu(asked) + 1) @ (F.elu(keys) + 1).mT
    own = test.task[:, :, None] == train.task.repeat_interleave(2, 1)[:, None]
    share = (weight * own).sum(-1) / weight.sum(-1)
    assert_close(guidance, -share.log().mean(), rtol=1e-7, atol=1e-7)
