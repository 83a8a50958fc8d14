"""What later tasks cost earlier ones: the forgetting of a row's runs, over all their seeds."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from onepass.forgetting import Forgetting, together
from onepass.reproduce.comparison import Line
from onepass.statistics import Spread
from onepass.tables import amount, markdown_table

Forgotten = dict[str, Any]  # the content of a forgetting.json


@dataclass(frozen=True)
class Losses:
    """What the runs of a line lose; errors of classes are fractions."""

    line: Line
    seeds: int
    found: Forgetting

    @property
    def by_first(self) -> Spread:
        """What the first task has lost in the end."""
        return self._spread(self.found.curve[-1], self.found.curve_stderr[-1])

    @property
    def by_task(self) -> Spread:
        """What a task has lost in the end, the mean over all but the last."""
        found = self.found
        # transfer is below 0 where something is lost
        return self._spread(-found.backward_transfer, found.backward_transfer_stderr)

    def _spread(self, mean: float, stderr: float) -> Spread:
        """In the paper's units."""
        std = stderr * math.sqrt(self.seeds) if self.seeds > 1 else 0.0
        return Spread(mean, std, stderr, self.seeds).scaled(self.line.scale)


def losses(line: Line, runs: Sequence[Forgotten]) -> Losses:
    """Of runs that are alike but for their seed."""
    return Losses(line, len(runs), together([Forgetting(**run) for run in runs]))


def losses_facts(each: Losses) -> dict[str, Any]:
    """For JSON; the matrix stays in the files of the runs, where errors are fractions too."""
    row, found = each.line.row, asdict(each.found)
    names = {"benchmark": row.benchmark, "learner": row.name, "seeds": each.seeds}
    names |= {"steps": each.line.steps, "scale": each.line.scale}
    spreads = {"by_first": asdict(each.by_first), "by_task": asdict(each.by_task)}
    curves = {key: found[key] for key in ("episodes", "curve", "curve_stderr", "groups")}
    return names | spreads | curves


def losses_columns(each: Losses) -> dict[str, Any]:
    """For CSV, in the paper's units."""
    spreads = {"lost_by_first": each.by_first, "lost_by_task": each.by_task}
    found: dict[str, Any] = {}
    for name, one in spreads.items():
        std = one.std if one.count > 1 else None
        found |= {f"{name}_mean": one.mean, f"{name}_std": std, f"{name}_stderr": one.stderr}
    return found


def losses_table(found: Sequence[Losses]) -> str:
    header = ["benchmark", "learner", "steps", "seeds", "lost by the first task"]
    rows = []
    for each in found:
        line = each.line
        cells = [amount(one.mean, one.shown, line.digits) for one in (each.by_first, each.by_task)]
        counts = [f"{line.steps:,}", str(each.seeds)]
        end = f"{each.found.episodes:,}"
        rows.append([line.row.benchmark, line.row.name, *counts, *cells, end])
    return markdown_table([*header, "lost by a task, mean", "episodes"], rows)
