"""A batch of episodes: a stream to learn from, and queries to answer afterwards."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from onepass.sampling import distinct

Order = Literal["blocked", "shuffled", "varied"]
Split = Literal["train", "validation", "test"]


class Examples(NamedTuple):
    x: Tensor  # [B, N, *x_shape]
    y: Tensor  # [B, N] class ids, [B, N, C] code tokens, or [B, N, O] vectors
    task: Tensor  # [B, N] which task each example came from; learners never see it


class Episodes(NamedTuple):
    train: Examples
    test: Examples
    codes: Tensor | None = None  # [B, K, C] the code of each class, where y is one


@dataclass(frozen=True)
class EpisodeSpec:
    """How many tasks, how many examples of each to learn from, how many to be asked about."""

    tasks: int = 20
    shots: int = 5
    queries: int = 5
    order: Order = "blocked"

    def __post_init__(self):
        for name in ("tasks", "shots", "queries"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; an episode needs at least 1")
        if self.order not in get_args(Order):
            raise ValueError(f"order is {self.order!r}; there are: {', '.join(get_args(Order))}")

    @property
    def length(self) -> int:
        return self.tasks * self.shots

    def merged(self, tasks: int) -> "EpisodeSpec":
        """As long a stream and as many queries, of fewer tasks: so many of them become one."""
        shots, queries = tasks * self.shots, tasks * self.queries
        return replace(self, tasks=self.tasks // tasks, shots=shots, queries=queries)


def cut(total: int, parts: int) -> list[int]:
    """Nearly equal sizes that sum to `total`."""
    return [(total + part) // parts for part in range(parts)]


def joined(episodes: Sequence[Episodes]) -> Episodes:
    """Episodes of one shape as one batch; their classes have no codes yet."""
    train, test = (
        Examples(*(torch.cat(parts) for parts in zip(*examples, strict=True)))
        for examples in zip(*(part[:2] for part in episodes), strict=True)
    )
    return Episodes(train, test)


def task_ids(tasks: int, per_task: int, batch: int, device: torch.device) -> Tensor:
    """[B, tasks * per_task]: task 0 `per_task` times, then task 1, ..."""
    return torch.arange(tasks, device=device).repeat_interleave(per_task).expand(batch, -1)


def arranged(examples: Examples, order: Order, rng: torch.Generator) -> Examples:
    """The same examples, in the order asked for; they come task after task."""
    if order != "shuffled":
        return examples
    length = examples.x.shape[1]
    shuffle = distinct((examples.x.shape[0],), length, length, rng)
    rows = torch.arange(len(shuffle), device=shuffle.device)[:, None]
    return Examples(*(field[rows, shuffle] for field in examples))
