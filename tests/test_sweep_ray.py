"""A sweep on a real Ray cluster of two CPUs: no run is lost, and none is run twice."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onepass.config import Config, override
from onepass.recipes import make_config
from onepass.run import Run
from onepass.sweep import Job, jobs_of, load_configs
from onepass.sweep_ray import connected, run_all_on_ray
from sweeping import holder, wait_for

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


@pytest.mark.slow
def test_a_run_that_another_process_has_is_waited_for(two_cpus, tmp_path, monkeypatch):
    (job,) = jobs_of([small(0, 20)], tmp_path)
    job.path.mkdir()
    # as another sweep may take it between a look and the start
    monkeypatch.setattr(Job, "is_held", False)
    monkeypatch.setattr("onepass.sweep_ray.connected", lambda address: ray)

    def let_go() -> None:
        wait_for(lambda: job.was_held, 240)
        lock.close()

    with open(job.path / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        other = threading.Thread(target=let_go)
        other.start()
        told = []
        assert run_all_on_ray([job.config], tmp_path, two_cpus, "cpu", tell=told.append) == []
        other.join()
    assert [line.split()[0] for line in told] == ["finished"]


MINE = """
from onepass.config import override
from onepass.recipes import make_config

usual = ["tasks=2", "batch=2", "evaluation_episodes=4", "checkpoint_every=20", "steps=3000"]
configs = [override(make_config("tiny", "sine", "transformer"), usual)]
"""


@pytest.mark.slow
def test_a_stopped_sweep_saves_its_runs_first(two_cpus, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    (job,) = jobs_of(load_configs(tmp_path / "mine.py"), tmp_path / "runs")
    command = [sys.executable, "-m", "onepass", "sweep", "mine.py", "--ray", two_cpus]
    process = subprocess.Popen(
        [*command, "--device", "cpu"], cwd=tmp_path, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: Run(job.path).checkpoints(), 240)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped by SIGINT with 1 run(s) to go" in said
    # it finished the step it was at
    saved = int(Run(job.path).checkpoints()[0].stem[5:])
    assert f"after step {saved}, saved in" in job.last_word()
    assert not job.is_held


def test_no_cluster_is_said_in_one_line(monkeypatch):
    with pytest.raises(ValueError, match=r"no Ray cluster at 'nowhere:1'.*there are: local, auto"):
        connected("nowhere:1")
