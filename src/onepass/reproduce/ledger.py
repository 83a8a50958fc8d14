"""The ledger: a page of results made from the files of finished runs, and from nothing else."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from onepass.config import from_json
from onepass.files import write_bytes
from onepass.reproduce.comparison import (
    RULE,
    Line,
    cost_columns,
    filled,
    in_their_std,
    our_cell,
    paper_cell,
)
from onepass.reproduce.kept import ELSEWHERE as ENDING
from onepass.reproduce.kept import (
    BenchRow,
    all_rows,
    read_bench,
    read_elsewhere,
    read_forgetting,
    read_reasons,
    read_results,
    row_key,
)
from onepass.reproduce.losses import Forgotten, losses, losses_table
from onepass.reproduce.pairs import same_episodes
from onepass.reproduce.rows import TABLES, TITLES, VIEWS, Row, departures, essence, recorded
from onepass.statistics import Result
from onepass.tables import markdown_table

HEAD = f"""# Results

Every number comes from files in `results/` that one command each wrote: config, command, commit,
seed, date, card, learning curve. This page is made from them by `onepass ledger`. Errors are on
meta-test classes after the whole stream. Spreads are standard deviations over seeds; where there is
one seed, the standard error over its episodes. The paper's are standard deviations over 5 runs
(Offline: standard errors of 10).

{RULE}
"""
SHORT = """
Runs of fewer than the 50,000 steps of the full length. They show that each learner trains; the
paper's figure is what the full length gave there. *All stages* are those of a full run in less
time: attention is guided in the first fifth of the steps, the rate is halved after each. *The
beginning* is that of a full run, at its full rate. Learning curves are in the files and, in brief,
in the [log](log.md).
"""
COST = """
GB in use and episodes/s of meta-training are what `onepass bench` measured alone on the card with
Omniglot's images, which lie there ready (`kanji` draws its own meanwhile), the newest of
`results/bench`; GB of commits before a2be234d are upper bounds ([log](log.md)). Learners that it
did not time have those of their run, which may have shared the card.
"""
BEYOND = """
Runs that the paper has not: what is changed is named, and the plain run stands beside it.
"""
LOST = """
The error of a task after all later ones minus its error right after it was learned, for runs that
meta-trained with queries in the middle of the stream (OML: at its end). The paper has curves and no
figures.
"""
ELSEWHERE = """
The same weights, asked about data of which meta-training saw nothing.
"""


def ledger(
    results: dict[str, Result],
    reasons: dict[str, str],
    link: str = "../results",
    forgotten: dict[str, Forgotten] | None = None,
    elsewhere: dict[str, list[Result]] | None = None,
    bench: dict[tuple[str, int], BenchRow] | None = None,
) -> str:
    """The whole page; files are linked below `link`."""
    runs = {name: essence(recorded(result)) for name, result in results.items()}
    full, short, missing, placed = _sorted_in(results, runs, forgotten or {})
    if "cost" in full:
        full["cost"] = [_benched(kept, bench or {}) for kept in full["cost"]]
    sections = [HEAD]
    for table, found in full.items():
        said = COST if table == "cost" else ""
        sections.append(f"\n## {TITLES[table]}\n{said}\n{_table(found, reasons, link)}")
    sections.append(same_episodes([kept.line for found in full.values() for kept in found]))
    if lost := _lost(results, runs, forgotten or {}):
        sections.append(f"\n## {TITLES['forgetting']}\n{LOST}\n{lost}")
    if elsewhere:
        sections.append(f"\n## On other data\n{ELSEWHERE}\n{_elsewhere(elsewhere, results, link)}")
    if left := [name for name in results if name not in placed]:
        sections.append(f"\n## Beyond the paper\n{BEYOND}\n{_beyond(left, results, link)}")
    if short:
        sections.append(f"\n## Cut short\n{SHORT}\n{_short_table(short, reasons, link)}")
    sections.append(f"\n## Not run yet\n\n{_missing(missing)}")
    sections.append(f"\n## The runs\n\n{_runs(results, link)}")
    return "".join(sections)


class Kept(NamedTuple):
    """A line of a table, and the files it comes from."""

    table: str
    line: Line
    names: list[str]


def _benched(kept: Kept, bench: dict[tuple[str, int], BenchRow]) -> Kept:
    """With the cost of a step as it was timed alone."""
    config = kept.line.row.config
    if not (timed := bench.get((config.learner.name, config.tasks))):
        return kept
    cost = {"memory_gb": timed["peak_gb"], "episodes_per_s": timed["episodes_per_s"]}
    results = tuple(result | cost for result in kept.line.results)
    return kept._replace(line=replace(kept.line, results=results))


def _sorted_in(
    results: dict[str, Result], runs: dict[str, str], forgotten: dict[str, Forgotten]
) -> tuple[dict[str, list[Kept]], list[Kept], dict[str, list[Row]], set[str]]:
    """Lines by table, lines cut short, rows without a run, and the files that found their place."""
    full: dict[str, list[Kept]] = {}
    short: list[Kept] = []
    missing: dict[str, list[Row]] = {}
    placed: set[str] = set()
    asked: set[str] = set()
    for table in TABLES:
        lines, is_news = [], False
        for row in all_rows(table):
            wanted = essence(row.config)
            files = [name for name, run in runs.items() if run == wanted]
            # a row that several tables have is missed once; but what runs lose is measured apart
            is_missed = not files and wanted not in asked
            if table == "forgetting":
                is_missed = not any(runs.get(name) == wanted for name in forgotten)
            if is_missed:
                missing.setdefault(table, []).append(row)
            asked.add(wanted)
            for names in _by_length(results, files):
                kept = Kept(table, Line(row, tuple(results[name] for name in names)), names)
                is_new = not placed.issuperset(names)
                if not kept.line.is_short:
                    lines.append(kept)
                    is_news = is_news or is_new
                elif is_new:
                    short.append(kept)
            placed.update(files)
        # costs are shown nowhere else
        if is_news or (table == "cost" and lines):
            full[table] = lines
    return full, short, missing, placed


def _by_length(results: dict[str, Result], names: list[str]) -> list[list[str]]:
    """Seeds of one length and one schedule together, the longest first; of one seed, the newest."""
    groups: dict[tuple[int, bool], dict[int, str]] = {}
    for name in sorted(names, key=lambda name: results[name]["date"]):
        result = results[name]
        groups.setdefault((result["steps"], _has_all_stages(result)), {})[result["seed"]] = name
    return [sorted(groups[key].values()) for key in sorted(groups, reverse=True)]


def _has_all_stages(result: Result) -> bool:
    """Whether it goes through what a full run goes through, in whatever time."""
    config = from_json(result["config"])
    return config.halve_every in (None, config.stage)


def _table(found: list[Kept], reasons: dict[str, str], link: str) -> str:
    lines = [kept.line for kept in found]
    columns = {
        "benchmark": lambda line: line.row.benchmark,
        "learner": lambda line: line.row.name,
        "seeds": lambda line: str(len(line.results)),
        "meta-test": lambda line: our_cell(line, "meta_test"),
        "paper": lambda line: paper_cell(line, line.row.test),
        "in their std": in_their_std,
        "meta-train": lambda line: our_cell(line, "meta_train"),
        "paper, meta-train": lambda line: paper_cell(line, line.row.train),
        **cost_columns(lines),
    }
    cells = filled(columns, lines)
    cells["verdict"] = [_verdict(kept, reasons) for kept in found]
    cells["files"] = [_links(kept.names, link) for kept in found]
    return markdown_table(list(cells), list(zip(*cells.values(), strict=True)))


def _verdict(kept: Kept, reasons: dict[str, str]) -> str:
    reason = reasons.get(row_key(kept.table, kept.line.row), "")
    return ": ".join(part for part in (kept.line.verdict, reason) if part)


def _short_table(found: list[Kept], reasons: dict[str, str], link: str) -> str:
    header = ["benchmark", "tasks", "learner", "steps", "of a full run", "seeds", "meta-test"]
    header += ["paper at 50,000"]
    rows = []
    for table, line, names in found:
        row = line.row
        start = [row.benchmark, str(row.config.tasks), row.name, f"{line.steps:,}"]
        is_whole = _has_all_stages(line.results[0])
        start += ["all stages" if is_whole else "the beginning", str(len(names))]
        scores = [our_cell(line, "meta_test"), paper_cell(line, row.test)]
        reason = reasons.get(row_key(table, row), "")
        end = [our_cell(line, "meta_train"), reason, _links(names, link)]
        rows.append([*start, *scores, *end])
    return markdown_table([*header, "meta-train", "known of it", "files"], rows)


def _lost(results: dict[str, Result], runs: dict[str, str], forgotten: dict[str, Forgotten]) -> str:
    """A line for each length of each row of which somebody measured what it loses."""
    found = []
    for row in all_rows("forgetting"):
        kept = [name for name in forgotten if runs.get(name) == essence(row.config)]
        for names in _by_length(results, kept):
            line = Line(row, tuple(results[name] for name in names))
            found.append(losses(line, [forgotten[name] for name in names]))
    return losses_table(found) if found else ""


def _elsewhere(elsewhere: dict[str, list[Result]], results: dict[str, Result], link: str) -> str:
    header = ["meta-trained on", "learner", "steps", "asked about", "tasks x shots", "episodes"]
    rows = []
    for name, scores in elsewhere.items():
        line = _own_line(results[name])
        start = [line.row.benchmark, line.row.name, f"{line.steps:,}"]
        for score in scores:
            asked = f"{score['benchmark']}, meta-{score['split']}"
            shape = [f"{score['tasks']} x {score['shots']}", f"{score['episodes']:,}"]
            there = Line(line.row, (results[name] | {"meta_test": score},))
            errors = [our_cell(each, "meta_test") for each in (there, line)]
            file = name.removesuffix(".json") + ENDING
            rows.append([*start, asked, *shape, *errors, _links([file], link)])
    return markdown_table([*header, "error", "on its own", "file"], rows)


def _beyond(left: list[str], results: dict[str, Result], link: str) -> str:
    header = ["benchmark", "tasks", "learner", "changed", "seed", "steps", "meta-test"]
    rows = []
    for name in left:
        result = results[name]
        line = _own_line(result)
        config = line.row.config
        recipe = [f"--recipe {config.recipe}"] if config.recipe != "paper" else []
        changed = " ".join([*recipe, *departures(config)])
        names = [line.row.benchmark, str(config.tasks), config.learner.name, f"`{changed}`"]
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
    """Runs of the same question, length and seed that change less."""
    names = ("benchmark", "learner", "tasks", "shots", "queries", "recipe", "steps", "seed")

    def asked(other: Result) -> list[Any]:
        view = other["config"]["benchmark"]["options"].get("view", "classify")
        return [view, *(other[name] for name in names)]

    changed = set(departures(recorded(result)))
    return [
        other
        for other in results.values()
        if asked(other) == asked(result) and set(departures(recorded(other))) < changed
    ]


def _missing(missing: dict[str, list[Row]]) -> str:
    lines = []
    for table, rows in missing.items():
        columns: dict[str, list[str]] = {}
        for row in rows:
            columns.setdefault(row.benchmark, []).append(row.name)
        lines.append(f"- **{table}** ({TITLES[table]})\n")
        lines += [f"  - {column}: {', '.join(names)}\n" for column, names in columns.items()]
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
    beside = read_forgetting(results, found), read_elsewhere(results, found), read_bench(results)
    write_bytes(page, ledger(found, read_reasons(results), link, *beside).encode())
    return len(found)
