"""The ledger: a page of results made from the files of finished runs, and from nothing else."""

import json
import os
import tomllib
from collections.abc import Sequence
from pathlib import Path

from onepass.config import from_json
from onepass.files import write_bytes
from onepass.reproduce.comparison import (
    RULE,
    Line,
    markdown_table,
    our_cell,
    pairs,
    pairs_table,
    paper_cell,
)
from onepass.reproduce.rows import (
    TABLES,
    TITLES,
    VIEWS,
    Row,
    Scale,
    departures,
    essence,
    recorded,
    rows_of,
)
from onepass.statistics import Result

STAND_IN = "kanji"  # for the data that few people hold
HEAD = f"""# Results

Every number comes from files in `results/` that one command each wrote: config, command, commit,
seed, date, card, learning curve. This page is made from them by `onepass ledger`. Errors are on
meta-test classes after the whole stream. Spreads are standard deviations over seeds; where there is
one seed, the standard error over its episodes. The paper's are standard deviations over 5 runs.

{RULE}
"""
SHORT = """
The first steps of runs whose full length is 50,000. They show that each learner trains; the paper's
figure is what the full length gave there. Learning curves are in the files and, in brief, in the
[log](log.md).
"""
BEYOND = """
Runs that the paper has not: what is changed is named, and the plain run stands beside it.
"""
PAIRED = """
The same episodes were asked of both, so that what makes an episode easy or hard drops out; below 0
the learner is better than the one it is held against. The standard error is over episodes, and over
seeds where there are several.
"""


def read_results(folder: Path) -> dict[str, Result]:
    """By file name, in order; `reasons.toml` beside them is not one."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} with results")
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.name] = json.loads(path.read_text())
            from_json(found[path.name]["config"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no result of a run: {error}") from error
    return found


def read_reasons(folder: Path) -> dict[str, str]:
    """Why a row came out as it did, where that is known, by `TABLE BENCHMARK LEARNER`."""
    path = folder / "reasons.toml"
    return tomllib.loads(path.read_text()) if path.is_file() else {}


def ledger(results: dict[str, Result], reasons: dict[str, str], link: str = "../results") -> str:
    """The whole page; files are linked below `link`."""
    runs = {name: essence(recorded(result)) for name, result in results.items()}
    full, short, missing, placed = _sorted_in(results, runs)
    sections = [HEAD]
    for table, found in full.items():
        sections.append(f"\n## {TITLES[table]}\n\n{_table(found, table, reasons, link)}")
    if compared := [pair for found in full.values() for pair in pairs([line for line, _ in found])]:
        sections.append(f"\n## On the same episodes\n{PAIRED}\n{pairs_table(compared)}")
    if left := [name for name in results if name not in placed]:
        sections.append(f"\n## Beyond the paper\n{BEYOND}\n{_beyond(left, results, link)}")
    if short:
        sections.append(f"\n## Cut short\n{SHORT}\n{_short_table(short, link)}")
    sections.append(f"\n## Not run yet\n\n{_missing(missing)}")
    sections.append(f"\n## The runs\n\n{_runs(results, link)}")
    return "".join(sections)


Found = list[tuple[Line, list[str]]]  # lines of a table, each with its files


def _sorted_in(
    results: dict[str, Result], runs: dict[str, str]
) -> tuple[dict[str, Found], Found, dict[str, list[Row]], set[str]]:
    """Lines by table, lines cut short, rows without a run, and the files that found their place."""
    full: dict[str, Found] = {}
    short: Found = []
    missing: dict[str, list[Row]] = {}
    placed: set[str] = set()
    asked: set[str] = set()
    for table in TABLES:
        lines, is_news = [], False
        for row in _rows(table):
            wanted = essence(row.config)
            files = [name for name, run in runs.items() if run == wanted]
            # a row that several tables have is missed once
            if not files and row.benchmark == row.column and wanted not in asked:
                missing.setdefault(table, []).append(row)
            asked.add(wanted)
            for names in _by_length(results, files):
                line = Line(row, tuple(results[name] for name in names))
                is_new = not placed.issuperset(names)
                if not line.is_short:
                    lines.append((line, names))
                    is_news = is_news or is_new
                elif is_new:
                    short.append((line, names))
                placed.update(names)
        if is_news:
            full[table] = lines
    return full, short, missing, placed


def _rows(table: str) -> list[Row]:
    """As published, then with other data in the place of CASIA."""
    stand_ins = rows_of(table, Scale(instead=(("casia", STAND_IN),)))
    return rows_of(table, Scale()) + [row for row in stand_ins if row.benchmark != row.column]


def _by_length(results: dict[str, Result], names: list[str]) -> list[list[str]]:
    """Seeds of one length together, the longest first."""
    lengths = sorted({results[name]["steps"] for name in names}, reverse=True)
    return [[name for name in names if results[name]["steps"] == steps] for steps in lengths]


def _table(found: Found, table: str, reasons: dict[str, str], link: str) -> str:
    header = ["benchmark", "learner", "seeds", "meta-test", "paper", "meta-train"]
    rows = []
    for line, names in found:
        row = line.row
        reason = reasons.get(f"{table} {row.benchmark} {row.name}", "")
        verdict = f"{line.verdict}: {reason}" if reason else line.verdict
        scores = [our_cell(line, "meta_test"), paper_cell(line, row.test)]
        scores.append(our_cell(line, "meta_train"))
        seeds = str(len(names))
        rows.append([row.benchmark, row.name, seeds, *scores, verdict, _links(names, link)])
    return markdown_table([*header, "verdict", "files"], rows)


def _short_table(found: Found, link: str) -> str:
    header = ["benchmark", "tasks", "learner", "steps", "seeds", "meta-test", "paper at 50,000"]
    rows = []
    for line, names in found:
        row = line.row
        start = [row.benchmark, str(row.config.tasks), row.name, f"{line.steps:,}", str(len(names))]
        scores = [our_cell(line, "meta_test"), paper_cell(line, row.test)]
        rows.append([*start, *scores, our_cell(line, "meta_train"), _links(names, link)])
    return markdown_table([*header, "meta-train", "files"], rows)


def _beyond(left: list[str], results: dict[str, Result], link: str) -> str:
    header = ["benchmark", "tasks", "learner", "changed", "seed", "steps", "meta-test"]
    rows = []
    for name in left:
        result = results[name]
        line = _own_line(result)
        config = line.row.config
        changed = " ".join(departures(config)) or f"recipe {config.recipe}"
        names = [line.row.column, str(config.tasks), config.learner.name, f"`{changed}`"]
        plain = [our_cell(_own_line(other), "meta_test") for other in _without(result, results)]
        shown = [str(result["seed"]), f"{result['steps']:,}", our_cell(line, "meta_test")]
        shown += [our_cell(line, "meta_train"), ", ".join(plain) or "-"]
        rows.append([*names, *shown, _links([name], link)])
    return markdown_table([*header, "meta-train", "without it", "file"], rows)


def _own_line(result: Result) -> Line:
    """A result that belongs to no row, as one of its own."""
    config = recorded(result)
    view = config.benchmark.options.get("view", "classify")
    column = view if view in VIEWS else config.benchmark.name
    return Line(Row(column, config.learner.name, config), (result,))


def _without(result: Result, results: dict[str, Result]) -> list[Result]:
    """Runs of the same names, shape, length and seed that change nothing."""
    names = ("benchmark", "learner", "tasks", "shots", "queries", "recipe", "steps", "seed")
    return [
        other
        for other in results.values()
        if all(other[name] == result[name] for name in names) and not departures(recorded(other))
    ]


def _missing(missing: dict[str, list[Row]]) -> str:
    lines = []
    for table, rows in missing.items():
        columns: dict[str, list[str]] = {}
        for row in rows:
            columns.setdefault(row.column, []).append(row.name)
        cells = "; ".join(f"{column}: {', '.join(names)}" for column, names in columns.items())
        lines.append(f"- **{table}** ({TITLES[table]}): {cells}.\n")
    return "".join(lines) or "Nothing: every row has a run.\n"


def _runs(results: dict[str, Result], link: str) -> str:
    rows = [
        [
            _links([name], link, name.removesuffix(".json")),
            str(result["seed"]),
            result["date"][:10],
            (result["commit"] or "unknown")[:10],
            result["device"],
            f"{result['seconds']:,.0f}",
            f"`{result['command']}`",
        ]
        for name, result in results.items()
    ]
    header = ["run", "seed", "date", "commit", "device", "seconds", "command"]
    return markdown_table(header, rows)


def _links(names: Sequence[str], link: str, text: str = "json") -> str:
    return " ".join(f"[{text}]({link}/{name})" for name in names)


def write_ledger(results: Path, page: Path) -> int:
    """Make the page anew; how many results it has."""
    found = read_results(results)
    link = os.path.relpath(results, page.parent)
    write_bytes(page, ledger(found, read_reasons(results), link).encode())
    return len(found)
