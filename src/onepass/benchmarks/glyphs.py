"""Procedural handwriting: as many classes as anyone wants, no files.

A class is a few smooth strokes that follow from its number alone, on every machine the same; a
sample is that class redrawn by another hand.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from onepass.benchmarks.bank import ENDLESS, Bank, check_enough, draw_images
from onepass.benchmarks.hand import Strokes, draw_by_hand, to_unit_square
from onepass.benchmarks.images import Images
from onepass.benchmarks.views import ViewName
from onepass.episodes import EpisodeSpec, Split
from onepass.registry import BENCHMARKS

STROKES, POINTS = 4, 10
TRAITS = 8  # numbers that make a stroke
CLASSES = 2**30  # in each split
FIRST: dict[Split, int] = {"train": 0, "validation": CLASSES, "test": 2 * CLASSES}


@BENCHMARKS.add("glyphs")
def glyphs(
    view: ViewName = "classify",
    augment: bool = False,
    label_shift: bool = True,
    size: int = 32,
    bank: int = 0,
    bank_samples: int = 20,
) -> Images:
    """With a `bank`, meta-training has that many classes of `bank_samples` drawings, made once."""
    return Images(Glyphs(size, bank, bank_samples), view, augment, label_shift)


class Glyphs:
    """A source: classes drawn by hand, each as often as asked for."""

    splits: tuple[Split, ...] = ("train", "validation", "test")

    def __init__(self, size: int = 32, bank: int = 0, bank_samples: int = 20):
        if size < 8 or bank < 0 or bank_samples < 1:
            raise ValueError(
                f"size {size}, bank {bank}, bank_samples {bank_samples}: "
                "a drawing needs at least 8 pixels, a bank at least 1 sample of each class"
            )
        self.size, self.bank, self.bank_samples = size, bank, bank_samples
        self.x_shape = (1, size, size)
        self._banks: dict[torch.device, Bank] = {}

    def classes(self, split: Split) -> int:
        return self.bank if self.bank and split == "train" else CLASSES

    def fewest(self, split: Split) -> int:
        return self.bank_samples if self.bank and split == "train" else ENDLESS

    def check(self, split: Split, spec: EpisodeSpec) -> None:
        check_enough("the bank of glyphs", self.classes(split), self.fewest(split), spec)

    def class_name(self, split: Split, number: int) -> str:
        return f"glyph {FIRST[split] + number:,}"

    def draw(self, split: Split, chosen: Tensor, samples: int, rng: torch.Generator) -> Tensor:
        if self.bank and split == "train":
            return draw_images(self._bank(rng.device), chosen, samples, rng)
        ids = chosen.flatten() + FIRST[split]
        return self.drawings(ids, samples, rng).unflatten(0, chosen.shape)

    def on_device(self, device: torch.device) -> bool:
        return True

    def drawings(self, ids: Int[Tensor, " N"], samples: int, rng: torch.Generator) -> Tensor:
        """[N, samples, 1, size, size]: each class redrawn a few times."""
        again = torch.arange(len(ids), device=ids.device).repeat_interleave(samples)
        return draw_by_hand(template(ids).rows(again), rng, self.size).unflatten(0, (-1, samples))

    def _bank(self, device: torch.device) -> Bank:
        if device not in self._banks:
            # drawn once, the same in every run
            rng = torch.Generator(device).manual_seed(0)
            images = self.drawings(torch.arange(self.bank, device=device), self.bank_samples, rng)
            start = torch.arange(self.bank, device=device) * self.bank_samples
            count = torch.full_like(start, self.bank_samples)
            self._banks[device] = Bank(images.flatten(0, 1), start, count, self.bank_samples)
        return self._banks[device]


def template(ids: Int[Tensor, " N"]) -> Strokes:
    """The strokes of each class in the unit square.

    A stroke is a path of some length whose heading turns steadily and sways; all but the first
    start on the one before, as most real characters do.
    """
    traits = hashed_uniform(ids, 1 + STROKES * TRAITS)
    count = 1 + (traits[:, 0] * STROKES).long()
    heading, turn, sway, phase, length, begin, offset_x, offset_y = (
        traits[:, 1:].view(-1, STROKES, TRAITS).unbind(-1)
    )
    along = torch.linspace(0, 1, POINTS, device=ids.device)
    angle = 2 * math.pi * heading[..., None]
    # cubed, so that nearly straight strokes and full loops both are common
    angle = angle + 8 * ((2 * turn[..., None] - 1) ** 3) * along
    angle = angle + 1.5 * sway[..., None] * torch.sin(2 * math.pi * (along + phase[..., None]))
    step = (0.25 + 0.75 * length)[..., None, None] / (POINTS - 1)
    way = torch.stack([angle.cos(), angle.sin()], -1) * step
    path = torch.cat([torch.zeros_like(way[:, :, :1]), way[:, :, 1:].cumsum(2)], 2)
    strokes = [path[:, 0]]
    for m in range(1, STROKES):
        place = (begin[:, m] * POINTS).long()
        anchor = strokes[-1][torch.arange(len(ids), device=ids.device), place]
        offset = 0.5 * torch.stack([offset_x[:, m], offset_y[:, m]], -1) - 0.25
        strokes.append(path[:, m] + (anchor + offset)[:, None])
    points, number = torch.cat(strokes, 1), POINTS * count
    points = to_unit_square(points, number)
    stroke = torch.arange(STROKES, device=ids.device).repeat_interleave(POINTS)
    return Strokes.of(points, stroke.expand(len(ids), -1), number)


def hashed_uniform(ids: Int[Tensor, " N"], columns: int) -> Float[Tensor, "N columns"]:
    """Numbers in [0, 1) that depend on id and column alone: splitmix64, in wrapping int64."""
    golden = -7046029254386353131
    word = ids[:, None] * columns + torch.arange(columns, device=ids.device)
    word = (word + 1) * golden
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685), (31, 1)):
        # torch shifts arithmetically; the mask makes it logical
        word = (word ^ ((word >> shift) & (2 ** (64 - shift) - 1))) * factor
    return ((word >> 40) & (2**24 - 1)).float() / 2**24
