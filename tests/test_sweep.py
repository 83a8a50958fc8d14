"""Many runs: finished ones are skipped, broken ones go on, and a failure stops no other."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from onepass.commands import command_of, run_name, settings_of
from onepass.config import Component, Config, from_json, override, resolved, to_json
from onepass.recipes import make_config
from onepass.run import Run
from onepass.sweep import Job, jobs_of, load_configs, report_failures, run_all
from sweeping import holder, wait_for

FILE = """
from onepass.config import override
from onepass.recipes import make_config

small = ["tasks=2", "steps={steps}", "batch=2", "evaluation_episodes=4", "checkpoint_every=5"]
configs = [
    override(make_config("tiny", "sine", "transformer"), [*small, f"seed={{seed}}"])
    for seed in range(2)
]
"""


def small(*settings: str) -> Config:
    usual = ["tasks=2", "steps=6", "batch=2", "evaluation_episodes=4", "checkpoint_every=2"]
    return override(make_config("tiny", "sine", "transformer"), [*usual, *settings])


@pytest.fixture(autouse=True)
def sources(monkeypatch):
    """The runs' own processes find what is tested here."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_a_command_trains_the_very_config_it_was_made_of(monkeypatch, tmp_path):
    config = small("learner.dropout=0.0", "benchmark.noise=0.2", "objective=midstream", "seed=3")
    trained = []
    monkeypatch.setattr("onepass.training.train", lambda config, *rest, **_: trained.append(config))
    monkeypatch.setattr("onepass.tables.print_result", lambda *_: None)
    monkeypatch.setattr(Run, "read", lambda *_: {})
    from onepass.cli import app

    app(args=command_of(config, tmp_path / "run", "cpu"), standalone_mode=False)
    assert resolved(trained[0]) == resolved(config)


def test_a_name_follows_from_the_config_alone():
    one = small("learner.dropout=0.0", "rate=0.1")
    assert run_name(one) == run_name(small("rate=0.1", "learner.dropout=0.0"))
    assert run_name(one) == run_name(from_json(json.loads(json.dumps(to_json(resolved(one))))))
    assert run_name(one) != run_name(replace(one, rate=0.2))
    assert "learner.dropout=0.0" in settings_of(one)


def test_long_names_are_cut_and_still_tell_runs_apart():
    many = [f"learner.{key}" for key in ("dropout=0.25", "encoder=mlp", "block_norm=layer")]
    names = {run_name(small(*many, "tokens=interleaved", f"rate=0.{n}1")) for n in range(1, 9)}
    assert len(names) == 8
    assert max(map(len, names)) <= 120


def test_a_sweep_runs_what_is_missing_and_a_failure_stops_no_other(tmp_path, capfd):
    # the last one cannot be: 3 heads do not divide a width of 32
    configs = [small("seed=0"), small("seed=1"), small("seed=1"), small("learner.heads=3")]
    failed = run_all(configs, tmp_path, "cpu", jobs=2)
    assert [job.config for job in failed] == [configs[3]]
    assert "heads" in failed[0].last_word()
    with pytest.raises(ValueError, match=r"1 of 3 run\(s\) failed; the others are finished"):
        report_failures(failed, 3)
    with pytest.raises(ValueError, match=r"1 of 1 run\(s\) failed$"):
        report_failures(failed, 1)
    finished = [job for job in jobs_of(configs, tmp_path) if job.is_finished]
    assert len(finished) == 2
    before = [(job.path / "result.json").stat().st_mtime_ns for job in finished]
    run_all(configs[:3], tmp_path, "cpu")
    assert before == [(job.path / "result.json").stat().st_mtime_ns for job in finished]
    assert "2 of 2 run(s) are finished already" in capfd.readouterr().err


def started_sweep(tmp_path: Path) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "onepass",
        "sweep",
        "mine.py",
        "--jobs",
        "2",
        "--device",
        "cpu",
    ]
    return subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_sweep_stops_its_runs_and_goes_on(tmp_path, number):
    (tmp_path / "mine.py").write_text(FILE.format(steps=3_000))
    configs = load_configs(tmp_path / "mine.py")
    jobs = jobs_of(configs, tmp_path / "runs")
    process = started_sweep(tmp_path)
    wait_for(lambda: all(Run(job.path).checkpoints() for job in jobs))
    os.kill(process.pid, number)
    _, said = process.communicate(timeout=120)
    wait_for(lambda: not any(job.is_held for job in jobs))
    assert not any(job.is_finished for job in jobs)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert "stopped by SIGINT with 2 run(s) to go" in said
    done = [Run(job.path).checkpoints()[0].name for job in jobs]
    # it goes on from what was saved: the same runs, cut to what they have nearly done
    process = started_sweep(tmp_path)
    wait_for(lambda: all("resumed from step" in job.log.read_text() for job in jobs))
    for job, name in zip(jobs, done, strict=True):
        assert f"resumed from step {int(name[5:13])}" in job.log.read_text()
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=120)


def test_a_run_whose_process_is_killed_goes_on(tmp_path):
    config = small("steps=400", "checkpoint_every=10", "log_every=10")
    (job,) = jobs_of([config], tmp_path)
    killed, told = [], []

    def kill() -> None:
        wait_for(lambda: Run(job.path).checkpoints() and holder(job.path))
        process = holder(job.path)
        assert process
        os.kill(process, signal.SIGKILL)
        killed.append(process)

    thread = threading.Thread(target=kill)
    thread.start()
    assert run_all([config], tmp_path, "cpu", tell=told.append) == []
    thread.join()
    assert killed
    assert [line.split()[0] for line in told] == ["started", "killed", "started", "finished"]
    assert "resumed from step" in job.log.read_text()
    steps = [line["step"] for line in Run(job.path).read_metrics()]
    assert steps == list(range(10, 401, 10))


def test_a_run_that_is_always_killed_fails_in_the_end(tmp_path, monkeypatch):
    def die(*_):
        return subprocess.Popen(["sh", "-c", "kill -9 $$"])

    monkeypatch.setattr("onepass.sweep._start", die)
    monkeypatch.setattr("onepass.sweep.SECONDS_BETWEEN_LOOKS", 0.01)
    told = []
    assert len(run_all([small()], tmp_path, "cpu", tell=told.append)) == 1
    assert [line.split()[0] for line in told].count("started") == 6
    assert told[-1].startswith("failed")


def test_a_run_that_another_sweep_finished_did_not_fail(tmp_path, monkeypatch):
    def late(job, *_):
        job.path.mkdir(parents=True)
        (job.path / "result.json").write_text("{}")
        return subprocess.Popen(["false"])

    monkeypatch.setattr("onepass.sweep._start", late)
    assert run_all([small()], tmp_path, "cpu", tell=lambda line: None) == []


def test_a_folder_that_is_only_looked_at_is_tried_again(tmp_path, monkeypatch):
    (job,) = jobs_of([small()], tmp_path)
    job.path.mkdir(parents=True)
    # nobody is seen there when it starts, and yet the lock is taken
    monkeypatch.setattr(Job, "is_held", False)
    lock = open(job.path / ".lock", "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)

    def let_go() -> None:
        wait_for(lambda: job.was_held)
        lock.close()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert run_all([small()], tmp_path, "cpu", tell=lambda line: None) == []
    thread.join()
    assert job.is_finished


def test_a_run_that_another_process_trains_is_waited_for(tmp_path):
    (job,) = jobs_of([small()], tmp_path)
    job.path.mkdir(parents=True)
    lock = open(job.path / ".lock", "w")  # noqa: SIM115
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert job.is_held
    told: list[str] = []

    def let_go() -> None:
        time.sleep(1)
        told.append("let go")
        lock.close()

    thread = threading.Thread(target=let_go)
    thread.start()
    assert run_all([small()], tmp_path, "cpu", tell=told.append) == []
    thread.join()
    assert [line.split()[0] for line in told] == ["let", "started", "finished"]
    assert job.is_finished


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "defines no configs: a list of Config"),
        ("configs = []", "defines no configs"),
        ("configs = [3]", "configs holds a int, and a run is a Config"),
        ("1 / 0", "cannot be run: ZeroDivisionError: division by zero"),
        ("configs = [", "cannot be run: SyntaxError: '[' was never closed"),
        ("def configs(): return nothing", "cannot be run: NameError: name 'nothing'"),
        ("raise SystemExit(3)", "cannot be run: SystemExit: 3"),
        ("from onepass.nowhere import configs", "cannot be run: ModuleNotFoundError: No module"),
        (
            "from onepass.config import *\n"
            "configs = [Config(Component('sine'), Component('pn'), recipe='mine')]",
            "mine.py: config 1 of 1: no recipe 'mine'; there are: paper, quickstart, symbols, tiny",
        ),
    ],
)
def test_a_file_that_is_no_sweep_is_answered_with_one_line(answer, tmp_path, text, said):
    (tmp_path / "mine.py").write_text(text)
    ended = answer("sweep", "mine.py")
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.strip().splitlines()) == 1


def test_configs_may_be_a_function(tmp_path):
    text = FILE.format(steps=1).replace("configs =", "def configs(): return")
    (tmp_path / "mine.py").write_text(text)
    assert [config.seed for config in load_configs(tmp_path / "mine.py")] == [0, 1]
    with pytest.raises(ValueError, match=r"there is no file .*other\.py"):
        load_configs(tmp_path / "other.py")


def test_unlike_components_get_unlike_commands():
    plain = Config(Component("sine"), Component("sequence", {"mixer_options": {"keep": 0.9}}))
    assert 'learner.mixer_options={"keep": 0.9}' in settings_of(plain)
