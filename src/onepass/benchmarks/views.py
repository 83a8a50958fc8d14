"""What can be asked of images sorted by class. A task is a class, whatever is asked.

classify     which class an image is of
completion   the bottom half of an image, given the top half
rotation     by which angle an image was turned, plus an angle that only the task's examples tell
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, get_args

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from onepass.benchmarks.warp import warp
from onepass.episodes import Episodes, EpisodeSpec, Examples, task_ids
from onepass.targets import Classes, Target, angle, pixels

Shape = tuple[int, int, int]  # channels, height, width
ViewName = Literal["classify", "completion", "rotation"]


class View(NamedTuple):
    """x and y made of images [B, tasks, samples, channels, height, width] in bytes."""

    x_shape: Shape
    target: Callable[[EpisodeSpec], Target]
    ask: Callable[[Tensor, torch.Generator], tuple[Tensor, Tensor]]


def make_view(name: ViewName, images: Shape, label_shift: bool) -> View:
    """The view called `name` of images of this shape; `label_shift` is for rotation alone."""
    channels, height, width = images
    if name == "classify":
        return View(images, lambda spec: Classes(spec.tasks), classified)
    if name == "completion":
        if height % 2:
            raise ValueError(f"completion halves an image, and these are {height} pixels high")
        half = channels, height // 2, width
        return View(half, lambda spec: pixels(math.prod(half)), completed)
    if name == "rotation":
        return View(images, lambda spec: angle(), partial(rotated, label_shift=label_shift))
    raise ValueError(f"no view {name!r}; there are: {', '.join(get_args(ViewName))}")


def classified(images: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    batch, tasks, samples = images.shape[:3]
    y = task_ids(tasks, samples, batch, images.device).unflatten(1, (tasks, samples))
    return to_unit(images), y


def completed(images: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    top, bottom = to_unit(images).chunk(2, dim=-2)
    return top, bottom.flatten(3)


def rotated(images: Tensor, rng: torch.Generator, label_shift: bool) -> tuple[Tensor, Tensor]:
    """The label is the angle that the image was turned by, plus one angle for the whole task.

    The published code turned the images by the task's angle as well, so that it told nothing: the
    same as no shift at all.
    """
    batch, tasks, samples = images.shape[:3]
    shape = batch, tasks, samples
    turn = 2 * math.pi * torch.rand(shape, generator=rng, device=rng.device)
    x = to_unit(rotate(images.flatten(0, 2), turn.flatten()).unflatten(0, shape))
    if label_shift:
        turn = turn + 2 * math.pi * torch.rand(batch, tasks, 1, generator=rng, device=rng.device)
    return x, torch.stack([turn.cos(), turn.sin()], -1)


def rotate(images: UInt8[Tensor, "N C H W"], turn: Float[Tensor, " N"]) -> UInt8[Tensor, "N C H W"]:
    """Counter-clockwise by so many radians, nearest pixel, white where nothing was: PIL's way."""
    height, width = images.shape[-2:]
    cos, sin, zero = turn.cos(), turn.sin(), torch.zeros_like(turn)
    x = torch.stack([cos, -sin * (height / width), zero], -1)
    y = torch.stack([sin * (width / height), cos, zero], -1)
    return warp(images, torch.stack([x, y], 1), "nearest")


def to_unit(images: UInt8[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Bytes to [-1, 1]."""
    return images.float() * (2 / 255) - 1


def split_shots(x: Float[Tensor, "B K S *x"], y: Tensor, spec: EpisodeSpec) -> Episodes:
    """[B, tasks, shots + queries, ...] to a stream and its queries."""

    def examples(x: Tensor, y: Tensor) -> Examples:
        task = task_ids(spec.tasks, x.shape[2], x.shape[0], x.device)
        return Examples(x.flatten(1, 2), y.flatten(1, 2), task)

    shots = spec.shots
    return Episodes(
        train=examples(x[:, :, :shots], y[:, :, :shots]),
        test=examples(x[:, :, shots:], y[:, :, shots:]),
    )
