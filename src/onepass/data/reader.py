"""What it takes to read a data set from the files that its owner distributes."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from onepass.data.store import OWN_TEST, split_by_hash


class Chunk(NamedTuple):
    """A piece of work: some files, or a part of one."""

    files: tuple[Path, ...]
    part: tuple[Any, ...] = ()

    def stamp(self) -> str:
        """Another one where a file was changed."""
        stats = [(file.name, file.stat()) for file in self.files]
        facts = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]
        return hashlib.sha256(repr((facts, self.part)).encode()).hexdigest()[:32]


class Piece(NamedTuple):
    """A chunk, and its stamp when the work began."""

    chunk: Chunk
    stamp: str


# reason -> how many records, and where the first was
Skipped = dict[str, list[Any]]
Counts = dict[str, int]
Splits = dict[str, list[int]]


@dataclass(frozen=True)
class Reader:
    """How to make a store of one data set. What it reads, processes of their own read: every
    function here can be pickled."""

    name: str
    source: str
    licence: str
    made: str
    shape: tuple[int, int, int]
    missing: Callable[[], list[str]]  # official names of the files that are not there
    chunks: Callable[[], list[Chunk]]
    # the images of a chunk, each with the key of its class
    read: Callable[[Chunk, Skipped], Iterator[tuple[str, np.ndarray]]]
    # keys of the classes, sorted, and how many images each has -> their names, and the splits
    arrange: Callable[[Counts], tuple[list[str], Splits]]
    whole: int | None = None  # classes that the owner's files have, all of them together
    fewest: int = 1  # classes with fewer images are dropped
    may_be_grey: bool = False  # one channel is kept where all are the same everywhere


def skip(skipped: Skipped, reason: str, where: str, records: int = 1) -> None:
    """Count what one can do without."""
    skipped.setdefault(reason, [0, where])[0] += records


def arrange_by_hash(counts: Counts, test: int) -> tuple[list[str], Splits]:
    """So many classes for meta-test; a fifth where there are not twice as many."""
    names = list(counts)
    enough = len(names) >= 2 * test
    return names, split_by_hash(names, test if enough else round(OWN_TEST * len(names)))
