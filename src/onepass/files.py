"""Files written whole or not at all, and where the project keeps its own."""

import fcntl
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

TEMPORARY = re.compile(r"\..+\.\d+\.tmp")
# no string of JSON has a line break in it, so this is never a part of one
NUMBERS = re.compile(r"\[\n\s+(-?\d[-+.,e\d\s]*?)\n\s+\]")


def cache_dir() -> Path:
    """Where prepared data lives: `ONEPASS_CACHE`, or the user's cache folder."""
    given = os.environ.get("ONEPASS_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(given) if given else Path(base) / "onepass"


def data_dir() -> Path | None:
    """Where a person keeps downloaded files: `ONEPASS_DATA`, if set."""
    given = os.environ.get("ONEPASS_DATA")
    return Path(given) if given else None


def write_bytes(path: Path, content: bytes) -> None:
    """Under a temporary name first, then renamed: readers see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise OSError(f"could not write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def check_target(path: Path) -> None:
    """Before long work: that its outcome can be written there."""
    try:
        if path.is_dir():
            raise OSError("it is a folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OSError(f"could not write {path}: {error.strerror or error}") from error


def unfinished(folder: Path) -> list[Path]:
    """What a killed process left of `write_bytes` in this folder."""
    return [path for path in folder.glob(".*.tmp") if TEMPORARY.fullmatch(path.name)]


def append_line(path: Path, line: str) -> None:
    """One more line, or none of it."""
    before = path.stat().st_size if path.exists() else 0
    try:
        with open(path, "ab") as file:
            file.write(f"{line}\n".encode())
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, before)
        raise OSError(f"could not write {path}: {error.strerror or error}") from error


def write_json(path: Path, content: Any) -> None:
    """Indented, with lists of numbers on one line each."""
    text = NUMBERS.sub(_on_one_line, json.dumps(content, indent=2))
    write_bytes(path, f"{text}\n".encode())


def _on_one_line(numbers: re.Match[str]) -> str:
    return f"[{' '.join(numbers[1].split())}]"


@contextmanager
def alone(path: Path, wait: str) -> Iterator[None]:
    """Only one process at a time makes `path`; the others say `wait`, and do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(wait, file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
