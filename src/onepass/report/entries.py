"""What a page can say about a run, from whatever files it has; the rest is noted, not fatal."""

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import ConfigDict, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from onepass.config import Config, first_problem, from_json, resolved, to_json
from onepass.describe import asks_for_classes, describe
from onepass.forgetting import Forgetting
from onepass.reproduce.kept import BESIDE, FORGETTING, result_files
from onepass.reproduce.rows import said_today
from onepass.run import Run

LENIENT = ConfigDict(extra="ignore")
T = TypeVar("T")
LONGEST_LABEL = 48
# settings that change nothing that a run comes to
PROCEDURE = ("log_every", "checkpoint_every", "evaluate_every", "evaluation_batch")


@validated(frozen=True, config=LENIENT)
class Score:
    error: FiniteFloat | None = None
    stderr: FiniteFloat | None = None
    episode_error: list[FiniteFloat] = field(default_factory=list)


@validated(frozen=True, config=LENIENT)
class Result:
    """What is shown of `result.json`."""

    meta_test: Score = Score()
    meta_train: Score = Score()
    parameters: int | None = None
    state_bytes: int | None = None
    steps: int | None = None
    seconds: FiniteFloat | None = None
    device: str | None = None
    command: str | None = None
    commit: str | None = None
    date: str | None = None
    curve: list[dict[str, Any]] = field(default_factory=list)


class Point(NamedTuple):
    step: int
    error: float


@dataclass(frozen=True)
class Entry:
    """One run on the page. Errors are fractions of classes where `percent` is true."""

    path: Path
    config: Config
    percent: bool
    result: Result
    training: list[Point]
    validation: list[Point]
    forgetting: Forgetting | None
    environment: dict[str, Any]
    parameters: int | None
    state_bytes: int | None
    notes: list[str]
    label: str = ""

    @property
    def asked(self) -> str:
        """The benchmark, and what is asked of its images where that is not their class."""
        benchmark = self.config.benchmark
        view = benchmark.options.get("view", "classify")
        return benchmark.name if view == "classify" else f"{benchmark.name}, {view}"

    @property
    def question(self) -> str:
        """Only runs of the same question are compared."""
        return f"{self.asked}, {self.config.tasks} tasks x {self.config.shots} shots"

    @property
    def scale(self) -> float:
        return 100.0 if self.percent else 1.0

    @property
    def unit(self) -> str:
        return " in %" if self.percent else ""


def expanded(paths: Sequence[Path]) -> list[Path]:
    """A folder of runs, or of result files, is all of them; what lies beside one is none."""
    found = []
    for path in paths:
        if path.name.endswith(BESIDE) or (path.suffix == ".log" and path.with_suffix("").is_dir()):
            continue
        below = sorted(path.iterdir()) if path.is_dir() and not _is_run(path) else []
        files = result_files(path) if below else []
        found += [each for each in below if _is_run(each)] or files or [path]
    return found


def _is_run(path: Path) -> bool:
    return Run(path).has("config.json") or Run(path).has("result.json")


def read_entry(path: Path) -> Entry:
    """From a run's folder, or from a result file of one."""
    notes: list[str] = []
    if path.is_dir():
        run, files = Run(path), {"result": "result.json", "environment": "environment.json"}
    elif path.is_file():
        run, files = Run(path.parent), {"result": path.name}
    else:
        raise ValueError(f"{path} is not a run: there is no such folder or file")
    raw = {name: _read(run, file, notes) for name, file in files.items()}
    config = _config(run, raw["result"], path)
    result = _validated(Result, raw["result"] or {}, files["result"], notes) or Result()
    if result.meta_test.error is None:
        notes.append("there is no score: its training goes on, or its result is damaged")
    metrics = run.read_metrics() if path.is_dir() else []
    # of a result file, as the ledger keeps it
    beside = "forgetting.json" if path.is_dir() else path.name.removesuffix(".json") + FORGETTING
    lost = _read(run, beside, [])
    environment = raw.get("environment")
    parameters, state_bytes = _sizes(config, result, notes)
    return Entry(
        path=path,
        config=config,
        percent=_asks_for_classes(config),
        result=result,
        training=_points([line for line in metrics or result.curve if "split" not in line]),
        validation=_points([line for line in metrics if "split" in line]),
        forgetting=None if lost is None else _forgetting(lost, notes),
        environment=environment if isinstance(environment, dict) else {},
        parameters=parameters,
        state_bytes=state_bytes,
        notes=notes,
    )


def labels(entries: list[Entry]) -> list[str]:
    """The learner, what sets it apart from others of its name, or else the place it lies in."""
    names = [_told_apart(entry, entries) for entry in entries]
    if max(len(name) for name in names) > LONGEST_LABEL:
        names = []
    places = [entry.path.stem if entry.path.is_file() else entry.path.name for entry in entries]
    seedless = [re.sub(r"-seed\d+$", "", place) for place in places]
    for choice in (names, seedless, places):
        if len(set(choice)) == len(entries):
            return choice
    return [str(entry.path) for entry in entries]


def _told_apart(entry: Entry, entries: list[Entry]) -> str:
    name, own = entry.config.learner.name, deciding(entry)
    named = [other for other in entries if other.config.learner.name == name]
    parts = [name]
    if len({other.asked for other in named}) > 1:
        parts.append(entry.asked)
    rivals = [deciding(other) for other in named if other.question == entry.question]
    parts += [
        f"{key.rpartition('.')[2]} {value}"
        for key, value in own.items()
        if any(other.get(key, value) != value for other in rivals)
    ]
    return ", ".join(parts)


def deciding(entry: Entry) -> dict[str, Any]:
    """Every setting that changes what a run comes to, as it would be typed today."""
    config, device = entry.config, entry.result.device
    # a recipe or a benchmark of one's own may not be here
    with suppress(ValueError, OSError):
        config = resolved(said_today(config))
    if device:
        kind = "cpu" if device == "cpu" else "cuda"
        config = replace(config, precision=config.precision_on(kind))
    return {key: value for key, value in settings_of(config).items() if key not in PROCEDURE}


def settings_of(config: Config) -> dict[str, Any]:
    """Every setting as it can be typed."""
    flat = {}
    for key, value in to_json(config).items():
        if isinstance(value, dict):
            flat[key] = value["name"]
            flat |= {f"{key}.{option}": chosen for option, chosen in value["options"].items()}
        else:
            flat[key] = value
    return flat


def _read(run: Run, name: str, notes: list[str]) -> Any:
    if not run.has(name):
        notes.append(f"it has no {name}")
        return None
    try:
        return run.read(name)
    except ValueError as error:
        notes.append(str(error))
        return None


def _config(run: Run, result: Any, path: Path) -> Config:
    """Its own, or the one that its result was written with."""
    if path.is_dir() and run.has("config.json"):
        return run.config
    if not isinstance(result, dict) or "config" not in result:
        missing = "config.json and no result.json" if path.is_dir() else "config of a run in it"
        raise ValueError(f"{path} is not a run: it has no {missing}")
    try:
        return from_json(result["config"])
    except ValueError as error:
        raise ValueError(f"{path} does not fit this version of onepass: {error}") from error


def _validated(kind: type[T], content: Any, name: str, notes: list[str]) -> T | None:
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        notes.append(f"{name} is damaged: {first_problem(error)}")
        return None


def _forgetting(content: Any, notes: list[str]) -> Forgetting | None:
    found = _validated(Forgetting, content, "forgetting.json", notes)
    if found is None or _is_whole(found):
        return found
    notes.append("forgetting.json is damaged: its parts do not fit each other")
    return None


def _is_whole(found: Forgetting) -> bool:
    """A square matrix, a point on the curve for every task, and groups with all their numbers."""
    rows = [found.error, *found.error, found.curve, found.curve_stderr]
    parts = [[group.get(key, []) for key in ("seen", "lost", "stderr")] for group in found.groups]
    return (
        {len(row) for row in rows} == {found.tasks}
        and found.tasks > 0
        and all("first" in group and "last" in group for group in found.groups)
        and all(isinstance(part, list) for group in parts for part in group)
        and all(len(seen) == len(lost) == len(stderr) > 0 for seen, lost, stderr in parts)
    )


def _points(lines: list[dict[str, Any]]) -> list[Point]:
    return [Point(line["step"], line["error"]) for line in lines if _is_point(line)]


def _is_point(line: dict[str, Any]) -> bool:
    step, error = line.get("step"), line.get("error")
    return isinstance(step, int) and isinstance(error, int | float) and math.isfinite(error)


def _asks_for_classes(config: Config) -> bool:
    try:
        return asks_for_classes(config)
    except (ValueError, OSError):
        # the pictures of one's own folder are elsewhere
        return config.benchmark.options.get("view", "classify") == "classify"


def _sizes(config: Config, result: Result, notes: list[str]) -> tuple[int | None, int | None]:
    """Parameters and bytes of state, measured where the result does not say."""
    if result.parameters is not None and result.state_bytes is not None:
        return result.parameters, result.state_bytes
    if config.learner.name == "offline":
        return result.parameters, None
    try:
        facts = describe(config)
    except (ValueError, OSError) as error:
        notes.append(f"its state was not measured: {error}")
        return result.parameters, result.state_bytes
    return facts["parameters"], result.state_bytes or facts["state_bytes"]
