"""A run is a directory: config, environment, metrics, checkpoints, weights, result."""

import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from onepass import __version__, ranks
from onepass.benchmarks.base import Benchmark
from onepass.config import Config, build, differences, from_json, to_json
from onepass.files import unfinished, write_bytes, write_json
from onepass.learner import Learner

HELD = "another process is training in"


@dataclass(frozen=True)
class Run:
    path: Path

    @property
    def config(self) -> Config:
        content = self.read("config.json")
        try:
            return from_json(content)
        except ValueError as error:
            raise ValueError(
                f"{self.path / 'config.json'} does not fit this version of onepass: {error}"
            ) from error

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    def read(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError as error:
            raise ValueError(f"{self.path} is not a run: it has no {name}") from error
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{self.path / name} is damaged: {error}") from error

    def has(self, name: str) -> bool:
        return (self.path / name).is_file()

    def write(self, name: str, content: Any) -> None:
        write_json(self.path / name, content)

    def checkpoints(self) -> list[Path]:
        """Newest first."""
        return sorted((self.path / "checkpoints").glob("step-*.safetensors"), reverse=True)

    def checkpoint_path(self, step: int) -> Path:
        return self.path / "checkpoints" / f"step-{step:08d}.safetensors"

    def evaluations(self) -> list[dict[str, Any]]:
        """What `onepass evaluate` has kept."""
        paths = sorted((self.path / "evaluations").glob("*.json"))
        return [self.read(str(path.relative_to(self.path))) for path in paths]

    def read_metrics(self) -> list[dict[str, Any]]:
        """Every whole line; one that was cut short or damaged is left out."""
        if not self.metrics.is_file():
            return []
        return [line for text in self.metrics.read_bytes().splitlines() if (line := _line(text))]


@contextmanager
def opened(path: Path, config: Config) -> Iterator[Run]:
    """The run in this folder, new or the same as before; never another one's.

    The folder is held against a second process by a lock that goes with this one, and what a
    killed process left half-written is swept up.
    """
    run = Run(path)
    _check_folder(run)
    path.mkdir(parents=True, exist_ok=True)
    with open(path / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"{HELD} {path}") from error
        for folder in (path, path / "checkpoints"):
            for leftover in unfinished(folder):
                leftover.unlink()
        if not run.has("config.json"):
            run.write("environment.json", environment())
            run.write("config.json", to_json(config))
        elif changed := differences(run.config, config):
            raise ValueError(
                f"{path} holds a run with another config ({'; '.join(changed)}): "
                "name another folder with --out, or remove this one"
            )
        yield run


def _check_folder(run: Run) -> None:
    """A run does not move in with other files."""
    if run.path.exists() and not run.path.is_dir():
        raise ValueError(f"{run.path} is a file, and a run needs a folder")
    if run.path.is_dir() and not run.has("config.json"):
        own = {".lock", "environment.json", *(path.name for path in unfinished(run.path))}
        if {path.name for path in run.path.iterdir()} - own:
            raise ValueError(
                f"{run.path} holds other files and no run: name a new folder with --out"
            )


def save_weights(path: Path, learner: torch.nn.Module) -> None:
    write_bytes(
        path, save({k: v.detach().cpu().contiguous() for k, v in learner.state_dict().items()})
    )


def load_weights(path: Path, learner: torch.nn.Module) -> None:
    try:
        weights = load(path.read_bytes())
        learner.load_state_dict(weights)
    except FileNotFoundError as error:
        raise ValueError(f"{path.parent} has no {path.name}: is its training finished?") from error
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} does not fit this learner or is damaged: {reason}") from error


def load_run(path: Path | str, device: str = "cpu") -> tuple[Config, Benchmark, Learner]:
    """A finished run's config, benchmark and trained learner, ready to answer."""
    run = Run(Path(path))
    config = run.config
    benchmark, learner = build(config)
    load_weights(run.weights, learner)
    return config, benchmark, learner.to(device).eval()


def cut_metrics(run: Run, step: int) -> None:
    """Forget what was logged after `step`: a resumed run logs it again."""
    if run.metrics.is_file():
        kept = [line for line in run.read_metrics() if line["step"] <= step]
        write_bytes(run.metrics, "".join(json.dumps(line) + "\n" for line in kept).encode())


def _line(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    return line if isinstance(line, dict) and isinstance(line.get("step"), int) else None


def environment() -> dict[str, Any]:
    return {
        "date": now(),
        "commit": commit(),
        "onepass": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "processes": ranks.count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def write_result(
    run: Run,
    scores: dict[str, Any],
    parameters: int,
    steps: int,
    seconds: float,
    memory_gb: float | None,
    device: torch.device,
) -> None:
    """What a run came to, complete in one file; the commit is the one it began with."""
    config = run.config
    facts = {
        "benchmark": config.benchmark.name,
        "learner": config.learner.name,
        "tasks": config.tasks,
        "shots": config.shots,
        "queries": config.queries,
        "recipe": config.recipe,
        "seed": config.seed,
        "steps": steps,
        **scores,
        "parameters": parameters,
        "command": command_line(),
        "commit": run.read("environment.json")["commit"],
        "date": now(),
        "device": device_name(device),
        "torch": torch.__version__,
        "precision": config.precision_on(device.type),
        "memory_gb": memory_gb,
        "seconds": seconds,
        "episodes_per_s": steps * config.batch / seconds if seconds else 0.0,
        "curve": _curve(run.read_metrics()),
        "config": to_json(config),
    }
    run.write("result.json", facts)


def _curve(metrics: list[dict[str, Any]], points: int = 100) -> list[dict[str, Any]]:
    """A learning curve of about so many points, the last one among them."""
    lines = [line for line in metrics if "split" not in line]
    every = max(1, len(lines) // points)
    keys = ("step", "loss", "error")
    return [{key: line[key] for key in keys} for line in lines[::-1][::every][::-1]]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the source that runs: `ONEPASS_COMMIT`, or what git says of its folder."""
    if given := os.environ.get("ONEPASS_COMMIT"):
        return given
    here = Path(__file__).resolve().parent
    if here.parent.name != "src":
        # a wheel inside someone else's repository is not of that commit
        return None

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(here), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except (OSError, subprocess.TimeoutExpired):
        return None
    return f"{head}-dirty" if head and changed else head or None


def command_line() -> str:
    name = Path(sys.argv[0]).name
    return shlex.join(["onepass" if name in ("onepass", "__main__.py") else name, *sys.argv[1:]])
