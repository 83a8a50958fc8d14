"""What a benchmark is."""

from abc import ABC, abstractmethod

import torch

from onepass.episodes import Episodes, EpisodeSpec, Split, arranged
from onepass.targets import Target


class Benchmark(ABC):
    """A distribution over episodes, sampled on the generator's device.

    Examples come task after task, classes as ids 0, 1, ... in order of appearance.
    """

    x_shape: tuple[int, ...]
    splits: tuple[Split, ...] = ("train", "validation", "test")

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

    The code book is drawn last, so that learners with other codes get the same examples.
    """
    episodes = benchmark.sample(split, spec, batch, rng)
    episodes = episodes._replace(train=arranged(episodes.train, spec.order, rng))
    return target.label(episodes, spec.tasks, rng)
