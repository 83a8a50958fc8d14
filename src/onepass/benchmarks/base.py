"""What a benchmark is."""

from abc import ABC, abstractmethod

import torch

from onepass.episodes import Episodes, EpisodeSpec, Examples, Split, arranged, cut, joined
from onepass.targets import Target

MOST_OF_A_TASK = 20  # examples and queries; Omniglot has no more of a class


class Benchmark(ABC):
    """A distribution over episodes, sampled on the generator's device.

    Examples come task after task, classes as ids 0, 1, ... in order of appearance.
    """

    x_shape: tuple[int, ...]
    splits: tuple[Split, ...] = ("train", "validation", "test")
    credit: str = ""  # owed to others wherever examples are shown

    @abstractmethod
    def target(self, spec: EpisodeSpec) -> Target: ...

    @abstractmethod
    def sample(
        self, split: Split, spec: EpisodeSpec, batch: int, rng: torch.Generator
    ) -> Episodes: ...

    def on_device(self, device: torch.device) -> bool:
        """Whether `sample` asks the host for nothing; otherwise training draws ahead in threads."""
        return True


def draw(
    benchmark: Benchmark,
    target: Target,
    split: Split,
    spec: EpisodeSpec,
    batch: int,
    rng: torch.Generator,
) -> Episodes:
    """Episodes as a learner with this target sees them: in the order asked for, classes as codes.

    Varied episodes are for meta-training (`draw_varied`), and come task after task here. The code
    book is drawn last, so that learners with other codes get the same examples.
    """
    episodes = benchmark.sample(split, spec, batch, rng)
    episodes = episodes._replace(train=arranged(episodes.train, spec.order, rng))
    return target.label(episodes, spec.tasks, rng)


def draw_varied(
    benchmark: Benchmark,
    target: Target,
    split: Split,
    spec: EpisodeSpec,
    batch: int,
    rng: torch.Generator,
) -> Episodes:
    """Streams of one length: of all tasks with the shots asked for, up to few tasks with many.

    Half of them are shuffled, by chance. So a learner meets any number of classes and examples
    while every batch has the same shape.
    """
    merges = [
        tasks
        for tasks in range(1, spec.tasks + 1)
        if spec.tasks % tasks == 0 and tasks * (spec.shots + spec.queries) <= MOST_OF_A_TASK
    ]
    # as it was asked for where even that is more
    merges = merges or [1]
    # the ends and the middle: each shape is drawn on its own, in hundreds of small kernels
    merges = sorted({merges[0], merges[(len(merges) - 1) // 2], merges[-1]})
    parts = zip(merges, cut(batch, len(merges)), strict=True)
    episodes = joined(
        [benchmark.sample(split, spec.merged(tasks), size, rng) for tasks, size in parts if size]
    )
    train, shuffled = episodes.train, arranged(episodes.train, "shuffled", rng)
    coin = torch.rand(batch, generator=rng, device=rng.device) < 0.5
    chosen = [
        torch.where(coin.view(-1, *[1] * (before.dim() - 1)), after, before)
        for before, after in zip(train, shuffled, strict=True)
    ]
    return target.label(episodes._replace(train=Examples(*chosen)), spec.tasks, rng)
