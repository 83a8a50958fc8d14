"""Images sorted by class: on the device where they fit there, memory-mapped where they do not."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from onepass.episodes import EpisodeSpec, Split
from onepass.sampling import distinct_within

Shape = tuple[int, int, int]
ENDLESS = 2**62  # images of a class


@dataclass(frozen=True)
class Bank:
    """Images of many classes, one class after the other; an array stays on the host."""

    images: UInt8[Tensor, "N channels height width"] | UInt8[np.ndarray, "N channels height width"]
    start: Int[Tensor, " C"]  # of each class in `images`
    count: Int[Tensor, " C"]
    largest: int  # the largest count, known without asking the card

    def only(self, classes: Int[Tensor, " C"]) -> "Bank":
        """The same images, fewer classes."""
        return replace(self, start=self.start[classes], count=self.count[classes])


def draw_images(
    bank: Bank, chosen: Int[Tensor, "B K"], samples: int, rng: torch.Generator
) -> UInt8[Tensor, "B K samples channels height width"]:
    """Images of the chosen classes, without replacement within each."""
    within = distinct_within(bank.count[chosen], bank.largest, samples, rng)
    index = bank.start[chosen][..., None] + within
    return bank.images[index] if isinstance(bank.images, Tensor) else _fetched(bank.images, index)


def _fetched(images: np.ndarray, index: Tensor) -> Tensor:
    """Gathered on the host; through pinned memory, so that the copy to a card waits for nothing."""
    shape = (*index.shape, *images.shape[1:])
    gathered = torch.empty(shape, dtype=torch.uint8, pin_memory=index.is_cuda)
    # the indices are in range, and only a mode other than `raise` writes right where it is told
    np.take(images, _on_host(index).numpy(), axis=0, out=gathered.numpy(), mode="clip")
    return gathered.to(index.device, non_blocking=True)


def _on_host(index: Tensor) -> Tensor:
    if not index.is_cuda:
        return index.cpu()
    host = torch.empty(index.shape, dtype=index.dtype, pin_memory=True)
    host.copy_(index, non_blocking=True)
    # by an event: another thread may have made all other ways of waiting an error
    copied = torch.cuda.Event()
    copied.record()
    copied.synchronize()
    return host


def room_for_images(device: torch.device) -> int:
    """Bytes that a bank may take: a quarter of what is free on a card."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 4
    return 2**31


class ByClass(NamedTuple):
    """What a bank is made of: images sorted by class, and which classes are in which split."""

    images: UInt8[np.ndarray, "N channels height width"]
    counts: Sequence[int]
    splits: Mapping[str, Sequence[int]]
    names: Sequence[str] = ()


class Stored:
    """A source: images read when they are first asked for."""

    def __init__(
        self, name: str, x_shape: Shape, splits: tuple[Split, ...], read: Callable[[], ByClass]
    ):
        self.name, self.x_shape, self.splits, self._read = name, x_shape, splits, read
        self._banks: dict[torch.device, dict[str, Bank]] = {}
        self._lock = threading.Lock()

    @cached_property
    def by_class(self) -> ByClass:
        return self._read()

    @cached_property
    def _fewest(self) -> dict[str, int]:
        _, counts, splits, _ = self.by_class
        return {split: min((counts[i] for i in ids), default=0) for split, ids in splits.items()}

    def fewest(self, split: Split) -> int:
        return self._fewest[split]

    def classes(self, split: Split) -> int:
        return len(self.by_class.splits[split])

    def check(self, split: Split, spec: EpisodeSpec) -> None:
        """One clear line when a split cannot fill the episodes asked for."""
        name = f"{self.name}'s {split} split"
        own = self.name.startswith(("folder:", "npz:"))
        check_enough(name, self.classes(split), self.fewest(split), spec, own)

    def class_name(self, split: Split, number: int) -> str:
        names, place = self.by_class.names, self.by_class.splits[split][number]
        return names[place] if names else f"class {place}"

    def draw(self, split: Split, chosen: Tensor, samples: int, rng: torch.Generator) -> Tensor:
        return draw_images(self._on(rng.device)[split], chosen, samples, rng)

    def on_device(self, device: torch.device) -> bool:
        """Whether drawing asks the host for nothing."""
        return isinstance(self._on(device)[self.splits[0]].images, Tensor)

    def _on(self, device: torch.device) -> dict[str, Bank]:
        # threads that draw ahead may ask at once
        with self._lock:
            if device not in self._banks:
                images, counts, splits, _ = self.by_class
                count = torch.tensor(counts, device=device)
                if images.nbytes <= room_for_images(device):
                    images = torch.from_numpy(np.array(images)).to(device)
                bank = Bank(images, count.cumsum(0) - count, count, max(counts))
                self._banks[device] = {
                    split: bank.only(torch.tensor(ids, dtype=torch.long, device=device))
                    for split, ids in splits.items()
                }
                if device.type == "cuda":
                    # threads work on streams of their own, and would not wait for these copies
                    torch.cuda.synchronize(device)
            return self._banks[device]


def check_enough(
    name: str, classes: int, fewest: int, spec: EpisodeSpec, own: bool = False
) -> None:
    """One clear line when a bank cannot fill the episodes asked for; a person's own can be cut."""
    if spec.tasks > classes:
        share = "; benchmark.test is the share of classes for it" if own else ""
        raise ValueError(f"{name} has {classes} classes, and tasks is {spec.tasks}{share}")
    if spec.shots + spec.queries > fewest:
        need = spec.shots + spec.queries
        fewer = "; ask for fewer with --shots and --queries"
        advice = f"{fewer}, or benchmark.fewest={need} does without such classes" if own else ""
        raise ValueError(
            f"{name} has classes of {fewest} images, and shots + queries is "
            f"{spec.shots} + {spec.queries} = {need}{advice}"
        )
