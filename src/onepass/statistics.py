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


def over_seeds(results: Sequence[Result], split: str = "meta_test") -> Spread:
    """Of the errors of one method; with one seed, what its episodes say of the mean."""
    found = spread([result[split]["error"] for result in results])
    if found.count > 1:
        return found
    return Spread(found.mean, 0.0, results[0][split]["stderr"], 1)


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
    differences = [[a - b for a, b in zip(*pair, strict=True)] for pair in pairs]
    if not differences:
        return None
    seeds = spread([spread(values).mean for values in differences])
    within = spread(differences[0]).stderr if seeds.count == 1 else seeds.stderr
    return Difference(seeds.mean, within, seeds.count, sum(map(len, differences)))


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
