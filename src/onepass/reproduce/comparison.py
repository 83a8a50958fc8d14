"""Ours and the paper's side by side: one line for each row, its numbers, its verdict, its table."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onepass.reproduce.paper import FULL_STEPS, Published
from onepass.reproduce.rows import Row, departures, essence, recorded
from onepass.statistics import Result, Spread, over_seeds
from onepass.tables import amount, markdown_table, tidy

RULE = """*Reproduced* means within 2 of the paper's standard deviations (a printed 0.0 counts as
0.05, the most it can be), or within 5 % of its figure and within 1 point of error. Otherwise a run
is *better* (a lower error) or *worse*. One seed is judged as several are: single runs lie within 2
deviations nearly always. What was cut short, or has other sizes, settings or data, says so and is
not judged."""


@dataclass(frozen=True)
class Line:
    """A row and the runs made of it, of one length."""

    row: Row
    results: tuple[Result, ...]

    @property
    def scale(self) -> float:
        return 100.0 if self.row.is_class else 1.0

    @property
    def digits(self) -> int:
        return 2 if self.row.is_class else 4

    def ours(self, split: str) -> Spread | None:
        """In the paper's units; None where there are no runs, or no such score."""
        if not self.results or self.results[0][split]["error"] is None:
            return None
        return over_seeds(self.results, split).scaled(self.scale)

    @property
    def steps(self) -> int:
        return max((result["steps"] for result in self.results), default=0)

    @property
    def is_short(self) -> bool:
        # 0 steps are those of a learner with nothing to meta-train
        return 0 < self.steps < FULL_STEPS

    @property
    def verdict(self) -> str:
        ours = self.ours("meta_test")
        if ours is None:
            return "not run"
        if apart := self.apart():
            return f"{', '.join(apart)}: not comparable"
        return judge(ours.mean, self.row.test, self.row.is_class) if self.row.test else ""

    def apart(self) -> list[str]:
        """In what these runs are not the published ones."""
        row = self.row
        found = [f"{row.config.recipe} sizes"] if row.config.recipe != "paper" else []
        if row.is_stand_in:
            found.append("other data")
        found += list(dict.fromkeys(text for run in self.results for text in _changed(row, run)))
        asked = [result["config"]["evaluation_episodes"] for result in self.results]
        if asked and min(asked) < row.config.evaluation_episodes:
            found.append(f"{min(asked):,} episodes")
        if self.is_short:
            found.append(f"cut short at {self.steps:,} steps")
        return [*found, f"{self.steps:,} steps"] if self.steps > FULL_STEPS else found


def _changed(row: Row, result: Result) -> list[str]:
    """The settings of a run that are not those of its row."""
    config = recorded(result)
    if essence(config) == essence(row.config):
        return []
    usual = departures(row.config)
    return [text for text in departures(config) if text not in usual] or ["other settings"]


def judge(ours: float, published: Published, is_class: bool) -> str:
    """Both in the paper's units; the rule is `RULE`."""
    points, hidden = (1.0, 0.05) if is_class else (float("inf"), 0.0)
    room = max(2 * max(published.std, hidden), min(0.05 * published.mean, points))
    # a figure on the edge stays inside whatever its last bit
    if abs(ours - published.mean) <= room + 1e-9:
        return "reproduced"
    return "better" if ours < published.mean else "worse"


def facts(line: Line) -> dict[str, Any]:
    """One flat line, the same for CSV and JSON."""
    row, test, train = line.row, line.ours("meta_test"), line.ours("meta_train")
    found: dict[str, Any] = {"benchmark": row.benchmark, "learner": row.name}
    found |= {"seeds": len(line.results), "steps": line.steps}
    for split, ours, published in (("test", test, row.test), ("train", train, row.train)):
        found[f"{split}_mean"] = ours.mean if ours else None
        found[f"{split}_std"] = ours.std if ours and ours.count > 1 else None
        found[f"{split}_stderr"] = ours.stderr if ours else None
        found[f"paper_{split}_mean"] = published.mean if published else None
        found[f"paper_{split}_std"] = published.std if published else None
    found["difference"] = found["in_their_std"] = None
    # other data are no nearer or further
    if test and row.test and not row.is_stand_in:
        gap = test.mean - row.test.mean
        # a spread that is printed as 0.0 measures nothing
        found |= {"difference": gap, "in_their_std": gap / row.test.std if row.test.std else None}
    found["verdict"] = line.verdict
    if row.cost:
        found |= _cost_facts(line)
    return found


def _cost_facts(line: Line) -> dict[str, Any]:
    assert line.row.cost
    parameters, memory, speed, _ = line.row.cost
    ours = line.results[0] if line.results else {}
    return {
        "parameters_m": ours["parameters"] / 1e6 if ours else None,
        "paper_parameters_m": parameters,
        "memory_gb": ours.get("memory_gb"),
        "paper_memory_gb": memory,
        "episodes_per_s": ours.get("episodes_per_s"),
        "paper_episodes_per_s": speed,
        "device": ours.get("device"),
    }


def our_cell(line: Line, split: str) -> str:
    """Mean and the spread that there is: over seeds, or over episodes where there is one seed."""
    ours = line.ours(split)
    return amount(ours.mean, ours.shown, line.digits) if ours else "-"


def paper_cell(line: Line, published: Published | None) -> str:
    if published is None:
        return "-"
    return amount(published.mean, published.std, 1 if line.row.is_class else 4)


def in_their_std(line: Line) -> str:
    return signed(facts(line)["in_their_std"], 1)


def signed(value: float | None, digits: int) -> str:
    return "-" if value is None else tidy(value, digits, "+")


Columns = dict[str, Callable[[Line], str]]


def comparison_table(lines: Sequence[Line]) -> str:
    """In Markdown; columns that would be empty are left out."""
    columns: Columns = {
        "benchmark": lambda line: line.row.benchmark,
        "learner": lambda line: line.row.name,
        "seeds": lambda line: str(len(line.results)),
        "meta-test": lambda line: our_cell(line, "meta_test"),
        "paper": lambda line: paper_cell(line, line.row.test),
        "difference": lambda line: signed(facts(line)["difference"], line.digits),
        "in their std": in_their_std,
        "meta-train": lambda line: our_cell(line, "meta_train"),
        "paper, meta-train": lambda line: paper_cell(line, line.row.train),
        "verdict": lambda line: line.verdict,
    }
    cells = filled(columns | cost_columns(lines), lines)
    return markdown_table(list(cells), list(zip(*cells.values(), strict=True)))


def cost_columns(lines: Sequence[Line]) -> Columns:
    """What a table of costs has beside its errors."""
    columns: Columns = {}
    names = {"parameters_m": "M parameters", "memory_gb": "GB", "episodes_per_s": "episodes/s"}
    for key, name in names.items() if any(line.row.cost for line in lines) else ():
        for start, title in (("", name), ("paper_", f"paper, {name}")):
            columns[title] = lambda line, key=start + key: amount(facts(line).get(key), None, 1)
    return columns


def filled(columns: Columns, lines: Sequence[Line]) -> dict[str, list[str]]:
    """The cells of each column, top to bottom; a column without any is left out."""
    cells = {name: [show(line) for line in lines] for name, show in columns.items()}
    return {name: column for name, column in cells.items() if set(column) - {"-", ""}}


def csv_table(rows: Sequence[dict[str, Any]]) -> str:
    """Any flat lines; a key that only some of them have is empty in the others."""
    text = io.StringIO()
    keys = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
