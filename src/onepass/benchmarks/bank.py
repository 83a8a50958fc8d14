"""Episodes from a bank of images sorted by class, drawn without a loop over episodes."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from onepass.data.store import Store
from onepass.episodes import Episodes, EpisodeSpec, Examples, distinct, task_ids


@dataclass(frozen=True)
class Bank:
    """Images of many classes, one class after the other."""

    images: UInt8[Tensor, "N channels height width"]
    start: Int[Tensor, " C"]  # of each class in `images`
    count: Int[Tensor, " C"]
    largest: int  # the largest count, known without asking the card

    def to(self, device: torch.device) -> "Bank":
        images, start, count = (part.to(device) for part in (self.images, self.start, self.count))
        return Bank(images, start, count, self.largest)

    def only(self, classes: Int[Tensor, " C"]) -> "Bank":
        """The same images, fewer classes."""
        return replace(self, start=self.start[classes], count=self.count[classes])


def to_unit(images: UInt8[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Bytes to [-1, 1]."""
    return images.float() * (2 / 255) - 1


def check_enough(name: str, classes: int, fewest: int, spec: EpisodeSpec) -> None:
    """One clear line when a bank cannot fill the episodes asked for."""
    if spec.tasks > classes:
        raise ValueError(f"{name} has {classes} classes, and tasks is {spec.tasks}")
    if spec.shots + spec.queries > fewest:
        raise ValueError(
            f"{name} has classes of {fewest} images, and shots + queries is "
            f"{spec.shots} + {spec.queries} = {spec.shots + spec.queries}"
        )


def sample_bank(bank: Bank, spec: EpisodeSpec, batch: int, rng: torch.Generator) -> Episodes:
    """Classes without replacement, then images without replacement within each."""
    chosen = distinct((batch,), len(bank.start), spec.tasks, rng)
    # one sort key per image; those past the end of a class sort last
    keys = torch.rand(*chosen.shape, bank.largest, generator=rng, device=rng.device)
    past = torch.arange(keys.shape[-1], device=rng.device) >= bank.count[chosen][..., None]
    inside = keys.masked_fill(past, -1).topk(spec.shots + spec.queries).indices
    images = bank.images[bank.start[chosen][..., None] + inside]
    return split_shots(to_unit(images), spec)


def split_shots(x: Float[Tensor, "B K S *x"], spec: EpisodeSpec) -> Episodes:
    """[B, tasks, shots + queries, ...] to a stream and its queries; the class is the task."""

    def examples(part: Tensor) -> Examples:
        task = task_ids(spec.tasks, part.shape[2], part.shape[0], part.device)
        return Examples(part.flatten(1, 2), task, task)

    return Episodes(train=examples(x[:, :, : spec.shots]), test=examples(x[:, :, spec.shots :]))


def as_bank(store: Store) -> Bank:
    """All of a store, in memory."""
    start, count = torch.tensor(store.starts), torch.tensor(store.manifest.counts)
    images = torch.from_numpy(np.array(store.images))
    return Bank(images, start, count, max(store.manifest.counts))
