"""Pictures of a run: what it was shown and how it answered, and how it came to learn."""

import io
import math
import string
from collections.abc import Callable
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from torch import Tensor

from onepass.episodes import Episodes
from onepass.files import write_bytes

RIGHT, WRONG, INK, LINE = "#2b8a3e", "#c92a2a", "#343a40", "#1c7ed6"
STYLES = ("--", ":", "-")
KINDS = (".png", ".pdf", ".svg")
NUMBERED_UP_TO = 8  # tasks, whose cells have room for their numbers
# neither end is lost on a white page or on a dark one
CURVES, HEAT = colormaps["viridis"], colormaps["YlOrRd"]


def check_picture(path: Path) -> None:
    if path.suffix not in KINDS:
        raise ValueError(f"{path}: a picture's name ends in {', '.join(KINDS)}")


def save_figure(figure: Figure, path: Path) -> None:
    check_picture(path)
    content = io.BytesIO()
    figure.savefig(content, format=path.suffix[1:], dpi=130)
    write_bytes(path, content.getvalue())


def letter(k: int) -> str:
    """A name for class k: A to Z, then A1, B1, ..."""
    return string.ascii_uppercase[k % 26] + (str(k // 26) if k >= 26 else "")


def contact_sheet(
    figure: Figure | SubFigure, episodes: Episodes, answers: list[int], title: str
) -> None:
    """One episode of images, a row per class: what was shown, then each query under its answer."""
    train, test, _ = episodes
    tasks = int(train.task.max()) + 1
    shots, queries = train.x.shape[1] // tasks, test.x.shape[1] // tasks
    figure.suptitle(title, color=INK)
    parts = figure.subfigures(1, 2, width_ratios=[shots + 0.6, queries + 0.2], squeeze=False)
    shown, asked = parts[0]
    for part, name in (
        (shown, "shown, one by one"),
        (asked, "asked: its answer, and right or wrong"),
    ):
        part.suptitle(name, fontsize=9, color=INK)
    rows = shown.subplots(tasks, shots, squeeze=False)
    for k in range(tasks):
        for axis, image in zip(rows[k], train.x[0, train.task[0] == k], strict=True):
            _show(axis, image)
        rows[k, 0].set_ylabel(letter(k), rotation=0, ha="right", va="center", color=INK)
    for k, row in enumerate(asked.subplots(tasks, queries, squeeze=False)):
        for q, axis in enumerate(row):
            place = k * queries + q
            colour = RIGHT if answers[place] == k else WRONG
            _show(axis, test.x[0, place], colour, width=1.8)
            axis.set_title(letter(answers[place]), fontsize=8, color=colour, pad=2)


def learning_curve(axis: Axes, metrics: list[dict], marks: dict[str, float]) -> None:
    """Error while meta-training, with lines for what it should beat and where it ended."""
    lines = [line for line in metrics if "split" not in line]
    steps, errors = [line["step"] for line in lines], [100 * line["error"] for line in lines]
    axis.plot(steps, errors, color=LINE, linewidth=2, label="classes it meta-trains on")
    for (name, value), style in zip(marks.items(), STYLES, strict=False):
        label = f"{name}, new classes: {100 * value:.1f} %"
        axis.axhline(100 * value, color=INK, linestyle=style, linewidth=1, label=label)
    axis.set(xlabel="meta-training step", ylabel="error in %", ylim=(0, 100))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, loc="center right")


def _show(
    axis: Axes, image: Float[Tensor, "c h w"], colour: str = "#dee2e6", width: float = 0.8
) -> None:
    axis.imshow(np.asarray(image[0].cpu()), cmap="gray", vmin=-1, vmax=1)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=width)


def heat_map(axis: Axes, error: list[list[float]], label: str, top: float | None = None) -> None:
    """Row n is after n tasks, column k is task k; what was not learned yet is left out."""
    matrix = np.array(error)
    shown = np.where(np.tri(len(matrix), dtype=bool), matrix, np.nan)
    end = len(matrix) + 0.5
    picture = axis.imshow(shown, cmap=HEAT, vmin=0, vmax=top, extent=(0.5, end, end, 0.5))
    axis.set(xlabel="task", ylabel="tasks seen", title="Each task after each later one")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True))
    axis.get_figure().colorbar(picture, ax=axis, label=label, shrink=0.8)  # pyright: ignore[reportOptionalMemberAccess]
    if len(matrix) <= NUMBERED_UP_TO:
        highest = picture.get_clim()[1] or 1.0
        for n, row in enumerate(matrix.tolist(), 1):
            for k, value in enumerate(row[:n], 1):
                # told from the colour below it
                ink = "w" if value > 0.6 * highest else "k"
                axis.text(k, n, f"{value:.2g}", color=ink, ha="center", va="center", fontsize=8)


def forgetting_curves(axis: Axes, groups: list[dict], scale: float, label: str) -> None:
    """One line for each few consecutive tasks, early ones dark, late ones light."""
    for n, group in enumerate(groups):
        colour = CURVES(0.3 + 0.5 * n / max(len(groups) - 1, 1))
        lost, spread = scale * np.array(group["lost"]), scale * np.array(group["stderr"])
        several = group["last"] > group["first"]
        name = f"tasks {group['first']} to {group['last']}" if several else f"task {group['last']}"
        marker = "." if len(lost) == 1 else ""
        axis.plot(group["seen"], lost, color=colour, label=name, marker=marker)
        axis.fill_between(group["seen"], lost - spread, lost + spread, color=colour, alpha=0.2)
    axis.axhline(0, color=INK, linewidth=0.8)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set(xlabel="tasks seen", ylabel=label, title="What later tasks cost earlier ones")
    axis.spines[["top", "right"]].set_visible(False)
    if len(groups) <= 8:
        axis.legend(frameon=False, fontsize=8)


def growth(
    axis: Axes, lines: dict[str, list[list[int | float]]], label: str, write: Callable[[float], str]
) -> None:
    """Against examples seen, a line per name: the middle, between low and high."""
    for n, (name, points) in enumerate(lines.items()):
        colour = CURVES(0.85 * n / max(len(lines) - 1, 1))
        seen, middle, low, high = np.array(points).T
        axis.plot(seen, middle, color=colour, marker=".", label=name)
        axis.fill_between(seen, low, high, color=colour, alpha=0.2, linewidth=0)
    points = [point for line in lines.values() for point in line]
    log_axis(axis, "x", [seen for seen, *_ in points], in_units)
    log_axis(axis, "y", [value for _, *values in points for value in values], write)
    axis.set(xlabel="examples seen", ylabel=label)
    axis.spines[["top", "right"]].set_visible(False)


def log_axis(
    axis: Axes, which: str, values: list[int | float], write: Callable[[float], str]
) -> None:
    """Logarithmic around these values, with room at the ends, ticks as people write numbers."""
    low, high = min(values) / 1.6, max(values) * 1.6
    subs = (1.0,) if math.log10(high / low) > 2.5 else (1.0, 2.0, 5.0)
    getattr(axis, f"set_{which}scale")("log")
    getattr(axis, f"set_{which}lim")(low, high)
    ticks = getattr(axis, f"{which}axis")
    ticks.set_major_locator(LogLocator(subs=subs))
    ticks.set_major_formatter(FuncFormatter(lambda value, place: write(value)))
    ticks.set_minor_formatter(NullFormatter())


def in_units(value: int | float, units: tuple[str, ...] = ("", "k", "M", "G")) -> str:
    """1,500,000 is 1.5M."""
    power = min(int(math.log10(max(value, 1)) // 3), len(units) - 1)
    return f"{value / 1000**power:.3g}{units[power]}"


def in_bytes(value: int | float) -> str:
    return in_units(value, (" B", " kB", " MB", " GB"))
