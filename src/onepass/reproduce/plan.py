"""The runs behind a table of the paper: which there are, which are to do, how long they take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from onepass.commands import file_name
from onepass.config import Config, override
from onepass.data import what_is_missing
from onepass.fast import first_line
from onepass.registry import BENCHMARKS
from onepass.reproduce.comparison import Line
from onepass.reproduce.durations import Expected, expected, in_words
from onepass.reproduce.rows import Row, Scale, rows_of
from onepass.run import Run
from onepass.sweep import Job, jobs_of


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
        return [config for row in self.rows for config in self.configs_of(row)]

    def configs_of(self, row: Row) -> list[Config]:
        """One for each seed."""
        settings = self.settings
        if row.config.learner.name == "offline":
            # it has no meta-training that could be cut short
            settings = [text for text in settings if not text.startswith("steps=")]
        return [override(replace(row.config, seed=n), settings) for n in range(self.seeds)]

    def finished(self, row: Row, out: Path) -> list[Job]:
        return [job for job in jobs_of(self.configs_of(row), out) if job.is_finished]

    def lines(self, out: Path) -> list[Line]:
        """What is finished, row by row."""
        return [
            Line(row, tuple(Run(job.path).read("result.json") for job in self.finished(row, out)))
            for row in self.rows
        ]


def make_plan(
    table: str,
    only: Sequence[str] = (),
    seeds: int = 1,
    settings: Sequence[str] = (),
    tiny: bool = False,
    stand_in: str | None = None,
) -> Plan:
    _check_stand_in(stand_in)
    for text in settings:
        if text.partition("=")[0] == "seed":
            raise ValueError(f"{text}: a table has the seeds from 0 on, as many as --seeds says")
    instead = (("casia", stand_in),) if stand_in else ()
    rows = chosen(rows_of(table, Scale("tiny" if tiny else "paper", instead)), only)
    names = dict.fromkeys(row.config.benchmark.name for row in rows)
    absent = {name: reason for name in names if (reason := what_is_missing(name))}
    if "casia" in absent:
        absent["casia"] += "; --stand-in kanji runs its rows on other characters, labelled so"
    parts = [table, "tiny" if tiny else "", stand_in or "", *only, *settings]
    parts += [f"seeds={seeds}"] if seeds > 1 else []
    name = file_name([part for part in parts if part])
    there = [row for row in rows if row.config.benchmark.name not in absent]
    return Plan(table, name, there, absent, seeds, list(settings))


def _check_stand_in(name: str | None) -> None:
    """What takes the place of characters has to be images by class."""
    takes = {each: BENCHMARKS.options(each) for each in BENCHMARKS}
    fit = [each for each, options in takes.items() if "view" in options and "path" not in options]
    if name is not None and name not in fit:
        raise ValueError(f"--stand-in {name}: no such images; there are: {', '.join(fit)}")


def chosen(rows: list[Row], only: Sequence[str]) -> list[Row]:
    """Rows whose benchmark and learner are among the words, where such words are given."""
    columns = list(dict.fromkeys(row.column for row in rows))
    learners = list(dict.fromkeys(row.config.learner.name for row in rows))
    for word in only:
        if word not in columns + learners:
            raise ValueError(
                f"--only {word}: there is no such row; there are: {', '.join(columns + learners)}"
            )
    wanted = [word for word in only if word in columns] or columns
    by = [word for word in only if word in learners] or learners
    found = [row for row in rows if row.column in wanted and row.config.learner.name in by]
    if not found:
        there = [row.config.learner.name for row in rows if row.column in wanted]
        raise ValueError(
            f"--only {' --only '.join(only)}: there is no such row; of {', '.join(wanted)} there "
            f"are: {', '.join(dict.fromkeys(there))}"
        )
    return found


def dry_run(
    plan: Plan, out: Path, device: torch.device, may_be_on_card: bool = True
) -> Iterator[str]:
    """Every run, and how long it will take; a few steps are taken where nobody ever measured."""
    jobs = jobs_of(plan.configs, out)
    left: list[Expected] = []
    for job in jobs:
        if job.is_finished:
            yield f"{job.path.name}  finished"
            continue
        try:
            found = expected(job, jobs, device, may_be_on_card)
        except (ValueError, OSError, RuntimeError, ArithmeticError) as error:
            # what cannot be timed is said here, and the others are still listed
            found = Expected(None, f": {first_line(error)}")
        left.append(found)
        yield f"{job.path.name}  {in_words(found.seconds)}{found.where}"
    here = sum(each.seconds or 0.0 for each in left if not each.on_card)
    on_card = sum(each.seconds or 0.0 for each in left if each.on_card)
    unknown = sum(each.seconds is None for each in left)
    times = [f"{in_words(on_card)} on one H200"] if on_card else []
    times += [in_words(here) + (" here" if times else "")] if here or not times else []
    beside = f", and {unknown} not measured" if unknown else ""
    yield f"{len(jobs)} run(s), {' and '.join(times)} to go, one after the other{beside}"
    yield from (f"left out: {reason}" for reason in plan.absent.values())
