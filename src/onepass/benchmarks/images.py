"""One benchmark for all images by class: a source gives them, a view says what is asked of them."""

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from onepass.benchmarks.augment import SYMMETRIES, augmented, check_square
from onepass.benchmarks.base import Benchmark
from onepass.benchmarks.views import Shape, ViewName, classified, make_view, split_shots
from onepass.episodes import EpisodeSpec, Split
from onepass.sampling import distinct


@runtime_checkable
class Source(Protocol):
    """Images by class. Classes are numbered from 0 in each split, and splits share none."""

    @property
    def splits(self) -> tuple[Split, ...]: ...

    @property
    def x_shape(self) -> Shape:
        """Channels, height and width of an image."""
        ...

    def classes(self, split: Split) -> int:
        """How many there are."""
        ...

    def fewest(self, split: Split) -> int:
        """How many images its smallest class has; `ENDLESS` where they are drawn."""
        ...

    def check(self, split: Split, spec: EpisodeSpec) -> None:
        """One clear line when a split cannot fill the episodes asked for."""
        ...

    def class_name(self, split: Split, number: int) -> str:
        """What people call it."""
        ...

    def draw(
        self, split: Split, chosen: Int[Tensor, "B K"], samples: int, rng: torch.Generator
    ) -> UInt8[Tensor, "B K samples C H W"]:
        """Different images of each of the chosen classes, on the generator's device."""
        ...

    def on_device(self, device: torch.device) -> bool:
        """Whether drawing asks the host for nothing."""
        ...


class Images(Benchmark):
    """Episodes of a source's images.

    With `augment`, meta-training has 8 classes for each: its quarter turns and their mirror images.
    """

    def __init__(
        self,
        source: Source,
        view: ViewName = "classify",
        augment: bool = False,
        label_shift: bool = True,
    ):
        if augment:
            check_square(source.x_shape)
        self.source, self.augment, self.splits = source, augment, source.splits
        self.view = make_view(view, source.x_shape, label_shift)
        self.x_shape = self.view.x_shape

    def as_they_are(self, split: Split) -> bool:
        """Whether a learner is shown a split's images unchanged."""
        return self.view.ask is classified and not (self.augment and split == "train")

    def target(self, spec):
        return self.view.target(spec)

    def on_device(self, device):
        return self.source.on_device(device)

    def sample(self, split, spec, batch, rng):
        self.source.check(split, spec)
        augment, classes = self.augment and split == "train", self.source.classes(split)
        among = SYMMETRIES * classes if augment else classes
        number = distinct((batch,), among, spec.tasks, rng)
        images = self.source.draw(split, number % classes, spec.shots + spec.queries, rng)
        if augment:
            images = augmented(images, number // classes, rng)
        return split_shots(*self.view.ask(images, rng), spec)
