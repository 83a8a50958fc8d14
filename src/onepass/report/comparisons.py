"""Figures in which methods are compared on the same question."""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from onepass.forgetting import Forgetting
from onepass.plots import INK, forgetting_curves, heat_map, in_bytes, in_units, log_axis
from onepass.report.drawing import Plot, look, plot
from onepass.report.entries import Entry
from onepass.report.methods import Method

Questions = dict[str, list[Method]]


def learning_plots(questions: Questions) -> list[Plot]:
    return [
        _learning(question, shown)
        for question, methods in questions.items()
        if (shown := [method for method in methods if any(e.training for e in method.entries)])
    ]


def _learning(question: str, methods: list[Method]) -> Plot:
    first = methods[0].first

    def draw(axis: Axes) -> None:
        values = [value for method in methods for value in _draw_learning(axis, method)]
        axis.set(xlabel="meta-training step", ylabel=f"error{first.unit}")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if not first.percent and max(values) > 4 * min(values) > 0:
            log_axis(axis, "y", values, lambda value: f"{value:g}")
        else:
            axis.set_ylim(0, 1.08 * max(values) or 1)

    title = f"{question}: error while meta-training; the mark at the end is meta-test"
    ends = [
        f"{method.label} from {_amount(entry, entry.training[0].error)} to "
        f"{_amount(entry, entry.training[-1].error)}"
        for method in methods
        for entry in method.entries
        if entry.training
    ]
    return plot(title, f"Lines of error against step: {'; '.join(ends)}.", draw)


def _draw_learning(axis: Axes, method: Method) -> list[float]:
    """A line for each seed, all alike, and where they end; the errors that were drawn."""
    colour, mark, dash = look(method.number)
    values, last = [], 0
    for entry in method.entries:
        steps = [point.step for point in entry.training]
        errors = [entry.scale * point.error for point in entry.training]
        # named once, however many seeds there are
        label = "" if last else _short(method.label)
        # a single point is no line
        alone = mark if len(steps) == 1 else ""
        axis.plot(steps, errors, color=colour, linestyle=dash, marker=alone, label=label)
        held = [entry.scale * point.error for point in entry.validation]
        axis.plot([point.step for point in entry.validation], held, color=colour, alpha=0.5)
        values, last = values + errors, max([last, *steps])
    if score := method.score:
        axis.errorbar(last, score.mean, score.shown, color=colour, marker=mark)
        values.append(score.mean)
    return values


def size_plots(questions: Questions) -> list[Plot]:
    """Error against bytes of state and against parameters, where there is something to compare."""
    kinds: list[tuple[str, Callable[[Entry], int | None], Callable[[float], str]]] = [
        ("bytes of state", lambda entry: entry.state_bytes, in_bytes),
        ("parameters", lambda entry: entry.parameters, in_units),
    ]
    plots = []
    for question, methods in questions.items():
        for name, size, write in kinds:
            shown = [method for method in methods if method.score and size(method.first)]
            if len(shown) > 1:
                plots.append(_against_size(question, shown, name, size, write))
    return plots


def _against_size(
    question: str,
    methods: list[Method],
    name: str,
    size: Callable[[Entry], int | None],
    write: Callable[[float], str],
) -> Plot:
    def draw(axis: Axes) -> None:
        sizes, errors, tops = [], [], []
        for method in methods:
            colour, mark, _ = look(method.number)
            score = method.score
            assert score
            tops.append(score.mean + score.shown)
            sizes.append(float(size(method.first) or 1))
            errors.append(score.mean)
            # a bar that reaches 0 has no end on a logarithmic axis
            low = min(score.shown, 0.99 * score.mean)
            axis.errorbar(
                sizes[-1],
                score.mean,
                [[low], [score.shown]],
                color=colour,
                marker=mark,
                markersize=8,
                linestyle="",
                label=_short(method.label),
            )
        axis.set(xlabel=name, ylabel=f"meta-test error{methods[0].first.unit}")
        log_axis(axis, "x", sizes, write)
        if max(errors) > 3 * min(errors) > 0:
            log_axis(axis, "y", errors, lambda value: f"{value:g}")
        else:
            axis.set_ylim(0, 1.15 * max(tops) or 1)
        axis.grid(color="#868e96", alpha=0.25, linewidth=0.6)

    what = [
        f"{method.label} {write(size(method.first) or 0)}: {score_of(method)}" for method in methods
    ]
    title = f"{question}: error against {name}; lower left is better"
    return plot(title, f"Marks, the size on a logarithmic axis. {'; '.join(what)}.", draw)


def forgetting_plots(questions: Questions) -> list[Plot]:
    """For each question each method's curves and whole matrix, then what all of them lose."""
    plots = []
    for question, methods in questions.items():
        found = [(method, lost) for method in methods if (lost := method.forgetting)]
        top = max((_worst(method, lost) for method, lost in found), default=0.0)
        for method, lost in found:
            plots += [_curves(method, lost), _matrix(method, lost, top)]
        if len(found) > 1:
            plots.append(_losses(question, found))
    return plots


def _losses(question: str, found: list[tuple[Method, Forgetting]]) -> Plot:
    def draw(axis: Axes) -> None:
        for method, lost in found:
            colour, _, dash = look(method.number)
            scale = method.first.scale
            gained = [scale * value for value in lost.curve]
            spread = [scale * value for value in lost.curve_stderr]
            later = range(len(gained))
            axis.plot(later, gained, color=colour, linestyle=dash, label=_short(method.label))
            low, high = zip(
                *[(g - s, g + s) for g, s in zip(gained, spread, strict=True)], strict=True
            )
            axis.fill_between(later, low, high, color=colour, alpha=0.2, linewidth=0)
        axis.axhline(0, color=INK, linewidth=0.8)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.set(xlabel="tasks learned since", ylabel=f"error{found[0][0].first.unit} gained")

    ends = [
        f"{method.label} {_spread(method.first, lost.curve[-1], lost.curve_stderr[-1])}"
        for method, lost in found
    ]
    title = f"{question}: what a task loses as more are learned; a flat line forgets nothing"
    return plot(title, f"Error gained after all later tasks: {'; '.join(ends)}.", draw)


def _curves(method: Method, found: Forgetting) -> Plot:
    entry = method.first

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
    title = f"{_name(method)}, {found.tasks} tasks: what later tasks cost earlier ones"
    return plot(f"{title} ({each}, first dark)", _transfer(method, found), draw)


def _matrix(method: Method, found: Forgetting, top: float) -> Plot:
    entry = method.first

    def draw(axis: Axes) -> None:
        matrix = [[entry.scale * value for value in row] for row in found.error]
        heat_map(axis, matrix, f"error{entry.unit}", top or None)
        axis.set_title("")

    title = f"{_name(method)}, {found.tasks} tasks: error of each task after each later one"
    alt = _transfer(method, found)
    return plot(f"{title}; columns darken where it forgets", alt, draw, height=3.6)


def _worst(method: Method, found: Forgetting) -> float:
    """The largest error of a task learned already."""
    return method.first.scale * max(max(row[: n + 1]) for n, row in enumerate(found.error))


def _transfer(method: Method, found: Forgetting) -> str:
    lost = _spread(method.first, -found.backward_transfer, found.backward_transfer_stderr)
    return f"After {found.tasks} tasks a task has lost {lost}."


def _name(method: Method) -> str:
    return f"{method.label} on {method.first.asked}"


def score_of(method: Method) -> str:
    """In words, never without its spread."""
    score, entry = method.score, method.first
    if score is None:
        return ""
    digits, sign = (2, " %") if entry.percent else (4, "")
    return f"{score.mean:.{digits}f} ± {score.shown:.{digits}f}{sign}"


def _spread(entry: Entry, mean: float, stderr: float) -> str:
    sign = " %" if entry.percent else ""
    return f"{entry.scale * mean:.3g} ± {entry.scale * stderr:.2g}{sign}"


def _amount(entry: Entry, error: float) -> str:
    return f"{entry.scale * error:.3g}{' %' if entry.percent else ''}"


def _short(label: str) -> str:
    # a leading underscore would hide it from the legend
    label = label.lstrip("_") or "run"
    return label if len(label) <= 40 else f"{label[:18]} ... {label[-17:]}"
