"""What several runs say together: never a bare mean, and differences on the same episodes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Result = dict[str, Any]  # the content of a result.json


@dataclass(frozen=True)
class Spread:
    """A mean, how far single values lie from it, and how far it would move itself."""

    mean: float
    std: float  # 0 where there is one value, and so no spread to see
    stderr: float
    count: int

    @property
    def shown(self) -> float:
        """What is written behind the mean: over seeds, or over episodes where there is one seed."""
        return self.std if self.count > 1 else self.stderr

    def scaled(self, by: float) -> "Spread":
        return Spread(by * self.mean, by * self.std, by * self.stderr, self.count)


@dataclass(frozen=True)
class Difference:
    """Of the errors of two learners, episode by episode: below 0 where the first is better."""

    mean: float
    stderr: float
    seeds: int
    episodes: int  # of all seeds together


def spread(values: Sequence[float]) -> Spread:
    """The standard deviation is that of a sample, with n - 1."""
    if not values:
        raise ValueError("there is no mean of no values")
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Spread(mean, 0.0, 0.0, 1)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    return Spread(mean, std, std / math.sqrt(count), count)


def pooled(means: Sequence[float], stderrs: Sequence[float]) -> Spread:
    """Of one number for each seed; with one seed, what its episodes say of the mean."""
    found = spread(means)
    return found if found.count > 1 else Spread(found.mean, 0.0, stderrs[0], 1)


def over_seeds(results: Sequence[Result], split: str = "meta_test") -> Spread:
    """Of the errors of one method."""
    scores = [result[split] for result in results]
    return pooled([score["error"] for score in scores], [score["stderr"] for score in scores])


def paired(
    first: Sequence[Result], second: Sequence[Result], split: str = "meta_test"
) -> Difference | None:
    """Of two methods on the same episodes; None where no two runs saw the same ones.

    With one seed in common the standard error is over episodes, with more over seeds: those
    differ by their episodes and by their training too.
    """
    others = {key: result for result in second if (key := episodes_of(result, split))}
    pairs = [
        (result[split]["episode_error"], others[key][split]["episode_error"])
        for result in first
        if (key := episodes_of(result, split)) in others
    ]
    differences = [spread([a - b for a, b in zip(*pair, strict=True)]) for pair in pairs]
    if not differences:
        return None
    seeds = pooled([each.mean for each in differences], [each.stderr for each in differences])
    episodes = sum(each.count for each in differences)
    return Difference(seeds.mean, seeds.stderr, seeds.count, episodes)


def episodes_of(result: Result, split: str = "meta_test") -> tuple | None:
    """What decides the episodes that a result was measured on; None for files that kept none."""
    if not result[split].get("episode_error"):
        return None
    config = result["config"]
    # random numbers differ between kinds of device, not between cards
    kind = result["device"] if result["device"] in ("cpu", "mps") else "cuda"
    options = tuple(
        sorted((key, str(value)) for key, value in config["benchmark"]["options"].items())
    )
    shape = (config["tasks"], config["shots"], config["queries"], config["order"])
    drawn = (config["evaluation_episodes"], config["evaluation_batch"], config["seed"], kind)
    return (split, config["benchmark"]["name"], options, *shape, *drawn)
