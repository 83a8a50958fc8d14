"""Images too many for the device are drawn ahead by threads, and nothing else changes."""

import threading
import time
from contextlib import closing
from itertools import islice

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from onepass import step
from onepass.benchmarks import bank
from onepass.benchmarks.bank import ByClass, Stored
from onepass.benchmarks.images import Images
from onepass.config import Component
from onepass.prefetch import ahead
from onepass.run import Run
from onepass.step import drawn_steps, train_step
from onepass.training import train

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)


def noise() -> Images:
    """As many images as a test needs, of unequal classes; named by the configs below."""
    counts = [8, 30, 11, 2_000, 9, 8, 40]
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(sum(counts), *SHAPE), dtype=np.uint8)
    splits = {"train": range(4), "test": range(4, 7)}
    return Images(
        Stored("noise", SHAPE, ("train", "test"), lambda: ByClass(images, counts, splits))
    )


@pytest.fixture
def config(tiny):
    learner = Component("transformer", {"width": 16, "layers": 1, "heads": 2, "norm": "group"})
    return tiny(benchmark=Component("test_prefetch:noise"), learner=learner, objective="midstream")


@pytest.fixture
def no_room(monkeypatch):
    """Images stay on the host."""
    monkeypatch.setattr(bank, "room_for_images", lambda device: 0)


def workers_alive() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name.startswith("ahead")]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(("first", "last"), [(0, 20), (7, 9), (5, 5)])
def test_steps_come_in_order_whoever_makes_them(first, last, workers):
    def make(step):
        # later steps are done first
        time.sleep(0.002 * (step % 3 == 0))
        return step, threading.current_thread().name

    made = list(ahead(make, first, last, workers, CPU))
    assert [step for step, _ in made] == list(range(first, last))
    assert all(name.startswith("ahead") == bool(workers) for _, name in made)
    assert not workers_alive()


def test_no_more_is_made_ahead_than_two_steps_a_worker():
    started = []

    with closing(ahead(started.append, 0, 1_000, 2, CPU)) as coming:
        for done in range(1, 50):
            next(coming)
            assert len(started) <= done + 4
        deadline = time.monotonic() + 10
        while len(started) < 53 and time.monotonic() < deadline:
            time.sleep(0.001)
    assert len(started) == 53
    assert not workers_alive()


def test_an_error_of_a_worker_is_raised_at_its_step():
    def make(step):
        if step == 5:
            raise ValueError("the disk went away")
        return step

    seen = []
    with pytest.raises(ValueError, match=r"^the disk went away$"):
        seen.extend(ahead(make, 0, 10, 2, CPU))
    coming = ahead(make, 0, 10, 2, CPU)
    assert [next(coming) for _ in range(5)] == [0, 1, 2, 3, 4]
    coming.close()
    assert not workers_alive()


def test_episodes_are_the_same_on_the_device_and_on_the_host(config, monkeypatch):
    resident, mapped = noise(), noise()
    assert resident.on_device(CPU)
    target = resident.target(config.spec)
    expected = list(islice(drawn_steps(config, 0, resident, target, CPU), 6))
    monkeypatch.setattr(bank, "room_for_images", lambda device: 0)
    assert not mapped.on_device(CPU)
    with closing(drawn_steps(config, 0, mapped, target, CPU)) as coming:
        found = list(islice(coming, 6))
    assert_close(found, expected, rtol=0, atol=0)


def test_a_run_that_draws_ahead_ends_with_the_same_weights(config, tmp_path, monkeypatch):
    resident = train(config, tmp_path / "resident", "cpu", lambda line: None)
    monkeypatch.setattr(bank, "room_for_images", lambda device: 0)
    names, draw = set(), step.draw

    def watch(*arguments):
        names.add(threading.current_thread().name.split("_")[0])
        return draw(*arguments)

    monkeypatch.setattr(step, "draw", watch)
    ahead_of_it = train(config, tmp_path / "ahead", "cpu", lambda line: None)
    assert names == {"ahead"}
    assert_close(ahead_of_it.state_dict(), resident.state_dict(), rtol=0, atol=0)
    errors = [
        Run(tmp_path / name).read("result.json")["meta_test"] for name in ("resident", "ahead")
    ]
    assert errors[0] == errors[1]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_threads_end_with_the_run_however_it_ends(error, config, no_room, tmp_path, monkeypatch):
    done = []

    def interrupted(*arguments):
        done.append(workers_alive())
        if len(done) == 3:
            raise error
        return train_step(*arguments)

    monkeypatch.setattr("onepass.step.train_step", interrupted)
    with pytest.raises(error) as caught:
        train(config, tmp_path / "run", "cpu", lambda line: None)
    assert done[0]
    # also while someone holds on to the error, and by it to all that the run had
    assert caught.value.__traceback__
    assert not workers_alive()


def test_what_a_worker_cannot_read_ends_the_run_in_one_line(config, no_room, tmp_path, monkeypatch):
    original, calls = bank._fetched, []

    def failing(images, index):
        calls.append(1)
        if len(calls) > 5:
            raise ValueError("noise: the images are gone")
        return original(images, index)

    monkeypatch.setattr(bank, "_fetched", failing)
    with pytest.raises(ValueError, match=r"^noise: the images are gone$"):
        train(config, tmp_path / "run", "cpu", lambda line: None)
    assert not workers_alive()
