"""What tests of sweeps share: who trains in a folder, and waiting for it."""

import time
from collections.abc import Callable
from pathlib import Path


def holder(path: Path) -> int | None:
    """The process that trains in a folder, found by its lock as the kernel lists it."""
    lock = path / ".lock"
    if not lock.is_file():
        return None
    number = str(lock.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].split(":")[-1] == number:
            return int(words[4])
    return None


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)
