"""What later tasks cost earlier ones: the forgetting of a row's runs, over all their seeds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onepass.reproduce.comparison import Line, amount, markdown_table
from onepass.statistics import Spread, pooled

Forgotten = dict[str, Any]  # the content of a forgetting.json


@dataclass(frozen=True)
class Group:
    """A few consecutive tasks: the error they gained by the time that so many tasks were seen."""

    first: int
    last: int
    seen: list[int]
    lost: list[Spread]


@dataclass(frozen=True)
class Losses:
    """Errors gained since a task was learned, in the paper's units."""

    benchmark: str
    learner: str
    steps: int
    seeds: int
    episodes: int  # of all seeds together
    digits: int
    by_first: Spread  # of the first task, at the end
    by_task: Spread  # of a task at the end, the mean over all but the last
    curve: list[Spread]  # by how many tasks were learned since
    groups: list[Group]


def losses(line: Line, runs: Sequence[Forgotten]) -> Losses:
    """Of runs that are alike but for their seed."""

    def over(values: Sequence[float], stderrs: Sequence[float]) -> Spread:
        return pooled(values, stderrs).scaled(line.scale)

    def points(values: Sequence[Sequence[float]], stderrs: Sequence[Sequence[float]]):
        """Point by point, from one row for each run."""
        both = zip(zip(*values, strict=True), zip(*stderrs, strict=True), strict=True)
        return [over(*point) for point in both]

    curve = points([run["curve"] for run in runs], [run["curve_stderr"] for run in runs])
    groups = [
        Group(
            group[0]["first"],
            group[0]["last"],
            group[0]["seen"],
            points([each["lost"] for each in group], [each["stderr"] for each in group]),
        )
        for group in zip(*(run["groups"] for run in runs), strict=True)
    ]
    return Losses(
        benchmark=line.row.benchmark,
        learner=line.row.name,
        steps=line.steps,
        seeds=len(runs),
        episodes=sum(run["episodes"] for run in runs),
        digits=line.digits,
        by_first=curve[-1],
        # transfer is below 0 where something is lost
        by_task=over(
            [-run["backward_transfer"] for run in runs],
            [run["backward_transfer_stderr"] for run in runs],
        ),
        curve=curve,
        groups=groups,
    )


def losses_table(found: Sequence[Losses]) -> str:
    header = ["benchmark", "learner", "steps", "seeds", "lost by the first task"]
    rows = []
    for each in found:
        cells = [amount(one.mean, one.shown, each.digits) for one in (each.by_first, each.by_task)]
        counts = [f"{each.steps:,}", str(each.seeds)]
        rows.append([each.benchmark, each.learner, *counts, *cells, f"{each.episodes:,}"])
    return markdown_table([*header, "lost by a task, mean", "episodes"], rows)
