"""The files of `results/`: what runs came to, what they lose, and why, where that is known."""

import json
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from onepass.config import first_problem
from onepass.forgetting import Forgetting
from onepass.reproduce.losses import Forgotten
from onepass.reproduce.rows import TABLES, Row, Scale, recorded, rows_of
from onepass.run import Run
from onepass.statistics import Result

BenchRow = dict[str, Any]
# what the page says of a run
NEEDED = ("benchmark", "learner", "tasks", "shots", "queries", "recipe", "seed", "steps", "seconds")
NEEDED += ("meta_test", "meta_train", "parameters", "command", "commit", "date", "device")
STAND_IN = "kanji"  # for the data that few people hold
# ends of the names of what lies beside a result: what the run loses, how it does on other data
FORGETTING, ELSEWHERE = BESIDE = ".forgetting.json", ".elsewhere.json"


def keep_run(path: Path, results: Path) -> None:
    """Its result, what it loses and how it does on other data where that was measured.

    All under the name of its folder.
    """
    run, kept, name = Run(path), Run(results), path.resolve().name
    result = run.read("result.json")
    if kept.has(f"{name}.json") and kept.read(f"{name}.json") != result:
        raise ValueError(f"{results / name}.json is another run's: rename the folder {path}")
    kept.write(f"{name}.json", result)
    if run.has("forgetting.json"):
        kept.write(f"{name}{FORGETTING}", run.read("forgetting.json"))
    scores = run.evaluations()
    if others := [score for score in scores if score["benchmark"] != result["benchmark"]]:
        kept.write(f"{name}{ELSEWHERE}", others)


def read_results(folder: Path) -> dict[str, Result]:
    """By file name, in order; what else lies beside them is not one."""
    if not folder.is_dir():
        raise ValueError(f"there is no folder {folder} with results")
    found = {}
    for path in result_files(folder):
        try:
            found[path.name] = json.loads(path.read_text())
            recorded(found[path.name])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is no result of a run: {error}") from error
        if absent := [key for key in NEEDED if key not in found[path.name]]:
            raise ValueError(f"{path} is no result of a run: it lacks {', '.join(absent)}")
    return found


def result_files(folder: Path) -> list[Path]:
    """In order, without what lies beside them."""
    return [path for path in sorted(folder.glob("*.json")) if not path.name.endswith(BESIDE)]


def read_forgetting(folder: Path, results: Collection[str]) -> dict[str, Forgotten]:
    """What later tasks cost earlier ones, by the file name of the result."""
    return _beside(folder, FORGETTING, results, TypeAdapter(Forgetting))


def read_elsewhere(folder: Path, results: Collection[str]) -> dict[str, list[Result]]:
    """Scores on other data than a run's own, by the file name of the result."""
    return _beside(folder, ELSEWHERE, results, TypeAdapter(list[dict[str, Any]]))


def _beside(
    folder: Path, ending: str, results: Collection[str], kind: TypeAdapter[Any]
) -> dict[str, Any]:
    """Files that belong to one of the results, each of this kind."""
    found = {}
    for path in sorted(folder.glob(f"*{ending}")):
        name = f"{path.name.removesuffix(ending)}.json"
        if name not in results:
            raise ValueError(f"{path} lies beside no {name}, to which it would belong")
        content = Run(folder).read(path.name)
        try:
            kind.validate_python(content)
        except ValidationError as error:
            raise ValueError(f"{path}: {first_problem(error)}") from error
        found[name] = content
    return found


def read_bench(folder: Path) -> dict[tuple[str, int], BenchRow]:
    """The newest row that `onepass bench` has of each learner and number of tasks on a card."""
    found: dict[tuple[str, int], BenchRow] = {}
    for path in sorted((folder / "bench").glob("*.json")):
        for row in json.loads(path.read_text()):
            key = row["learner"], row["tasks"]
            is_newest = key not in found or row["date"] >= found[key]["date"]
            is_usual = row["device"] == "cuda" and not row["failed"] and not row["settings"]
            if is_usual and is_newest:
                found[key] = row
    return found


def read_reasons(folder: Path) -> dict[str, str]:
    """Why a row came out as it did, where that is known, by `TABLE BENCHMARK LEARNER`."""
    path = folder / "reasons.toml"
    try:
        reasons = tomllib.loads(path.read_text()) if path.is_file() else {}
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is no TOML: {error}") from error
    known = [row_key(table, row) for table in TABLES for row in all_rows(table)]
    for key in reasons:
        if key not in known:
            raise ValueError(f"{path}: there is no row {key!r}; a key is TABLE BENCHMARK LEARNER")
    return reasons


def row_key(table: str, row: Row) -> str:
    return f"{table} {row.benchmark} {row.name}"


def all_rows(table: str) -> list[Row]:
    """As published, then with other data in the place of CASIA."""
    stand_ins = rows_of(table, Scale(instead=(("casia", STAND_IN),)))
    return rows_of(table, Scale()) + [row for row in stand_ins if row.is_stand_in]
