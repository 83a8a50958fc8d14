"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each (Lake et al. 2015)."""

from functools import cached_property

import torch

from onepass.benchmarks.bank import Bank, as_bank, check_enough, sample_bank
from onepass.benchmarks.base import Benchmark
from onepass.data import Store, open_store
from onepass.data.omniglot import DRAWINGS, SIZE
from onepass.data.store import hold_out
from onepass.registry import BENCHMARKS
from onepass.targets import Classes


@BENCHMARKS.add("omniglot")
class Omniglot(Benchmark):
    """Background characters to meta-train, evaluation characters to meta-test.

    `validation` is the share of the background characters held out for meta-validation.
    """

    x_shape = (1, SIZE, SIZE)

    def __init__(self, validation: float = 0.1):
        if not 0 <= validation < 1:
            raise ValueError(f"validation is {validation}; a share lies in [0, 1)")
        self.validation = validation
        self.splits = ("train", "validation", "test") if validation else ("train", "test")
        self._banks: dict[torch.device, dict[str, Bank]] = {}

    def target(self, spec):
        return Classes(spec.tasks)

    @cached_property
    def classes(self) -> dict[str, list[int]]:
        """The class ids of each split."""
        manifest = self._store.manifest
        background = sorted(manifest.splits["train"] + manifest.splits["validation"])
        kept, held_out = hold_out(manifest.classes, background, self.validation)
        return {"train": kept, "validation": held_out, "test": manifest.splits["test"]}

    def sample(self, split, spec, batch, rng):
        check_enough(f"omniglot's {split} split", len(self.classes[split]), DRAWINGS, spec)
        return sample_bank(self._bank(rng.device)[split], spec, batch, rng)

    @cached_property
    def _store(self) -> Store:
        return open_store("omniglot")

    def _bank(self, device: torch.device) -> dict[str, Bank]:
        if device not in self._banks:
            bank = as_bank(self._store).to(device)
            self._banks[device] = {
                split: bank.only(torch.tensor(ids, dtype=torch.long, device=device))
                for split, ids in self.classes.items()
            }
        return self._banks[device]
