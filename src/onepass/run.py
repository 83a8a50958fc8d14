"""A run is a directory: config, environment, metrics, checkpoints, weights, result."""

import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from onepass.benchmarks.base import Benchmark
from onepass.config import Config, build, differences, from_json, to_json
from onepass.files import write_bytes, write_json
from onepass.learner import Learner

KEPT_CHECKPOINTS = 2


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
        return [json.loads(line) for line in self.metrics.read_text().splitlines() if line]


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
    """Holds the folder against a second process; the lock goes with the process."""
    with open(run.path / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another process is training in {run.path}") from error
        yield


def save_checkpoint(run: Run, step: int, tensors: dict[str, Tensor]) -> None:
    """One file, whole or not at all; the one before it is kept, older ones go."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    marks = {"step": str(step), "checksum": _checksum(tensors)}
    write_bytes(run.checkpoint_path(step), save(tensors, metadata=marks))
    for path in run.checkpoints()[KEPT_CHECKPOINTS:]:
        path.unlink()


def load_checkpoint(run: Run) -> tuple[int, dict[str, Tensor], list[str]]:
    """The newest sound checkpoint (or step 0 and nothing), and what was passed over."""
    passed_over = []
    for path in run.checkpoints():
        try:
            content = path.read_bytes()
            tensors = load(content)
            marks = _metadata(content)
        except (SafetensorError, ValueError, KeyError) as error:
            passed_over.append(f"{path.name} is damaged ({error}), so it is passed over")
            continue
        if marks.get("checksum") != _checksum(tensors):
            passed_over.append(f"{path.name} is damaged (wrong checksum), so it is passed over")
            continue
        return int(marks["step"]), tensors, passed_over
    return 0, {}, passed_over


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def _checksum(tensors: dict[str, Tensor]) -> str:
    code = 0
    for name in sorted(tensors):
        code = zlib.crc32(name.encode(), code)
        code = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, code)
    return f"{code:08x}"


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
        lines = [line for line in run.metrics.read_text().splitlines() if _whole(line)]
        kept = [line for line in lines if json.loads(line)["step"] <= step]
        write_bytes(run.metrics, "".join(f"{line}\n" for line in kept).encode())


def _whole(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except json.JSONDecodeError:
        return False


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
