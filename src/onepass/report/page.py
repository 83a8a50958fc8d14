"""One self-contained page of any number of runs: no network, no scripts, nothing beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from onepass import __version__
from onepass.files import write_bytes
from onepass.plots import in_bytes
from onepass.report import examples
from onepass.report.comparisons import (
    Questions,
    forgetting_plots,
    learning_plots,
    score_of,
    size_plots,
)
from onepass.report.drawing import Plot
from onepass.report.entries import Entry, expanded, labels, read_entry, settings_of
from onepass.report.methods import Compared, Method, compared, methods
from onepass.run import now
from onepass.statistics import Difference


class Section(NamedTuple):
    """A heading with an anchor, a sentence, and what is to see under it."""

    anchor: str
    title: str
    lead: str
    plots: Sequence[Plot] = ()
    sheets: Sequence[examples.Sheet] = ()
    completions: Sequence[examples.Completion] = ()


def report(paths: Sequence[Path], out: Path, query: int | None = None) -> int:
    """Write the page about these runs; returns its size in bytes."""
    entries = [read_entry(path) for path in expanded(paths)]
    entries = [
        replace(entry, label=label) for entry, label in zip(entries, labels(entries), strict=True)
    ]
    content = render(entries, query).encode()
    write_bytes(out, content)
    return len(content)


def render(entries: list[Entry], query: int | None = None) -> str:
    """The page as text. Everything is escaped but the plots, which matplotlib escaped."""
    named = methods(entries)
    questions = _questions(named)
    answered = [found for method in named if (found := examples.answered(method))]
    sections = _sections(questions, answered, query)
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["settings"] = lambda entry: settings_of(entry.config)
    template = environment.from_string(
        files("onepass.report").joinpath("template.html").read_text()
    )
    return template.render(
        title=_title(entries),
        made=f"onepass {__version__}, {now()[:16].replace('T', ' at ')} UTC",
        head=HEAD,
        rows=[(entry, _row(entry)) for entry in entries],
        compared={
            question: (found.reference.label, [_compared(found, *line) for line in found.lines])
            for question, found in compared(questions).items()
        },
        sections=[section for section in sections if any(section[3:])],
        entries=entries,
        credits=sorted({run.credit for run in answered if run.credit}),
    )


def _questions(named: list[Method]) -> Questions:
    found: Questions = {}
    for method in named:
        found.setdefault(method.first.question, []).append(method)
    return found


def _sections(
    questions: Questions, answered: list[examples.Answered], query: int | None
) -> Iterable[Section]:
    families = list(examples.families(answered).values())

    def of(kind: str) -> list[list[examples.Answered]]:
        return [runs for runs in families if runs[0].kind == kind]

    yield Section(
        "learning",
        "Learning curves",
        "The line is the error on episodes it meta-trains on, the pale one on held-out ones.",
        learning_plots(questions),
    )
    yield Section(
        "sizes",
        "Error against size",
        "State is what one stream leaves behind, measured after its last example.",
        size_plots(questions),
    )
    yield Section(
        "forgetting",
        "Forgetting",
        "Every task is asked about again after every later one.",
        forgetting_plots(questions),
    )
    yield Section(
        "episodes",
        "Episodes",
        "New classes, shown one by one, then asked about. A tick is a right answer, a cross a "
        "wrong one with the class that was answered.",
        sheets=[sheet for runs in of("classes") for sheet in examples.sheets(runs)],
    )
    yield Section(
        "completion",
        "Completed images",
        "Given the half above the line; the truth comes first.",
        completions=[examples.completion(runs) for runs in of("pixels")],
    )
    yield Section(
        "rotation",
        "Rotation",
        "The angle by which a picture was turned. 0 and 360 degrees are the same.",
        [examples.rotation(runs) for runs in of("angle")],
    )
    yield Section(
        "curves",
        "Curves",
        "A noisy curve is given, its shifted twin is asked for.",
        [plot for runs in of("curve") for plot in examples.curves(runs)],
    )
    yield Section(
        "reads",
        "Where it looks",
        "How much of what the last layer reads for one query comes from each example.",
        [plot for run in answered if (plot := examples.reads_plot(run, query))],
    )


HEAD = (
    "run",
    "question",
    "meta-test error",
    "meta-train error",
    "parameters",
    "state",
    "steps",
    "time",
    "card",
    "seed",
    "commit",
)


def _row(entry: Entry) -> list[str]:
    result = entry.result
    return [
        entry.question,
        _score(entry, result.meta_test.error, result.meta_test.stderr),
        _score(entry, result.meta_train.error, result.meta_train.stderr),
        "" if entry.parameters is None else f"{entry.parameters:,}",
        "" if entry.state_bytes is None else in_bytes(entry.state_bytes),
        "" if result.steps is None else f"{result.steps:,}",
        _time(result.seconds),
        result.device or "",
        str(entry.config.seed),
        _commit(result.commit or str(entry.environment.get("commit") or "")),
    ]


def _compared(found: Compared, method: Method, gap: Difference | None) -> list[str]:
    """A method, its seeds and its error; then how far it is from the reference."""
    start = [method.label, str(len(method.entries)), score_of(method)]
    if method is found.reference:
        return [*start, "the reference", ""]
    if gap is None:
        return [*start, "none in common", ""]
    digits, sign = (2, " points") if method.first.percent else (4, "")
    mean, stderr = method.first.scale * gap.mean, method.first.scale * gap.stderr
    return [*start, f"{mean:+.{digits}f} ± {stderr:.{digits}f}{sign}", f"{gap.episodes:,}"]


def _score(entry: Entry, error: float | None, stderr: float | None) -> str:
    if error is None:
        return ""
    digits, sign = (2, " %") if entry.percent else (4, "")
    spread = "" if stderr is None else f" ± {entry.scale * stderr:.{digits}f}"
    return f"{entry.scale * error:.{digits}f}{spread}{sign}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"


def _commit(name: str) -> str:
    """Its first letters, and whether the source had been changed since."""
    return name[:10] + ("-dirty" if name.endswith("-dirty") else "")


def _title(entries: list[Entry]) -> str:
    if len(entries) == 1:
        return f"{entries[0].config.learner.name} on {entries[0].question}"
    return f"{len(entries)} runs compared"
