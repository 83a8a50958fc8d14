"""The same sweep on a Ray cluster: a run is a task, tried again elsewhere when its node dies.

Every node needs onepass, the data, and the folder of the runs at the same path: a retried run goes
on from the checkpoint that it finds there.
"""

import contextlib
import importlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.commands import command_of
from onepass.config import Config
from onepass.progress import tell as tell_person
from onepass.signals import caught_signals, leave
from onepass.sweep import RETRIES, SECONDS_BETWEEN_LOOKS, Job, Tell, unfinished

# what a run reads of its environment
PASSED_ON = ("ONEPASS_DATA", "ONEPASS_CACHE", "ONEPASS_COMMIT", "OMP_NUM_THREADS")


def run_all_on_ray(
    configs: Sequence[Config],
    out: Path,
    address: str,
    device: str = "auto",
    per_card: int = 1,
    tell: Tell = tell_person,
) -> list[Job]:
    """Like `run_all`; the address is that of a cluster, `auto`, or `local` to start one here."""
    ray = connected(address)
    has_cards = ray.cluster_resources().get("GPU", 0) > 0 and device != "cpu"
    # a process of its own for each run, so that no card's memory is kept between two
    options = {"num_cpus": 1, "num_gpus": 1 / per_card if has_cards else 0, "max_calls": 1}
    remote = ray.remote(**options, max_retries=RETRIES)(train_one)
    pending: dict[Any, Job] = {}
    waiting = unfinished(configs, out, tell)
    failed = []
    try:
        with caught_signals() as caught:
            while (waiting or pending) and not caught:
                for job in [job for job in waiting if not job.is_held]:
                    waiting.remove(job)
                    pending[_started(remote, job, device)] = job
                if not pending:
                    time.sleep(SECONDS_BETWEEN_LOOKS)
                    continue
                for done in ray.wait(list(pending), num_returns=1, timeout=1)[0]:
                    job = pending.pop(done)
                    code = _code_of(ray, done, job)
                    # or finished by another sweep, whose run will do
                    if not code or job.is_finished:
                        tell(f"finished  {job.path.name}")
                    elif job.is_held or job.was_held:
                        waiting.append(job)
                    else:
                        tell(f"failed    {job.path.name}")
                        failed.append(job)
            if caught:
                # as ctrl-C to each of them: they finish their step and save
                for task in pending:
                    ray.cancel(task)
                if pending:
                    ray.wait(list(pending), num_returns=len(pending), timeout=60)
            leave(caught, f"with {len(pending) + len(waiting)} run(s) to go, saved in {out}")
    finally:
        ray.shutdown()
    return failed


def _started(remote: Any, job: Job, device: str) -> Any:
    """The task that trains it, on whichever node has room first."""
    job.log.parent.mkdir(parents=True, exist_ok=True)
    command = command_of(job.config, job.path, device)
    return remote.options(name=job.path.name).remote(command, str(job.log))


def _code_of(ray: Any, task: Any, job: Job) -> int:
    """How a run ended; why a cluster gave it up goes into its log."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        with job.log.open("a") as log:
            log.write(f"{' '.join(str(error).split())}\n")
        return 1


def train_one(command: list[str], log: str) -> int:
    """In the process of a Ray task itself, so that what ends that process ends the run."""
    from onepass.__main__ import main

    sys.argv = ["onepass", *command]
    with (
        open(log, "a", buffering=1) as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        try:
            main()
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else 1
    return 0


def connected(address: str) -> Any:
    """Ray, with a cluster behind it."""
    try:
        ray = importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise ValueError('--ray needs Ray: pip install "onepass[ray]"') from error
    if address not in ("local", "auto"):
        _knock(address)
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    where = {} if address == "local" else {"address": address}
    try:
        ray.init(
            **where,
            runtime_env={"env_vars": passed_on},
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level="error",
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"Ray does not start at {address!r}: {reason}") from error
    return ray


def _knock(address: str) -> None:
    """Ray itself tries for minutes before it says that nobody is there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"no Ray cluster at {address!r} ({error}); there are: local, auto, HOST:PORT"
        ) from error
