"""A table of the paper, from the runs that it needs to the page that compares."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onepass.config import Config, override
from onepass.data import what_is_missing
from onepass.files import write_bytes, write_json
from onepass.forgetting import forgetting_of_run
from onepass.plots import save_figure
from onepass.registry import BENCHMARKS
from onepass.reproduce.comparison import (
    RULE,
    Line,
    comparison_table,
    csv_table,
    facts,
    markdown_table,
    pairs,
    pairs_table,
)
from onepass.reproduce.durations import expected_seconds, in_words
from onepass.reproduce.figures import forgetting_figure, scaling_figure
from onepass.reproduce.rows import TITLES, Row, Scale, rows_of
from onepass.run import Run
from onepass.sweep import jobs_of
from onepass.training import pick_device


@dataclass(frozen=True)
class Plan:
    """The runs behind a table: its rows that can be run here, and why others cannot."""

    table: str
    name: str  # of the files it ends in
    rows: list[Row]
    absent: dict[str, str]  # what to put where, by benchmark
    seeds: int
    settings: list[str]

    @property
    def configs(self) -> list[Config]:
        return [self.config(row, seed) for row in self.rows for seed in range(self.seeds)]

    def config(self, row: Row, seed: int) -> Config:
        settings = self.settings
        if row.config.learner.name == "offline":
            # it has no meta-training that could be cut short
            settings = [text for text in settings if not text.startswith("steps=")]
        return override(replace(row.config, seed=seed), settings)

    def lines(self, out: Path) -> list[Line]:
        """What is finished, row by row."""
        found = []
        for row in self.rows:
            configs = [self.config(row, seed) for seed in range(self.seeds)]
            jobs = [job for job in jobs_of(configs, out) if job.is_finished]
            results = tuple(Run(job.path).read("result.json") for job in jobs)
            found.append(Line(replace(row, config=configs[0]), results))
        return found


def make_plan(
    table: str,
    only: Sequence[str] = (),
    seeds: int = 1,
    settings: Sequence[str] = (),
    tiny: bool = False,
    stand_in: str | None = None,
) -> Plan:
    if stand_in is not None and stand_in not in BENCHMARKS:
        raise ValueError(f"no benchmark {stand_in!r}; there are: {', '.join(BENCHMARKS)}")
    instead = (("casia", stand_in),) if stand_in else ()
    rows = chosen(rows_of(table, Scale("tiny" if tiny else "paper", instead)), only)
    names = dict.fromkeys(row.config.benchmark.name for row in rows)
    absent = {name: reason for name in names if (reason := what_is_missing(name))}
    name = "-".join([table, *(["tiny"] if tiny else []), *([stand_in] if stand_in else [])])
    there = [row for row in rows if row.config.benchmark.name not in absent]
    return Plan(table, name, there, absent, seeds, list(settings))


def chosen(rows: list[Row], only: Sequence[str]) -> list[Row]:
    """Rows whose benchmark and learner are among the words, where such words are given."""
    columns, learners = (list(dict.fromkeys(words)) for words in _words(rows))
    for word in only:
        if word not in columns + learners:
            raise ValueError(
                f"--only {word}: there is no such row; there are: {', '.join(columns + learners)}"
            )
    wanted = [word for word in only if word in columns] or columns
    by = [word for word in only if word in learners] or learners
    return [row for row in rows if row.column in wanted and row.config.learner.name in by]


def _words(rows: list[Row]) -> tuple[list[str], list[str]]:
    return [row.column for row in rows], [row.config.learner.name for row in rows]


def dry_run(plan: Plan, out: Path) -> str:
    """Every run, and how long it will take where that was ever measured."""
    jobs = jobs_of(plan.configs, out)
    lines, total, unknown = [], 0.0, 0
    for job in jobs:
        if job.is_finished:
            lines.append(f"{job.path.name}  finished")
            continue
        seconds, where = expected_seconds(job.config, jobs)
        total, unknown = total + (seconds or 0.0), unknown + (seconds is None)
        lines.append(f"{job.path.name}  {in_words(seconds)}{where}")
    beside = f", and {unknown} not measured" if unknown else ""
    lines.append(f"{len(jobs)} run(s), {in_words(total)} to go, one after the other{beside}")
    lines += [f"left out: {reason}" for reason in plan.absent.values()]
    return "\n".join(lines)


def write_table(plan: Plan, out: Path, device: str) -> str:
    """Markdown, CSV, JSON, and a figure where the paper has one; the Markdown is handed back."""
    lines = plan.lines(out)
    page = [f"# {title_of(plan)}\n"]
    content: dict[str, Any] = {"table": plan.table, "rows": [facts(line) for line in lines]}
    if lines:
        page.append(f"{comparison_table(lines)}\nSpreads: over seeds, or over episodes. {RULE}\n")
    if content.setdefault("paired", pairs(lines)):
        page.append(
            f"On the same episodes (below 0 is better):\n\n{pairs_table(content['paired'])}"
        )
    if plan.table == "forgetting":
        content["forgetting"] = _forgetting(plan, out, device)
        page.append(_forgetting_table(content["forgetting"]))
        save_figure(forgetting_figure(content["forgetting"]), out / f"{plan.name}.png")
    if plan.table == "scaling":
        save_figure(scaling_figure(lines), out / f"{plan.name}.png")
    page += [f"Left out: {reason}\n" for reason in plan.absent.values()]
    text = "\n".join(page)
    write_bytes(out / f"{plan.name}.md", text.encode())
    write_bytes(out / f"{plan.name}.csv", csv_table(lines).encode())
    write_json(out / f"{plan.name}.json", content | {"left_out": plan.absent})
    return text


def title_of(plan: Plan) -> str:
    """The paper's, and in what these runs are not as published."""
    config = plan.config(plan.rows[0], 0)
    tiny = f"tiny sizes, {config.tasks} tasks" if config.recipe == "tiny" else ""
    other = [*([tiny] if tiny else []), *plan.settings]
    return TITLES[plan.table] + (f" ({', '.join(other)})" if other else "")


def _forgetting(plan: Plan, out: Path, device: str) -> list[dict[str, Any]]:
    """What each run loses of a task by later ones; measured once, kept in its folder."""
    found = []
    for row in plan.rows:
        config = plan.config(row, 0)
        (job,) = jobs_of([config], out)
        if not job.is_finished:
            continue
        if not Run(job.path).has("forgetting.json"):
            episodes = min(256, config.evaluation_episodes)
            forgetting_of_run(job.path, {}, episodes, config.seed, pick_device(device))
        scale = 100.0 if row.is_class else 1.0
        lost = Run(job.path).read("forgetting.json")
        found.append(
            {"benchmark": row.benchmark, "learner": row.name, "scale": scale}
            | {key: lost[key] for key in ("episodes", "curve", "curve_stderr")}
            | {key: lost[key] for key in ("backward_transfer", "backward_transfer_stderr")}
        )
    return found


def _forgetting_table(found: list[dict[str, Any]]) -> str:
    header = ["benchmark", "learner", "lost by the first task", "lost by a task, mean", "episodes"]

    def cell(run: dict[str, Any], mean: float, stderr: float) -> str:
        return f"{run['scale'] * mean:.4g} +- {run['scale'] * stderr:.2g}"

    return markdown_table(
        header,
        [
            [
                run["benchmark"],
                run["learner"],
                cell(run, run["curve"][-1], run["curve_stderr"][-1]),
                cell(run, -run["backward_transfer"], run["backward_transfer_stderr"]),
                str(run["episodes"]),
            ]
            for run in found
        ],
    )
