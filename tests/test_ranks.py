"""Many processes train as one would, one of them writes, and none outlives another."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

from conftest import TINY
from onepass import ranks
from onepass.config import Component, Config, build, to_json
from onepass.run import Run
from onepass.seeds import derive
from onepass.step import set_step
from onepass.training import check_trainable
from rank_steps import take_steps

STEPS = Path(__file__).parent / "rank_steps.py"
SMALL = {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}
TRAIN = "train sine transformer --tasks 3 --out run --device cpu".split()  # noqa: SIM905
SMALLEST = ["width=16", "layers=1", "heads=2", "batch=4", "evaluation_episodes=8"]
SETTINGS = [*SMALLEST, "rate=0.001", "log_every=1"]


def case(learner: str, options: dict, benchmark: str = "sine", **changes) -> Config:
    """20 steps: guided at first, then not; asked mid-stream at first, then at the end."""
    phases = {"steps": 20, "guidance_steps": 8, "objective": "midstream", "objective_steps": 12}
    parts = {"benchmark": Component(benchmark), "learner": Component(learner, options)}
    return replace(TINY, batch=8, **phases, **parts, **changes)


GROUP, CNN = {"norm": "group"}, {"encoder": "cnn_small", "width": 16}
THIN = {"channels": (4, 4, 4, 4, 4)}
CASES = {
    "transformer": case("transformer", SMALL | GROUP),
    "pn": case("pn", CNN | GROUP, "glyphs"),
    "oml": case("oml", {"width": 16, "hidden": 16} | GROUP),
    "anml": case("anml", THIN | GROUP, "glyphs"),
    "in parts": case("transformer", SMALL | GROUP, accumulate=2),
    "batch-norm of vectors": case("transformer", SMALL),
    "batch-norm of images": case("anml", THIN, "glyphs"),
}
AMONG_FOUR = ["transformer", "batch-norm of vectors"]


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[[int, list[str], Path], list[subprocess.Popen]]]:
    """Processes as torchrun would start them; none is left in the end."""
    every: list[subprocess.Popen] = []

    def started(processes: int, arguments: list[str], folder: Path) -> list[subprocess.Popen]:
        with socket.socket() as taken:
            taken.bind(("localhost", 0))
            port = taken.getsockname()[1]
        common = {
            "OMP_NUM_THREADS": "1",
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(processes),
            "LOCAL_WORLD_SIZE": str(processes),
        }
        now = [
            subprocess.Popen(
                [sys.executable, *arguments],
                cwd=folder,
                env=os.environ | common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(processes)
        ]
        every.extend(now)
        return now

    yield started
    for process in every:
        if process.poll() is None:
            process.kill()
            process.communicate()


def ended(processes: list[subprocess.Popen], timeout: float = 300) -> list[tuple[int, str, str]]:
    """Exit code, output and errors of each."""
    said = [process.communicate(timeout=timeout) for process in processes]
    return [(p.returncode, *words) for p, words in zip(processes, said, strict=True)]


@pytest.fixture(scope="module")
def many(start, tmp_path_factory) -> Callable[[str, int], list[dict[str, torch.Tensor]]]:
    """What each of so many processes has in the end; all cases in one go."""
    folders = {}

    def found(name: str, processes: int) -> list[dict[str, torch.Tensor]]:
        if processes not in folders:
            folder = folders[processes] = tmp_path_factory.mktemp("many")
            names = CASES if processes == 2 else AMONG_FOUR
            configs = json.dumps({name: to_json(CASES[name]) for name in names})
            for code, _, errors in ended(
                start(processes, [str(STEPS), configs, str(folder)], folder)
            ):
                assert code == 0, errors
        files = [folders[processes] / f"{name}-{rank}.safetensors" for rank in range(processes)]
        return [load_file(file) for file in files]

    return found


@pytest.mark.parametrize(
    ("name", "processes"),
    [(name, 2) for name in CASES]
    + [pytest.param(name, 4, marks=pytest.mark.slow) for name in AMONG_FOUR],
)
def test_many_processes_train_as_one(many, name, processes):
    alone = take_steps(CASES[name])
    first, *others = many(name, processes)
    for other in others:
        assert_close(other, first, rtol=0, atol=0)
    # losses are kept in 32 bits
    assert_close(first.pop("losses"), alone.pop("losses"), rtol=1e-5, atol=1e-6)
    assert_close(first, alone, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [(1, 2), (2, 1)])
def test_another_number_of_processes_goes_on(start, tmp_path, processes):
    name = "batch-norm of vectors"
    for count, until in zip(processes, (7, 20), strict=True):
        configs = json.dumps({name: to_json(CASES[name])})
        arguments = [str(STEPS), configs, str(tmp_path), str(tmp_path / "run"), str(until)]
        for code, _, errors in ended(start(count, arguments, tmp_path)):
            assert code == 0, errors
    alone = take_steps(CASES[name])
    for rank in range(processes[1]):
        found = load_file(tmp_path / f"{name}-{rank}.safetensors")
        assert len(found.pop("losses")) == 13
        wanted = {key: value for key, value in alone.items() if key != "losses"}
        assert_close(found, wanted, rtol=0, atol=1e-9)


def test_every_process_drops_out_others_and_the_first_what_one_alone_would(tiny, monkeypatch):
    optimiser, seeds = torch.optim.SGD([torch.zeros(1)], 0.1), []
    for rank in range(3):
        monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
        set_step(tiny(), 7, optimiser)
        seeds.append(torch.initial_seed())
    assert seeds[0] == derive(0, "dropout", 7)
    assert len(set(seeds)) == 3


@pytest.mark.parametrize(("processes", "accumulate"), [(3, 1), (4, 2)])
def test_a_batch_that_cannot_be_shared_out_is_refused(tiny, monkeypatch, processes, accumulate):
    monkeypatch.setattr(ranks, "count", lambda: processes)
    config = tiny(accumulate=accumulate)
    said = f"batch of 4 does not divide by {processes} processes x accumulate={accumulate}"
    with pytest.raises(ValueError, match=said):
        check_trainable(config, *build(config))


def test_each_process_takes_a_card_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert ranks.own_card("cuda:1") == "cuda:1"
    assert ranks.own_card("cuda") == "cuda"
    # several machines with one process each
    with monkeypatch.context() as patched:
        patched.setenv("WORLD_SIZE", "2")
        assert ranks.own_card("cuda") == "cuda:0"
        assert ranks.own_card("cuda:1") == "cuda:1"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert ranks.own_card("cuda") == "cuda:1"
    with pytest.raises(ValueError, match="cuda:0 is one card, and there are 2 processes"):
        ranks.own_card("cuda:0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="4 processes need a card each, and this machine has 2"):
        ranks.own_card("cuda")


def test_what_is_not_trained_takes_one_process(answer):
    said = answer("list", WORLD_SIZE="2", RANK="0", LOCAL_RANK="0")
    assert said.returncode == 2
    assert said.stderr.startswith("onepass: only train takes 2 processes: start onepass list")
    said = answer("train", "sine", "offline", WORLD_SIZE="2", RANK="0", LOCAL_RANK="0")
    assert said.stderr == "onepass: offline takes one process: start it without torchrun\n"


def test_a_run_uses_the_threads_it_is_given(command, tmp_path):
    command(*TRAIN, *SETTINGS, "steps=1", OMP_NUM_THREADS="2")
    assert Run(tmp_path / "run").read("environment.json")["threads"] == 2


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "run" / "weights.safetensors")


def wait_for_step(folder: Path, step: int, processes: list[subprocess.Popen]) -> None:
    run, deadline = Run(folder / "run"), time.monotonic() + 120
    while not any(line["step"] >= step for line in run.read_metrics()):
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in processes)
        time.sleep(0.01)


@pytest.mark.slow
def test_torchrun_writes_one_run_and_says_everything_once(tmp_path):
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [
            sys.executable,
            *torchrun,
            "-m",
            "onepass",
            *TRAIN,
            *SETTINGS,
            "steps=6",
            "evaluate_every=3",
        ],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("meta-test") == done.stdout.count("run: run") == 1
    assert done.stderr.count("meta-training 6/6") == 1
    run = Run(tmp_path / "run")
    assert [line["step"] for line in run.read_metrics()] == [1, 2, 3, 3, 4, 5, 6, 6]
    assert len(list((tmp_path / "run" / "events").iterdir())) == 1
    assert run.read("environment.json")["processes"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_dies_ends_the_run_and_it_goes_on_exactly(start, tmp_path, victim):
    for name in ("whole", "broken", "alone"):
        (tmp_path / name).mkdir()
    # with dropout and batch statistics
    arguments = ["-m", "onepass", *TRAIN, *SETTINGS, "checkpoint_every=7", "steps=60"]
    assert [code for code, _, _ in ended(start(2, arguments, tmp_path / "whole"))] == [0, 0]

    broken = start(2, arguments, tmp_path / "broken")
    wait_for_step(tmp_path / "broken", 20, broken)
    broken[victim].kill()
    ((code, _, said),) = ended([broken[1 - victim]], timeout=30)
    broken[victim].communicate()
    assert code == 2
    last = "onepass: another process of this run has ended; the same command goes on from the last"
    assert said.strip().splitlines()[-1] == f"{last} checkpoint in run"
    assert not Run(tmp_path / "broken" / "run").has("result.json")

    again = ended(start(2, arguments, tmp_path / "broken"))
    assert [code for code, _, _ in again] == [0, 0]
    assert "resumed from step" in again[0][2]
    assert again[1][1:] == ("", "")
    assert_close(weights(tmp_path / "broken"), weights(tmp_path / "whole"), rtol=0, atol=0)
    # finished already: all of them see it
    assert [code for code, _, _ in ended(start(2, arguments, tmp_path / "broken"))] == [0, 0]


@pytest.mark.slow
def test_a_signal_to_one_saves_and_stops_all_and_one_alone_goes_on(start, tmp_path):
    arguments = ["-m", "onepass", *TRAIN, *SETTINGS, "steps=60"]
    stopped = start(2, arguments, tmp_path)
    wait_for_step(tmp_path, 10, stopped)
    stopped[1].send_signal(signal.SIGINT)
    (code, _, said), other = ended(stopped, timeout=30)
    assert code == 130
    assert other == (130, "", "")
    assert "onepass: stopped by SIGINT after step" in said.strip().splitlines()[-1]
    ((code, _, said),) = ended(start(1, arguments, tmp_path))
    assert code == 0
    assert "resumed from step" in said
    lines = Run(tmp_path / "run").read_metrics()
    assert [line["step"] for line in lines] == list(range(1, 61))
