"""Ours and the paper's side by side: one line for each row, its numbers, its verdict, its table."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from onepass.reproduce.paper import FULL_STEPS, Published
from onepass.reproduce.rows import Row
from onepass.statistics import Result, Spread, over_seeds, paired

RULE = """*Reproduced* means within 2 of the paper's standard deviations, or within 15 % of its
figure and 1.5 points of error; otherwise a run is *better* (a lower error) or *worse*."""
REFERENCE = "transformer"  # what the other learners are held against, episode by episode


@dataclass(frozen=True)
class Line:
    """A row and the runs made of it, of one length."""

    row: Row
    results: tuple[Result, ...]

    @property
    def scale(self) -> float:
        return 100.0 if self.row.is_class else 1.0

    def ours(self, split: str) -> Spread | None:
        """In the paper's units; None where there are no runs, or no such score."""
        if not self.results or self.results[0][split]["error"] is None:
            return None
        found = over_seeds(self.results, split)
        scale = self.scale
        return Spread(found.mean * scale, found.std * scale, found.stderr * scale, found.count)

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
        if self.row.config.recipe != "paper":
            return f"{self.row.config.recipe}, not comparable"
        if self.is_short:
            return f"cut short at {self.steps:,} steps"
        if "in its place" in self.row.benchmark:
            return "other data, not comparable"
        return judge(ours.mean, self.row.test, self.row.is_class) if self.row.test else ""


def judge(ours: float, published: Published, is_class: bool) -> str:
    """Both in the paper's units; the rule is `RULE`."""
    points = 1.5 if is_class else float("inf")
    room = max(2 * published.std, min(0.15 * published.mean, points))
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
    if test and row.test:
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


def pairs(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Every learner against the transformer of its column, on the same episodes."""
    found = []
    for reference in lines:
        if reference.row.name != REFERENCE:
            continue
        for line in lines:
            if line.row.benchmark != reference.row.benchmark or line is reference:
                continue
            gap = paired(line.results, reference.results)
            if gap is not None:
                names = {"benchmark": line.row.benchmark, "learner": line.row.name}
                values = {"difference": line.scale * gap.mean, "stderr": line.scale * gap.stderr}
                counts = {"seeds": gap.seeds, "episodes": gap.episodes}
                found.append(names | {"against": REFERENCE} | values | counts)
    return found


def amount(mean: float | None, spread: float | None, digits: int) -> str:
    """`12.88 +- 0.14`, or a dash."""
    if mean is None:
        return "-"
    return f"{mean:.{digits}f}" + ("" if spread is None else f" +- {spread:.{digits}f}")


def our_cell(line: Line, split: str) -> str:
    """Mean and the spread that there is: over seeds, or over episodes where there is one seed."""
    ours = line.ours(split)
    if ours is None:
        return "-"
    return amount(ours.mean, ours.std if ours.count > 1 else ours.stderr, digits(line))


def paper_cell(line: Line, published: Published | None) -> str:
    if published is None:
        return "-"
    return amount(published.mean, published.std, 1 if line.row.is_class else 4)


def digits(line: Line) -> int:
    return 2 if line.row.is_class else 4


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def comparison_table(lines: Sequence[Line]) -> str:
    """In Markdown; columns that would be empty are left out."""
    columns: dict[str, Callable[[Line], str]] = {
        "benchmark": lambda line: line.row.benchmark,
        "learner": lambda line: line.row.name,
        "seeds": lambda line: str(len(line.results)),
        "meta-test": lambda line: our_cell(line, "meta_test"),
        "paper": lambda line: paper_cell(line, line.row.test),
        "difference": lambda line: _number(facts(line)["difference"], digits(line)),
        "in their std": lambda line: _number(facts(line)["in_their_std"], 1),
        "meta-train": lambda line: our_cell(line, "meta_train"),
        "paper, meta-train": lambda line: paper_cell(line, line.row.train),
        "": lambda line: line.verdict,
    }
    if any(line.row.cost for line in lines):
        for name, key in (
            ("M parameters", "parameters_m"),
            ("GB", "memory_gb"),
            ("episodes/s", "episodes_per_s"),
        ):
            columns[name] = lambda line, key=key: amount(facts(line).get(key), None, 1)
            columns[f"paper, {name}"] = lambda line, key=key: amount(
                facts(line).get(f"paper_{key}"), None, 1
            )
    cells = {name: [show(line) for line in lines] for name, show in columns.items()}
    cells = {name: column for name, column in cells.items() if set(column) - {"-"}}
    return markdown_table(list(cells), list(zip(*cells.values(), strict=True)))


def pairs_table(found: Sequence[dict[str, Any]]) -> str:
    header = ["benchmark", "learner", "against", "difference", "seeds", "episodes"]
    return markdown_table(
        header,
        [
            [
                pair["benchmark"],
                pair["learner"],
                pair["against"],
                f"{pair['difference']:+.4g} +- {pair['stderr']:.2g}",
                str(pair["seeds"]),
                f"{pair['episodes']:,}",
            ]
            for pair in found
        ],
    )


def csv_table(lines: Sequence[Line]) -> str:
    rows = [facts(line) for line in lines]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:+.{digits}f}"
