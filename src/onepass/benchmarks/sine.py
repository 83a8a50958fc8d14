"""Each task is one frequency and two phases; map a noisy sine to its shifted twin."""

import math

import torch

from onepass.benchmarks.base import Benchmark
from onepass.episodes import Episodes, Examples, task_ids
from onepass.registry import BENCHMARKS, NonNegative, Positive
from onepass.targets import Vector


@BENCHMARKS.add("sine")
class Sine(Benchmark):
    """Unlimited tasks, so that the splits differ only in the seed. Answering 0 scores 13/24."""

    def __init__(self, points: Positive = 50, noise: NonNegative = 0.1):
        self.points, self.noise, self.x_shape = points, noise, (points,)

    def target(self, spec):
        return Vector(self.points)

    def sample(self, split, spec, batch, rng):
        def uniform(*shape: int):
            return torch.rand(batch, spec.tasks, *shape, generator=rng, device=rng.device)

        time = torch.linspace(0, 10, self.points, device=rng.device)
        turn = 2 * math.pi * (uniform(1, 1) + 0.1) * time
        x_phase, y_phase = 2 * math.pi * uniform(1, 1), 2 * math.pi * uniform(1, 1)

        def examples(shots: int) -> Examples:
            height = uniform(shots, 1) + 0.5
            clean, y = height * (turn + x_phase).sin(), height * (turn + y_phase).sin()
            x = clean + self.noise * torch.randn(clean.shape, generator=rng, device=rng.device)
            task = task_ids(spec.tasks, shots, batch, rng.device)
            return Examples(x.flatten(1, 2), y.flatten(1, 2), task)

        return Episodes(train=examples(spec.shots), test=examples(spec.queries))
