"""Views ask the right thing of the right pixels, and augmentation makes classes of its own."""

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from onepass import sampling
from onepass.benchmarks import augment
from onepass.benchmarks.bank import ByClass, Stored
from onepass.benchmarks.glyphs import glyphs
from onepass.benchmarks.images import Images
from onepass.benchmarks.views import rotate, to_unit
from onepass.benchmarks.warp import warp
from onepass.config import Component, build, override
from onepass.episodes import EpisodeSpec
from onepass.recipes import make_config
from onepass.registry import BENCHMARKS
from onepass.training import train

SPEC = EpisodeSpec(tasks=4, shots=3, queries=2)
SHAPES = [(1, 8, 8), (3, 8, 8), (3, 6, 10)]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise_images(count: int, shape: tuple[int, int, int]):
    return torch.randint(256, (count, *shape), generator=seeded()).to(torch.uint8)


def source(shape=(1, 8, 8), train: int = 6, test: int = 5, size: int = 7) -> Stored:
    """Images of noise, so that every one is like no other."""
    images = noise_images((train + test) * size, shape).numpy()
    splits = {"train": range(train), "test": range(train, train + test)}
    read = ByClass(images, [size] * (train + test), splits)
    return Stored("noise", shape, ("train", "test"), lambda: read)


def both(episodes):
    """x and y of stream and queries together, [B, tasks, samples, ...]."""
    parts = [[field.unflatten(1, (SPEC.tasks, -1)) for field in part] for part in episodes[:2]]
    return tuple(torch.cat(fields, 2) for fields in zip(*parts, strict=True))[:2]


def angle_of(y):
    return torch.atan2(y[..., 1], y[..., 0])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_completion_asks_for_the_bottom_half_given_the_top(shape):
    whole, _ = both(Images(source(shape)).sample("train", SPEC, 3, seeded()))
    benchmark = Images(source(shape), "completion")
    top, bottom = both(benchmark.sample("train", SPEC, 3, seeded()))
    channels, height, width = shape
    assert benchmark.x_shape == (channels, height // 2, width) == top.shape[3:]
    assert benchmark.target(SPEC).outputs == bottom.shape[3] == channels * height // 2 * width
    together = torch.cat([top, bottom.unflatten(3, benchmark.x_shape)], -2)
    assert torch.equal(together, whole)


def test_an_odd_height_has_no_halves():
    with pytest.raises(ValueError, match="completion halves an image, and these are 7 pixels high"):
        Images(source((1, 7, 8)), "completion")


def test_an_unknown_view_is_answered_with_what_there_is():
    with pytest.raises(ValueError, match="'classify', 'completion' or 'rotation'"):
        BENCHMARKS.build("glyphs", view="mosaic")


def by_pil(image, degrees: float):
    if len(image) == 1:
        picture, white = Image.fromarray(image[0].numpy()), 255
    else:
        picture, white = Image.fromarray(image.permute(1, 2, 0).numpy()), (255, 255, 255)
    turned = picture.rotate(degrees, Image.Resampling.NEAREST, fillcolor=white)
    return torch.from_numpy(np.array(turned)).view(*image.shape[1:], len(image)).permute(2, 0, 1)


@pytest.mark.parametrize("shape", [(1, 32, 32), (3, 32, 32), (1, 20, 32)], ids=str)
def test_images_are_turned_as_pillow_turns_them(shape):
    degrees = [0.0, 90.0, 180.0, 270.0, 12.3, 45.0, 89.0, 133.7, 200.2, 301.0, 359.0]
    images = noise_images(len(degrees), shape)
    turned = rotate(images, torch.tensor(degrees).deg2rad())
    expected = torch.stack([by_pil(*case) for case in zip(images, degrees, strict=True)])
    # Pillow has 16 bits after the point: where a pixel is just between two it may take the other
    wrong = (turned != expected).any(1).flatten(1).float().mean(1)
    assert wrong.max() < 0.01
    assert wrong[0] == 0


def test_quarter_turns_are_exact():
    images = noise_images(4, (3, 9, 9))
    turned = rotate(images, torch.arange(4) * math.pi / 2)
    for quarter, (image, other) in enumerate(zip(images, turned, strict=True)):
        assert torch.equal(other, image.rot90(quarter, (-2, -1)))


def test_without_the_shift_the_label_is_the_angle_of_the_turn():
    """The published variant; whoever knows the angle of the turn knows the answer."""
    images, _ = both(Images(source()).sample("train", SPEC, 3, seeded()))
    x, y = both(Images(source(), "rotation", label_shift=False).sample("train", SPEC, 3, seeded()))
    bytes_again = ((images + 1) * 127.5).round().to(torch.uint8).flatten(0, 2)
    turned = to_unit(rotate(bytes_again, angle_of(y).flatten()))
    # the angle went through float32 and back: a pixel that is just between two may be the other
    assert (turned != x.flatten(0, 2)).float().mean() < 1e-3


def test_the_shift_is_of_the_label_alone_and_one_for_each_task():
    (x, y), (plain_x, plain_y) = (
        both(Images(source(), "rotation", label_shift=shift).sample("train", SPEC, 50, seeded()))
        for shift in (True, False)
    )
    assert torch.equal(x, plain_x)
    shift = angle_of(y) - angle_of(plain_y)
    direction = torch.stack([shift.cos(), shift.sin()], -1)
    assert_close(direction, direction[:, :, :1].expand_as(direction), rtol=0, atol=1e-5)
    of_task, of_next = direction[:, :, 0], direction[:, :, 0].roll(1, 1)
    # 200 random directions: their mean is within 0.25 of nowhere at 5 deviations
    assert of_task.mean((0, 1)).norm() < 0.25
    assert (of_task * of_next).sum(-1).mean().abs() < 0.25


@pytest.mark.parametrize(("label_shift", "expected"), [(True, 1.0), (False, 0.0)])
def test_only_the_stream_tells_the_shift(label_shift, expected):
    """Whoever knows every angle exactly but no example scores 1, the score of saying nothing."""
    spec = EpisodeSpec(tasks=5, shots=1, queries=2)
    small = {"size": 8, "bank": 9, "bank_samples": 3, "view": "rotation"}
    rotation, plain = (glyphs(**small, label_shift=shift) for shift in (label_shift, False))
    asked = rotation.sample("train", spec, 2_000, seeded()).test
    known = plain.sample("train", spec, 2_000, seeded()).test
    assert torch.equal(asked.x, known.x)
    error = rotation.target(spec).error(known.y, asked.y)
    # 10,000 tasks, each with an error of deviation 0.7: 0.035 is 5 deviations of their mean
    assert error.mean().item() == pytest.approx(expected, abs=0.035 if label_shift else 1e-6)
    # what helps in one query of a task helps in the other: two examples of a task do tell
    first, second = error.unflatten(1, (spec.tasks, 2)).unbind(2)
    assert_close(first, second, rtol=0, atol=1e-5)


def test_the_published_recipe_has_no_shift_and_no_other_has_that():
    for name in ("omniglot", "glyphs"):
        published = override(make_config("paper", name, "oml"), ["benchmark.view=rotation"])
        assert published.benchmark.options["label_shift"] is False
        ours = make_config("quickstart", name, "oml")
        assert ours.benchmark.options.get("label_shift", True)


def same_maps(count: int, rng):
    return torch.eye(2, 3).expand(count, 2, 3)


def turned_and_mirrored(image):
    """The 8 symmetries, as torch has them."""
    return [
        start.rot90(quarter, (-2, -1)) for start in (image, image.flip(-1)) for quarter in range(4)
    ]


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 9, 9), (1, 28, 28)], ids=str)
def test_symmetries_are_quarter_turns_of_the_image_and_of_its_mirror_image(shape, monkeypatch):
    monkeypatch.setattr(augment, "small_maps", same_maps)
    images = noise_images(1, shape).expand(8, 2, *shape)[None]
    found = augment.augmented(images, torch.arange(8)[None], seeded())[0]
    expected = torch.stack(turned_and_mirrored(images[0, 0, 0]))
    assert torch.equal(found, expected[:, None].expand_as(found))


def test_augmented_classes_are_8_for_each_and_none_comes_twice(monkeypatch):
    monkeypatch.setattr(augment, "small_maps", same_maps)
    plain = source(train=2)
    whose = {
        made.numpy().tobytes(): (row // 7, symmetry)
        for row, image in enumerate(torch.from_numpy(plain.by_class.images))
        for symmetry, made in enumerate(turned_and_mirrored(image))
    }
    spec = EpisodeSpec(tasks=2, shots=3, queries=2)
    train_, test, _ = Images(plain, augment=True).sample("train", spec, 2_000, seeded())
    x = torch.cat([part.x.unflatten(1, (2, -1)) for part in (train_, test)], 2)
    seen = torch.zeros(2, 8)
    for episode in ((x + 1) * 127.5).round().to(torch.uint8).numpy():
        classes = [{whose[image.tobytes()] for image in task} for task in episode]
        # one class and one symmetry in each task, another in the next
        assert [len(each) for each in classes] == [1, 1]
        assert classes[0] != classes[1]
        for ((of_class, symmetry),) in classes:
            assert of_class < 2, "a meta-test class in meta-train"
            seen[of_class, symmetry] += 1
    # chi-square over 16 cells: 37.7 is exceeded once in 1,000 times
    assert ((seen - 250) ** 2 / 250).sum() < 37.7


@pytest.mark.parametrize("view", ["classify", "completion", "rotation"])
def test_only_meta_training_is_augmented(view):
    augmented, plain = (Images(source(), view, augment=augment) for augment in (True, False))
    for split, same in (("train", False), ("test", True)):
        (x, y), (plain_x, plain_y) = (
            both(benchmark.sample(split, SPEC, 3, seeded())) for benchmark in (augmented, plain)
        )
        assert torch.equal(x, plain_x) == same
        assert not same or torch.equal(y, plain_y)


def test_white_stays_white():
    white = torch.full((1, 4, 50, 3, 8, 8), 255, dtype=torch.uint8)
    assert (augment.augmented(white, torch.arange(4)[None], seeded()) == 255).all()
    assert (rotate(white.flatten(0, 2), torch.rand(200, generator=seeded()) * 6) == 255).all()


def test_small_maps_are_small_and_all_different():
    maps = augment.small_maps(1_000, seeded())
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    moved = (corners @ maps[..., :2].mT + maps[:, None, :, 2] - corners).norm(dim=-1)
    # in halves of the image; a corner is 1.4 from the centre
    assert moved.max() < 0.65
    assert moved.mean() > 0.1
    assert len(maps.flatten(1).unique(dim=0)) == 1_000
    assert_close(maps.mean(0), torch.eye(2, 3), rtol=0, atol=0.02)


def test_samples_are_turned_by_10_degrees_at_most(monkeypatch):
    for strength in ("STRETCH", "SHEAR", "SHIFT"):
        monkeypatch.setattr(augment, strength, 0)
    linear, shift = augment.small_maps(1_000, seeded()).split([2, 1], dim=-1)
    assert_close(linear @ linear.mT, torch.eye(2).expand_as(linear))
    assert 9.9 < torch.asin(linear[:, 1, 0]).abs().max().rad2deg() <= 10
    assert not shift.any()


def test_samples_are_moved_as_their_maps_say():
    """A dot is found again where the inverse map puts it."""
    images = torch.full((64, 1, 33, 33), 255, dtype=torch.uint8)
    images[:, :, 20:23, 9:12] = 0
    maps = augment.small_maps(64, seeded())
    ink = 255.0 - warp(images, maps)[:, 0].float()
    edge = torch.arange(33) * 2 / 33 + 1 / 33 - 1
    total = ink.sum((1, 2))
    found = (
        torch.stack([(ink.sum(1) * edge).sum(1), (ink.sum(2) * edge).sum(1)], -1) / total[:, None]
    )
    dot = torch.tensor([edge[10], edge[21]])
    expected = torch.linalg.solve(maps[..., :2], dot - maps[..., 2])
    # a tenth of a pixel
    assert_close(found, expected, rtol=0, atol=0.006)


def test_augmenting_needs_square_images():
    with pytest.raises(ValueError, match="turns images by 90 degrees, and these are 6x10"):
        Images(source((3, 6, 10)), augment=True)


class Watch(TorchDispatchMode):
    """Notes what would make a card wait for the host, or cannot be captured in a CUDA graph."""

    waits = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero")

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        masks = [i for i in args[1] if i is not None] if name in ("index", "index_put_") else []
        # a list of numbers made a tensor; a single one is set without a copy
        copies = name == "lift_fresh" and args[0].dim() > 0
        if name in self.waits or copies or any(i.dtype == torch.bool for i in masks):
            self.seen.add(name)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("view", ["classify", "completion", "rotation"])
@pytest.mark.parametrize("augment", [False, True])
@pytest.mark.parametrize("kind", ["stored", "huge", "bank", "fresh"])
def test_drawing_asks_the_host_for_nothing(kind, augment, view, monkeypatch):
    if kind == "huge":
        monkeypatch.setattr(sampling, "_keys_are_cheap", lambda *_: False)
    if kind in ("stored", "huge"):
        benchmark = Images(source(), view, augment)
    else:
        benchmark = glyphs(view, augment, size=8, bank=9 if kind == "bank" else 0)
    # what is kept is made when it is first drawn from
    benchmark.sample("train", SPEC, 2, seeded())
    with Watch() as watch:
        benchmark.sample("train", SPEC, 2, seeded())
    assert watch.seen == set()


def test_the_watch_notices():
    numbers = torch.arange(3)
    with Watch() as watch:
        numbers[numbers > 1].sum().item()
        torch.tensor([1, 2])
    assert watch.seen >= {"index", "_local_scalar_dense", "lift_fresh"}


SMALL = {"width": 16, "layers": 1, "heads": 2, "hidden": 16, "encoder": "cnn_small"}


@pytest.mark.parametrize("name", ["transformer", "linear_transformer", "oml"])
@pytest.mark.parametrize("view", ["completion", "rotation"])
def test_every_kind_of_learner_trains_on_every_view(name, view, tiny, tmp_path):
    from onepass.registry import LEARNERS

    options = {key: value for key, value in SMALL.items() if key in LEARNERS.options(name)}
    data = {"view": view, "size": 16, "bank": 8, "bank_samples": 4, "augment": True}
    config = tiny(
        benchmark=Component("glyphs", data), learner=Component(name, options), steps=2, tasks=2
    )
    _, before = build(config)
    learner = train(config, tmp_path / "run", "cpu", lambda line: None)
    changed = [
        not torch.equal(old, new)
        for old, new in zip(before.parameters(), learner.parameters(), strict=True)
    ]
    assert all(changed)
