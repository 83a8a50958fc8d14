"""A sweep on a real Ray cluster of two CPUs: no run is lost, and none is run twice."""

import os
import signal
import time
from pathlib import Path

import pytest

from onepass.config import Config, override
from onepass.recipes import make_config
from onepass.run import Run
from onepass.sweep import jobs_of
from onepass.sweep_ray import connected, run_all_on_ray

ray = pytest.importorskip("ray", reason='needs Ray: pip install "onepass[ray]"')
# Ray leaves sockets and processes to the end of the interpreter
pytestmark = pytest.mark.filterwarnings("default::ResourceWarning", "default::FutureWarning")


def small(seed: int, steps: int) -> Config:
    usual = ["tasks=2", "batch=2", "evaluation_episodes=4", "checkpoint_every=20", "log_every=10"]
    config = make_config("tiny", "sine", "transformer")
    return override(config, [*usual, f"seed={seed}", f"steps={steps}"])


@pytest.fixture
def two_cpus(monkeypatch):
    """A cluster of its own, with the sources that are tested."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error", log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


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


@pytest.mark.slow
def test_a_killed_worker_loses_no_run_and_none_is_run_twice(two_cpus, tmp_path, monkeypatch):
    configs = [small(0, 400), small(1, 40), small(2, 40)]
    jobs = jobs_of(configs, tmp_path)
    told = []
    killed: list[int] = []
    real_wait = ray.wait

    def wait_and_kill(tasks, **options):
        # in the middle of the long run, by force
        end = time.monotonic() + 240
        while not killed and time.monotonic() < end:
            if Run(jobs[0].path).checkpoints() and (process := holder(jobs[0].path)):
                os.kill(process, signal.SIGKILL)
                killed.append(process)
            time.sleep(0.05)
        return real_wait(tasks, **options)

    monkeypatch.setattr(ray, "wait", wait_and_kill)
    monkeypatch.setattr("onepass.sweep_ray.connected", lambda address: ray)
    assert run_all_on_ray(configs, tmp_path, two_cpus, "cpu", tell=told.append) == []
    assert killed
    assert all(job.is_finished for job in jobs)
    assert sorted(line.split()[0] for line in told) == ["finished"] * 3
    # it went on from its checkpoint, and every step was logged once
    assert "resumed from step" in jobs[0].log.read_text()
    for job in jobs:
        steps = [line["step"] for line in Run(job.path).read_metrics()]
        assert steps == list(range(10, job.config.steps + 1, 10))
        assert job.log.read_text().count(f"run: {job.path}") == 1


def test_no_cluster_is_said_in_one_line(monkeypatch):
    with pytest.raises(ValueError, match=r"no Ray cluster at 'nowhere:1'.*there are: local, auto"):
        connected("nowhere:1")
