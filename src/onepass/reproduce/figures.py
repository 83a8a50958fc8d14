"""Figures of a table: those that the paper has."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from onepass.plots import INK, LINE
from onepass.reproduce.comparison import Line


def scaling_figure(lines: Sequence[Line]) -> Figure:
    """Error against parameters, ours and the paper's, a panel for each benchmark."""
    benchmarks = list(dict.fromkeys(line.row.benchmark for line in lines))
    figure, panels = _panels(benchmarks, "Does a larger transformer do better?")
    for axis, benchmark in zip(panels, benchmarks, strict=True):
        ran = [line for line in lines if line.row.benchmark == benchmark and line.results]
        size = [line.results[0]["parameters"] / 1e6 for line in ran]
        ours = [found for line in ran if (found := line.ours("meta_test"))]
        spread = [found.std or found.stderr for found in ours]
        axis.errorbar(size, [found.mean for found in ours], spread, color=LINE, label="here")
        known = [(x, line.row.test) for x, line in zip(size, ran, strict=True) if line.row.test]
        if known:
            x, published = zip(*known, strict=True)
            means, stds = zip(*published, strict=True)
            axis.errorbar(x, means, stds, color=INK, linestyle="--", label="paper")
        axis.set(xscale="log", xlabel="million parameters", ylabel="error", title=benchmark)
        axis.spines[["top", "right"]].set_visible(False)
        if ran:
            axis.legend(frameon=False)
    return figure


def forgetting_figure(found: Sequence[dict[str, Any]]) -> Figure:
    """Error gained against how many tasks were learned since, a panel for each benchmark."""
    benchmarks = list(dict.fromkeys(run["benchmark"] for run in found))
    figure, panels = _panels(benchmarks, "What later tasks cost earlier ones")
    for axis, benchmark in zip(panels, benchmarks, strict=True):
        for run in found:
            if run["benchmark"] == benchmark:
                lost = run["scale"] * np.array(run["curve"])
                spread = run["scale"] * np.array(run["curve_stderr"])
                axis.plot(lost, label=run["learner"])
                axis.fill_between(range(len(lost)), lost - spread, lost + spread, alpha=0.2)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.set(xlabel="tasks learned since", ylabel="error gained", title=benchmark)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False)
    return figure


def _panels(names: Sequence[str], title: str) -> tuple[Figure, list[Any]]:
    figure = Figure(figsize=(4.5 * max(len(names), 1), 4), layout="constrained")
    figure.suptitle(title)
    return figure, list(figure.subplots(1, len(names), squeeze=False)[0]) if names else []
