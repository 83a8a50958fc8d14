"""Sets of symbols that no model ever saw, played through one to watch what it forgets."""

import copy
import secrets
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import UInt8

from onepass.benchmarks.glyphs import CLASSES, FIRST, Glyphs
from onepass.data import Store, open_store, what_is_missing
from onepass.demo.roster import Entry
from onepass.estimators.classifier import ContinualClassifier

SYMBOLS = 20  # of a set, at most
SHOTS, QUERIES = 5, 10  # drawings of each to learn from, and to ask about later
GLYPHS = "drawn glyphs"

Drawings = UInt8[np.ndarray, "symbols drawings height width"]


class SymbolSet(NamedTuple):
    """Symbols that meta-training has not seen, in their order."""

    name: str
    symbols: int
    store: Store | None = None  # glyphs are drawn, and need none
    classes: tuple[int, ...] = ()

    def draw(self, rng: np.random.Generator) -> Drawings:
        """As many drawings of each symbol as a play needs, in a random order."""
        if self.store is None:
            return _glyphs(self.symbols, rng)
        chosen = [self.store.of_class(number)[:, 0] for number in self.classes]
        return np.stack([rng.permutation(images)[: SHOTS + QUERIES] for images in chosen])


def symbol_sets() -> dict[str, SymbolSet]:
    """Omniglot's evaluation alphabets where the data is there, and glyphs everywhere."""
    found = [SymbolSet(GLYPHS, SYMBOLS)]
    if what_is_missing("omniglot") is None:
        found = [*_alphabets(open_store("omniglot")), *found]
    return {each.name: each for each in found}


def _alphabets(store: Store) -> list[SymbolSet]:
    by_name: dict[str, list[int]] = {}
    for number in store.manifest.splits["test"]:
        alphabet = store.manifest.classes[number].partition("/")[0].replace("_", " ")
        by_name.setdefault(alphabet, []).append(number)
    return [
        SymbolSet(name, len(numbers[:SYMBOLS]), store, tuple(numbers[:SYMBOLS]))
        for name, numbers in sorted(by_name.items())
    ]


def _glyphs(symbols: int, rng: np.random.Generator) -> Drawings:
    """Of the test split; which ones is chosen anew every time."""
    ids = FIRST["test"] + torch.from_numpy(rng.integers(CLASSES, size=symbols))
    seed = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return Glyphs().drawings(ids, SHOTS + QUERIES, seed)[:, :, 0].numpy()


class Play(NamedTuple):
    learner: ContinualClassifier
    drawings: Drawings
    shown: int = 0  # symbols so far

    @staticmethod
    def of(entry: Entry, chosen: SymbolSet) -> "Play":
        """From nothing: what the visitor taught is left as it is."""
        drawings = chosen.draw(np.random.default_rng(secrets.randbits(64)))
        return Play(entry.start(), drawings[: entry.room])

    @property
    def symbols(self) -> int:
        return len(self.drawings)


class Asked(NamedTuple):
    """After one more symbol: how many of the queries about each one so far went wrong."""

    wrong: list[int]
    held: int  # bytes


def next_symbol(play: Play) -> tuple[Play, Asked]:
    """Shows the next symbol, then asks about all so far with drawings that it was never shown."""
    count = play.shown + 1
    shots = play.drawings[play.shown, :SHOTS]
    learner = copy.copy(play.learner).partial_fit(shots, [play.shown] * SHOTS)
    asked = play.drawings[:count, SHOTS:]
    found = learner.predict(asked.reshape(-1, *asked.shape[2:])).reshape(count, -1)
    wrong = (found != np.arange(count)[:, None]).sum(1)
    return Play(learner, play.drawings, count), Asked(wrong.tolist(), learner.state_bytes_)
