"""States are nests of tensors; every leaf carries the episode batch on axis 0."""

from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

State = Any
"""A nest (tuple, named tuple, dict) of tensors. Axis 0 of every leaf is the batch."""


def fork(state: State, copies: int) -> State:
    """Repeat each episode's state `copies` times, next to each other on the batch axis."""
    return tree_map(lambda leaf: leaf.repeat_interleave(copies, dim=0), state)


def span(tree: State, start: int, stop: int | None = None) -> State:
    """Examples `start` to `stop` of whatever has the examples on axis 1."""
    return tree_map(lambda leaf: leaf[:, start:stop], tree)


def state_bytes(state: State) -> int:
    """Memory one episode keeps between two examples."""
    leaves: list[Tensor] = tree_leaves(state)
    return sum(leaf[:1].numel() * leaf.element_size() for leaf in leaves)
