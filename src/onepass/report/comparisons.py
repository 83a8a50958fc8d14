"""Figures in which runs of the same question are compared."""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from onepass.plots import INK, forgetting_curves, heat_map
from onepass.report.drawing import Plot, in_bytes, in_units, log_axis, look, plot
from onepass.report.entries import Entry

Numbered = list[tuple[int, Entry]]  # with the place on the page, which decides how it is drawn


def learning_plots(questions: dict[str, Numbered]) -> list[Plot]:
    return [
        _learning(question, runs)
        for question, entries in questions.items()
        if (runs := [(n, entry) for n, entry in entries if entry.training])
    ]


def _learning(question: str, runs: Numbered) -> Plot:
    first = runs[0][1]

    def draw(axis: Axes) -> None:
        values = []
        for n, entry in runs:
            colour, mark, dash = look(n)
            steps = [point.step for point in entry.training]
            errors = [entry.scale * point.error for point in entry.training]
            axis.plot(steps, errors, color=colour, linestyle=dash, label=_short(entry.label))
            values += errors
            held = [entry.scale * point.error for point in entry.validation]
            axis.plot([point.step for point in entry.validation], held, color=colour, alpha=0.5)
            score = entry.result.meta_test
            if score.error is not None:
                values.append(entry.scale * score.error)
                spread = entry.scale * (score.stderr or 0)
                axis.errorbar(steps[-1], values[-1], spread, color=colour, marker=mark)
        axis.set(xlabel="meta-training step", ylabel=f"error{first.unit}")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if not first.percent and max(values) > 4 * min(values) > 0:
            log_axis(axis, "y", values, lambda value: f"{value:g}")
        else:
            axis.set_ylim(bottom=0)

    title = f"{question}: error while meta-training; the mark at the end is meta-test"
    ends = [
        f"{entry.label} from {entry.training[0].error:.3g} to {entry.training[-1].error:.3g}"
        for _, entry in runs
    ]
    return plot(title, f"Lines of error against step: {'; '.join(ends)}.", draw)


def size_plots(questions: dict[str, Numbered]) -> list[Plot]:
    """Error against bytes of state and against parameters, where there are runs to compare."""
    kinds: list[tuple[str, Callable[[Entry], int | None], Callable[[float], str]]] = [
        ("bytes of state", lambda entry: entry.state_bytes, in_bytes),
        ("parameters", lambda entry: entry.parameters, in_units),
    ]
    plots = []
    for question, entries in questions.items():
        scored = [(n, entry) for n, entry in entries if entry.result.meta_test.error is not None]
        for name, size, write in kinds:
            runs = [(n, entry) for n, entry in scored if size(entry)]
            if len(runs) > 1:
                plots.append(_against_size(question, runs, name, size, write))
    return plots


def _against_size(
    question: str,
    runs: Numbered,
    name: str,
    size: Callable[[Entry], int | None],
    write: Callable[[float], str],
) -> Plot:
    def draw(axis: Axes) -> None:
        sizes, errors = [], []
        for n, entry in runs:
            colour, mark, _ = look(n)
            score = entry.result.meta_test
            assert score.error is not None
            sizes.append(float(size(entry) or 1))
            errors.append(entry.scale * score.error)
            spread = entry.scale * (score.stderr or 0)
            label = _short(entry.label)
            # a bar that reaches 0 has no end on a logarithmic axis
            low = min(spread, 0.99 * errors[-1])
            axis.errorbar(
                sizes[-1],
                errors[-1],
                [[low], [spread]],
                color=colour,
                marker=mark,
                markersize=8,
                linestyle="",
                label=label,
            )
        axis.set(xlabel=name, ylabel=f"meta-test error{runs[0][1].unit}")
        log_axis(axis, "x", sizes, write)
        if min(errors) > 0:
            log_axis(axis, "y", errors, lambda value: f"{value:g}")
        axis.grid(color="#868e96", alpha=0.25, linewidth=0.6)

    what = [f"{entry.label} {write(size(entry) or 0)}: {_error(entry)}" for _, entry in runs]
    title = f"{question}: error against {name}; lower left is better"
    return plot(title, f"Marks on logarithmic axes. {'; '.join(what)}.", draw)


def forgetting_plots(questions: dict[str, Numbered]) -> list[Plot]:
    """For each question each run's curves and its whole matrix, then what all of them lose."""
    plots = []
    for question, entries in questions.items():
        runs = [(n, entry) for n, entry in entries if entry.forgetting]
        top = max((_worst(entry) for _, entry in runs), default=0.0)
        for _, entry in runs:
            plots += [_curves(entry), _matrix(entry, top)]
        if len(runs) > 1:
            plots.append(_losses(question, runs))
    return plots


def _losses(question: str, runs: Numbered) -> Plot:
    def draw(axis: Axes) -> None:
        for n, entry in runs:
            assert entry.forgetting
            colour, _, dash = look(n)
            gained = [entry.scale * value for value in entry.forgetting.curve]
            spread = [entry.scale * value for value in entry.forgetting.curve_stderr]
            later = range(len(gained))
            axis.plot(later, gained, color=colour, linestyle=dash, label=_short(entry.label))
            low, high = zip(
                *[(g - s, g + s) for g, s in zip(gained, spread, strict=True)], strict=True
            )
            axis.fill_between(later, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="tasks learned since", ylabel=f"error{runs[0][1].unit} gained")

    ends = [
        f"{entry.label} {entry.scale * entry.forgetting.curve[-1]:.3g}"
        for _, entry in runs
        if entry.forgetting
    ]
    title = f"{question}: what a task loses as more are learned; a flat line forgets nothing"
    return plot(title, f"Error gained after all later tasks: {'; '.join(ends)}.", draw)


def _curves(entry: Entry) -> Plot:
    found = entry.forgetting
    assert found

    def draw(axis: Axes) -> None:
        label = f"error{entry.unit} gained since learning it"
        forgetting_curves(axis, found.groups, entry.scale, label)
        axis.set_title("")
        if legend := axis.get_legend():
            legend.remove()
        if len(found.groups) > 8:
            # their shades say which is which
            for line in axis.get_lines():
                line.set_label("_")

    several = any(group["last"] > group["first"] for group in found.groups)
    each = "five tasks a line" if several else "a task a line"
    title = f"{entry.name}, {found.tasks} tasks: what later tasks cost earlier ones"
    return plot(f"{title} ({each}, first dark)", _transfer(entry), draw)


def _matrix(entry: Entry, top: float) -> Plot:
    found = entry.forgetting
    assert found

    def draw(axis: Axes) -> None:
        matrix = [[entry.scale * value for value in row] for row in found.error]
        heat_map(axis, matrix, f"error{entry.unit}", top or None)
        axis.set_title("")

    title = f"{entry.name}, {found.tasks} tasks: error of each task after each later one"
    return plot(f"{title}; columns darken where it forgets", _transfer(entry), draw, height=3.6)


def _worst(entry: Entry) -> float:
    """The largest error of a task learned already."""
    assert entry.forgetting
    rows = entry.forgetting.error
    return entry.scale * max(max(row[: n + 1]) for n, row in enumerate(rows))


def _transfer(entry: Entry) -> str:
    assert entry.forgetting
    lost, spread = (
        entry.scale * value
        for value in (
            -entry.forgetting.backward_transfer,
            entry.forgetting.backward_transfer_stderr,
        )
    )
    return f"After {entry.forgetting.tasks} tasks a task has lost {lost:.3g} +- {spread:.2g}."


def _error(entry: Entry) -> str:
    error = entry.result.meta_test.error
    return "" if error is None else f"{entry.scale * error:.3g}{' %' if entry.percent else ''}"


def _short(label: str) -> str:
    # a leading underscore would hide it from the legend
    label = label.lstrip("_") or "run"
    return label if len(label) <= 40 else f"{label[:18]} ... {label[-17:]}"
