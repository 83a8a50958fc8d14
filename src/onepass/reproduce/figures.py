"""Figures of a table: those that the paper has."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from onepass.plots import INK, LINE, in_units, log_axis
from onepass.reproduce.comparison import Line
from onepass.reproduce.losses import Losses

IN_A_ROW = 7  # panels
COLOURS = ("#d55e00", "#009e73", "#0072b2", "#cc79a7")  # told apart by colour-blind people


def scaling_figure(lines: Sequence[Line], title: str) -> Figure:
    """Error against parameters, ours and the paper's, a panel for each benchmark."""
    benchmarks = list(dict.fromkeys(line.row.benchmark for line in lines))
    figure = Figure(figsize=(4 * max(len(benchmarks), 1), 3.8), layout="constrained")
    figure.suptitle(f"Does a larger transformer do better? {title}")
    panels = figure.subplots(1, len(benchmarks), squeeze=False)[0] if benchmarks else []
    for axis, benchmark in zip(panels, benchmarks, strict=True):
        ran = [line for line in lines if line.row.benchmark == benchmark and line.results]
        ran.sort(key=_parameters)
        sizes = [_parameters(line) for line in ran]
        ours = [found for line in ran if (found := line.ours("meta_test"))]
        spreads = [found.shown for found in ours]
        means = [found.mean for found in ours]
        axis.errorbar(sizes, means, spreads, color=LINE, marker="o", label="here")
        if known := [
            (x, *line.row.test) for x, line in zip(sizes, ran, strict=True) if line.row.test
        ]:
            x, published, stds = zip(*known, strict=True)
            axis.errorbar(x, published, stds, color=INK, marker="s", linestyle="--", label="paper")
        unit = " in %" if ran and ran[0].row.is_class else ""
        axis.set(xlabel="parameters", ylabel=f"meta-test error{unit}", title=benchmark)
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        if ran:
            log_axis(axis, "x", sizes, in_units)
            axis.legend(frameon=False)
    return figure


def _parameters(line: Line) -> float:
    return float(line.results[0]["parameters"])


def forgetting_figure(found: Sequence[Losses], title: str) -> Figure:
    """As in the paper: a panel for each few consecutive tasks, and one for all of them."""
    benchmarks: dict[str, list[Losses]] = {}
    for each in found:
        benchmarks.setdefault(each.line.row.benchmark, []).append(each)
    # each group of tasks has a panel, and the mean of all has one
    panels = [1 + len(runs[0].found.groups) for runs in benchmarks.values()]
    rows = [math.ceil(count / IN_A_ROW) for count in panels]
    figure = Figure(figsize=(13, 0.5 + sum(1.7 * count + 0.7 for count in rows)))
    figure.set_layout_engine("constrained")
    figure.suptitle(f"What later tasks cost earlier ones {title}")
    parts = figure.subfigures(len(rows), 1, height_ratios=rows, squeeze=False)[:, 0]
    for part, (name, runs), count in zip(parts, benchmarks.items(), rows, strict=True):
        unit = " in %" if runs[0].line.row.is_class else ""
        part.suptitle(f"{name}: error{unit} gained, by tasks seen", fontsize=11)
        _panels(part.subplots(count, IN_A_ROW, sharey=True, squeeze=False).flatten(), runs)
    return figure


def _panels(panels: Sequence[Axes], runs: Sequence[Losses]) -> None:
    """Of one benchmark: group by group, then all tasks."""
    count = len(runs[0].found.groups)
    for run, colour in zip(runs, itertools.cycle(COLOURS), strict=False):
        for axis, group in zip(panels, run.found.groups, strict=False):
            _curve(axis, group["seen"], group["lost"], group["stderr"], colour, run)
            several = group["last"] > group["first"]
            name = f"tasks {group['first']} to " if several else "task "
            axis.set_title(f"{name}{group['last']}", fontsize=9)
            axis.set_xlim(0, run.found.tasks)
        curve = run.found.curve
        _curve(panels[count], range(len(curve)), curve, run.found.curve_stderr, colour, run)
    panels[count].set_title("all, by tasks since", fontsize=9)
    panels[count].legend(frameon=False, fontsize=7)
    for axis in panels[count + 1 :]:
        axis.set_visible(False)
    for axis in panels:
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)


def _curve(
    axis: Axes, x: Any, lost: list[float], stderr: list[float], colour: str, run: Losses
) -> None:
    mean, spread = run.line.scale * np.array(lost), run.line.scale * np.array(stderr)
    # the last group is a single point
    marker = "." if len(mean) == 1 else ""
    axis.plot(x, mean, color=colour, label=run.line.row.name, marker=marker)
    axis.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.2, linewidth=0)
