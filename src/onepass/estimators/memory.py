"""Examples that are kept, encoded, so that a state can be built again without some of them."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torch.utils._pytree import tree_map

from onepass.tree import State


class Chunk(NamedTuple):
    z: State  # [1, n, ...]
    y: Tensor  # [1, n] numbers of codes, or [1, n, O]

    def rows(self, chosen: Tensor) -> "Chunk":
        return Chunk(*tree_map(lambda leaf: leaf[:, chosen.to(leaf.device)], tuple(self)))


Memory = tuple[Chunk, ...]
"""In order. Never changed in place, and each chunk is longer than the next, so that one more
example copies few of those before it."""

Choose = Callable[[Tensor, int], Int[Tensor, " K"]]
"""Which examples to keep, in order, of [1, n, ...] targets, and how many."""


def remembered(memory: Memory, more: Chunk) -> Memory:
    """As a binary number counts up: chunks of the same length become one of twice that."""
    chunks = list(memory)
    while chunks and chunks[-1].y.shape[1] <= more.y.shape[1]:
        more = joined((chunks.pop(), more))
    return (*chunks, more)


def joined(memory: Memory) -> Chunk:
    return Chunk(*tree_map(lambda *leaves: torch.cat(leaves, 1), *(tuple(c) for c in memory)))


def newest(y: Tensor, count: int) -> Int[Tensor, " K"]:
    return torch.arange(y.shape[1] - count, y.shape[1])


def balanced(y: Tensor, count: int) -> Int[Tensor, " K"]:
    """The newest of each class, as equally many as there are; a class with few keeps them all."""
    _, which = torch.unique(y[0], dim=0, return_inverse=True)
    later: list[int] = []
    seen: Counter[int] = Counter()
    for each in reversed(which.tolist()):
        later.append(seen[each])
        seen[each] += 1
    # in rounds, from the newest back: first the last of every class, then those before them
    rounds = sorted(range(len(later)), key=lambda back: (later[back], back))
    return torch.tensor(sorted(len(later) - 1 - back for back in rounds[:count]), dtype=torch.long)


CHOICES: dict[str, Choose] = {"oldest": newest, "balanced": balanced}
"""By what is dropped: the oldest of all, or of the class that has most."""
