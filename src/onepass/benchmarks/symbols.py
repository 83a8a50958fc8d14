"""Symbols of many scripts: episodes of several benchmarks, side by side in every batch."""

from collections.abc import Sequence

from onepass.benchmarks.base import Benchmark
from onepass.episodes import cut, joined
from onepass.registry import BENCHMARKS


@BENCHMARKS.add("symbols")
def symbols(
    of: tuple[str, ...] = ("glyphs", "kanji", "omniglot"), augment: bool = True
) -> "Mixture":
    """What a person may draw. With `augment`, meta-training turns and mirrors classes into new."""
    return Mixture([BENCHMARKS.build(name, augment=augment) for name in of])


class Mixture(Benchmark):
    """A batch has nearly as many episodes of each; the last named have those left over."""

    def __init__(self, benchmarks: Sequence[Benchmark]):
        if not benchmarks:
            raise ValueError("a mixture of no benchmarks; name at least one")
        self.benchmarks, self.x_shape = list(benchmarks), benchmarks[0].x_shape
        if others := {each.x_shape for each in benchmarks} - {self.x_shape}:
            raise ValueError(f"a mixture of {self.x_shape} and {others.pop()}: all must be alike")
        shared = set.intersection(*(set(each.splits) for each in benchmarks))
        self.splits = tuple(split for split in benchmarks[0].splits if split in shared)
        self.credit = ". ".join(filter(None, dict.fromkeys(each.credit for each in benchmarks)))

    def target(self, spec):
        return self.benchmarks[0].target(spec)

    def on_device(self, device):
        return all(each.on_device(device) for each in self.benchmarks)

    def sample(self, split, spec, batch, rng):
        parts = zip(self.benchmarks, cut(batch, len(self.benchmarks)), strict=True)
        return joined([each.sample(split, spec, size, rng) for each, size in parts if size])
