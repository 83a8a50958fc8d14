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

from onepass.benchmarks.base import Benchmark
from onepass.config import Config, build, differences, from_json, to_json
from onepass.files import write_bytes, write_json
from onepass.learner import Learner


@dataclass(frozen=True)
class Run:
    path: Path

    @property
    def config(self) -> Config:
        return from_json(self.read("config.json"))

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

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.metrics.is_file():
            return []
        return [json.loads(line) for line in self.metrics.read_text().splitlines()]


def begin(path: Path, config: Config) -> Run:
    """The run in this folder, new or the same as before; never another one's."""
    run = Run(path)
    if run.has("config.json"):
        changed = differences(run.config, config)
        if changed:
            raise ValueError(
                f"{path} holds a run with another config ({'; '.join(changed)}): "
                "name another folder with --out, or remove this one"
            )
        return run
    if path.exists() and not path.is_dir():
        raise ValueError(f"{path} is a file, and a run needs a folder")
    run.write("environment.json", environment())
    run.write("config.json", to_json(config))
    return run


@contextmanager
def alone(run: Run) -> Iterator[None]:
    """Holds the folder against a second process; the lock goes with the process.

    What a killed process left half-written is swept up.
    """
    with open(run.path / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is training in {run.path}") from error
        for leftover in run.path.rglob(".*.tmp"):
            leftover.unlink()
        yield


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
        # a process that was killed may have left half a line, which has no end
        lines = [line for line in run.metrics.read_text().splitlines(keepends=True) if "\n" in line]
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        write_bytes(run.metrics, "".join(kept).encode())


def environment() -> dict[str, Any]:
    return {
        "date": now(),
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def final_result(
    config: Config,
    scores: dict[str, Any],
    parameters: int,
    seconds: float,
    steps: int,
    device: torch.device,
) -> dict[str, Any]:
    """What a run came to, complete in one file."""
    return {
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
        "commit": commit(),
        "date": now(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "seconds": seconds,
        "episodes_per_s": steps * config.batch / seconds if steps else 0.0,
        "config": to_json(config),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def commit() -> str | None:
    """The commit of the source that runs: `ONEPASS_COMMIT`, or what git says of its folder."""
    if given := os.environ.get("ONEPASS_COMMIT"):
        return given
    here = Path(__file__).resolve().parent
    command = ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # a wheel inside someone else's repository is not of that commit
    return asked.stdout.strip() or None if here.parent.name == "src" else None


def command_line() -> str:
    name = Path(sys.argv[0]).name
    return shlex.join(["onepass" if name in ("onepass", "__main__.py") else name, *sys.argv[1:]])
