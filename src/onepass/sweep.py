"""Many configs, each a run in a folder of its own: on local processes, several at once.

A run that is finished is skipped, one that broke off goes on from its checkpoint, and one that
fails stops no other.
"""

import ctypes
import fcntl
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onepass.commands import command_of, run_name
from onepass.config import Config
from onepass.progress import tell as tell_person
from onepass.run import HELD, Run
from onepass.signals import caught_signals, leave

Tell = Callable[[str], None]
SECONDS_BETWEEN_LOOKS = 0.2
RETRIES = 5  # of a run whose process was killed
DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG


@dataclass(frozen=True)
class Job:
    """A config and where it runs; the log lies beside the run's folder."""

    config: Config
    path: Path

    @property
    def log(self) -> Path:
        return self.path.with_name(f"{self.path.name}.log")

    @property
    def is_finished(self) -> bool:
        return Run(self.path).has("result.json")

    @property
    def is_held(self) -> bool:
        """Whether a process is training in its folder."""
        lock = self.path / ".lock"
        if not lock.is_file():
            return False
        with open(lock) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @property
    def was_held(self) -> bool:
        """Whether its own process found another one there, if only one that looked."""
        return self.last_word().startswith(HELD)

    def last_word(self) -> str:
        lines = self.log.read_text(errors="replace").split("\n") if self.log.is_file() else []
        said = [line.strip() for line in lines if line.strip()]
        return said[-1].removeprefix("onepass: ") if said else "it said nothing"


def jobs_of(configs: Sequence[Config], out: Path) -> list[Job]:
    """One for each config, under the name that its run always has; none twice."""
    named = {run_name(config): config for config in configs}
    return [Job(config, (out / name).resolve()) for name, config in named.items()]


def run_all(
    configs: Sequence[Config],
    out: Path,
    device: str = "auto",
    jobs: int | None = None,
    per_card: int = 1,
    tell: Tell = tell_person,
) -> list[Job]:
    """Run what is not finished; those that failed, each told in one line."""
    waiting = unfinished(configs, out, tell)
    slots = places(device, jobs, per_card, tell)
    running: dict[int, tuple[Job, subprocess.Popen[bytes], float]] = {}
    tries: Counter[Path] = Counter()
    failed: list[Job] = []
    with caught_signals() as caught:
        while (waiting or running) and not caught:
            for slot in set(range(len(slots))) - set(running):
                if job := next((job for job in waiting if not job.is_held), None):
                    waiting.remove(job)
                    if not job.is_finished:
                        process = _start(job, slots[slot], len(slots))
                        running[slot] = (job, process, time.monotonic())
                        tell(f"started   {job.path.name}")
            time.sleep(SECONDS_BETWEEN_LOOKS)
            for slot, (job, process, began) in list(running.items()):
                if (code := process.poll()) is None:
                    continue
                del running[slot]
                if job.is_finished:
                    # or finished by another sweep, whose run will do
                    tell(f"finished  {job.path.name} after {time.monotonic() - began:.0f} s")
                elif job.is_held or job.was_held:
                    waiting.append(job)
                elif code < 0 and tries[job.path] < RETRIES:
                    tries[job.path] += 1
                    waiting.append(job)
                    tell(f"killed    {job.path.name}, which goes on from its checkpoint")
                else:
                    failed.append(job)
                    tell(f"failed    {job.path.name}")
        if caught:
            _stop([process for _, process, _ in running.values()])
        leave(caught, f"with {len(running) + len(waiting)} run(s) to go, saved in {out}")
    return failed


def report_failures(failed: Sequence[Job], total: int) -> None:
    """One line for each, and an error where there are any."""
    for job in failed:
        tell_person(f"{job.path.name}: {job.last_word()} (log: {job.log})")
    if failed:
        others = "; the others are finished" if len(failed) < total else ""
        raise ValueError(f"{len(failed)} of {total} run(s) failed{others}")


def unfinished(configs: Sequence[Config], out: Path, tell: Tell) -> list[Job]:
    jobs = jobs_of(configs, out)
    waiting = [job for job in jobs if not job.is_finished]
    if len(waiting) < len(jobs):
        tell(f"{len(jobs) - len(waiting)} of {len(jobs)} run(s) are finished already")
    return waiting


def places(
    device: str, jobs: int | None, per_card: int, tell: Tell
) -> list[tuple[str, dict[str, str]]]:
    """Where runs can be at one time: a device each, and what its process has to know of it."""
    if device not in ("auto", "cuda") or not torch.cuda.is_available():
        return [(device, {})] * (jobs or 1)
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    cards = seen.split(",") if seen else [str(n) for n in range(torch.cuda.device_count())]
    # one for each card before a second one for any
    slots = [("cuda", {"CUDA_VISIBLE_DEVICES": card}) for _ in range(per_card) for card in cards]
    if jobs and jobs > len(slots):
        tell(
            f"--jobs {jobs}: {len(cards)} card(s) take {len(slots)} run(s) at once with "
            f"--per-card {per_card}; a larger --per-card lets more of them share a card"
        )
    return slots[:jobs]


def _start(job: Job, place: tuple[str, dict[str, str]], together: int) -> subprocess.Popen[bytes]:
    device, environment = place
    threads = max(1, (os.cpu_count() or 1) // together)
    environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | environment
    command = [sys.executable, "-m", "onepass", *command_of(job.config, job.path, device)]
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with open(job.log, "ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            # apart from the terminal, whose ctrl-C is passed on from here
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )


def _end_with_parent() -> None:
    """A sweep that is killed by force takes its runs with it; they save first."""
    ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGTERM)


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Let them finish their step and save; a second signal to us ends them at once."""
    for process in processes:
        process.terminate()
    try:
        for process in processes:
            process.wait()
    except KeyboardInterrupt:
        for process in processes:
            process.kill()
        raise


def load_configs(path: Path) -> list[Config]:
    """What a person's own file defines as `configs`: a list, or a function that gives one."""
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    if path.suffix != ".py":
        raise ValueError(f"{path} is no Python file that defines configs")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    # its neighbours may be imported, as if it were run
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
        found: Any = getattr(module, "configs", None)
        configs = found() if callable(found) else found
    except (Exception, SystemExit) as error:
        where = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} cannot be run: {' '.join(where.split())}") from error
    if not isinstance(configs, (list, tuple)) or not configs:
        raise ValueError(f"{path} defines no configs: a list of Config, or a function giving one")
    for n, config in enumerate(configs, 1):
        if not isinstance(config, Config):
            kind = type(config).__name__
            raise ValueError(f"{path}: configs holds a {kind}, and a run is a Config")
        try:
            run_name(config)
        except ValueError as error:
            raise ValueError(f"{path}: config {n} of {len(configs)}: {error}") from error
    return list(configs)
