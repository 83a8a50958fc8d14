"""Kanji: 6,496 characters, each drawn by hand as often as asked for.

The strokes are KanjiVG's (Ulrich Apel, CC BY-SA 3.0), and so are those of every picture made here.
"""

import hashlib
import threading
from functools import cached_property

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from onepass.benchmarks.bank import ENDLESS, check_enough
from onepass.benchmarks.hand import Strokes, draw_by_hand
from onepass.benchmarks.images import Images
from onepass.benchmarks.invent import invent
from onepass.benchmarks.kanjivg import CREDIT, read_kanji
from onepass.benchmarks.views import ViewName
from onepass.episodes import EpisodeSpec, Split
from onepass.registry import BENCHMARKS, Natural

# shares of all characters; about 1,000 to meta-test, and a tenth of the rest to meta-validate
TEST, VALIDATION = 0.154, 0.0846


@BENCHMARKS.add("kanji")
def kanji(
    view: ViewName = "classify",
    augment: bool = False,
    label_shift: bool = True,
    validation: bool = True,
    invented: Natural = 8,
    size: int = 32,
) -> Images:
    """Meta-training has so many `invented` characters, of parts, for each real one.

    With `validation`, a tenth of the characters is held out for meta-validation.
    """
    benchmark = Images(Kanji(size, invented, validation), view, augment, label_shift)
    benchmark.credit = CREDIT
    return benchmark


class Kanji:
    """A source: characters drawn by hand, each as often as asked for."""

    def __init__(self, size: int = 32, invented: int = 8, validation: bool = True):
        if size < 8 or invented < 0:
            raise ValueError(
                f"size {size}, invented {invented}: a drawing needs at least 8 pixels, "
                "and invented characters are 0 or more for each real one"
            )
        self.size, self.invented, self.validation = size, invented, validation
        self.x_shape = (1, size, size)
        self.splits: tuple[Split, ...] = (
            ("train", "validation", "test") if validation else ("train", "test")
        )
        self._strokes: dict[torch.device, dict[Split, Strokes]] = {}
        self._lock = threading.Lock()

    @cached_property
    def names(self) -> dict[Split, list[str]]:
        """The characters of each split."""
        found: dict[Split, list[str]] = {split: [] for split in self.splits}
        for name in self._read[0]:
            split = split_of(name)
            found[split if split in found else "train"].append(name)
        return found

    def classes(self, split: Split) -> int:
        each = 1 + self.invented if split == "train" else 1
        return each * len(self.names[split])

    def fewest(self, split: Split) -> int:
        return ENDLESS

    def check(self, split: Split, spec: EpisodeSpec) -> None:
        check_enough(f"kanji's {split} split", self.classes(split), self.fewest(split), spec)

    def class_name(self, split: Split, number: int) -> str:
        made, place = divmod(number, len(self.names[split]))
        name = self.names[split][place]
        return f"{name}, invented {made}" if made else name

    def draw(
        self, split: Split, chosen: Int[Tensor, "B K"], samples: int, rng: torch.Generator
    ) -> UInt8[Tensor, "B K samples C H W"]:
        strokes = self._on(rng.device)[split].rows(chosen.flatten().repeat_interleave(samples))
        return draw_by_hand(strokes, rng, self.size).unflatten(0, (*chosen.shape, samples))

    def on_device(self, device: torch.device) -> bool:
        return True

    @cached_property
    def _read(self) -> tuple[list[str], Strokes]:
        return read_kanji()

    def _on(self, device: torch.device) -> dict[Split, Strokes]:
        # threads may ask at once
        with self._lock:
            if device not in self._strokes:
                self._strokes[device] = {
                    split: self.strokes(split).to(device) for split in self.splits
                }
            return self._strokes[device]

    def strokes(self, split: Split) -> Strokes:
        """Of each class: the characters, and in meta-training what is invented from each."""
        names, strokes = self._read
        place = {name: i for i, name in enumerate(names)}
        real = strokes.rows(torch.tensor([place[name] for name in self.names[split]]))
        if split != "train":
            return real
        code = torch.tensor([ord(name) for name in self.names[split]])
        # an id for each character and each new one made of it: no code point reaches 2**21
        new = [invent(real, code + (1 + i) * 2**21) for i in range(self.invented)]
        return Strokes(*(torch.cat(parts) for parts in zip(real, *new, strict=True)))


def split_of(name: str) -> Split:
    """By a hash of the character alone: the same on every machine, whatever else there is."""
    share = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) / 2**64
    if share < TEST:
        return "test"
    return "validation" if share < TEST + VALIDATION else "train"
