"""How fast one learner meta-trains: its steps timed, counted and profiled."""

import gc
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.profiler import ProfilerActivity
from torch.utils.flop_counter import FlopCounterMode

from onepass.benchmarks.base import Benchmark
from onepass.config import Config, build
from onepass.fast import Tell, first_line
from onepass.learner import Learner, count_parameters
from onepass.step import plain_steps
from onepass.timing import wait_for
from onepass.training import check_trainable, make_optimiser, placed, steps

# steps before anything counts: until a step is recorded and replayed, then a guess at its time
WARM_UP, TRIAL = 5, 2
REPEATS, SECONDS, MOST_STEPS = 7, 0.5, 500  # how often, and about how long each time
SHOWN = 12  # kernels of a profile


class Timed(NamedTuple):
    each: list[float]  # seconds a step, of each repeat
    steps: int  # in a repeat
    warm_up: float  # seconds
    peak: int  # bytes in use
    reserved: int  # bytes that could not be used by others
    profile: list[dict[str, Any]]


def measure(
    config: Config, device: torch.device, count: int | None, profile: bool
) -> dict[str, Any]:
    """Real steps of the phase that lasts; `count` steps a repeat, or as many as take a while."""
    started = time.perf_counter()
    notes: list[str] = []
    benchmark, learner = build(config)
    check_trainable(config, benchmark, learner)
    if not count_parameters(learner):
        raise ValueError(f"{config.learner.name} has nothing to meta-train")
    flops, bytes_moved = counted(config, benchmark, device, notes)
    prepared = time.perf_counter() - started
    timed = time_steps(config, benchmark, learner, device, count, profile, notes.append)
    middle = median(timed.each)
    return {
        "episodes_per_s": config.batch / middle,
        "ms_per_step": 1e3 * middle,
        "ms_per_step_least": 1e3 * min(timed.each),
        "ms_per_step_most": 1e3 * max(timed.each),
        "peak_gb": timed.peak / 1e9,
        "reserved_gb": timed.reserved / 1e9,
        "parameters": count_parameters(learner),
        "repeats": REPEATS,
        "steps": timed.steps,
        "first_step": first_of_last_phase(config),
        "warm_up_s": prepared + timed.warm_up,
        "flops_per_step": flops,
        "flops_per_s": flops and flops / middle,
        "least_bytes_per_step": bytes_moved,
        "least_bytes_per_s": bytes_moved and bytes_moved / middle,
        "profile": timed.profile,
        "notes": notes,
    }


def time_steps(
    config: Config,
    benchmark: Benchmark,
    learner: Learner,
    device: torch.device,
    count: int | None,
    profile: bool,
    tell: Tell,
) -> Timed:
    """The same steps that training takes, in repeats of `count`."""
    first, room = first_of_last_phase(config), check_room(config, count)
    started = time.perf_counter()
    learner = placed(learner, device).train()
    optimiser = make_optimiser(config, trainable(learner), device)
    with closing(steps(config, first, benchmark, learner, optimiser, tell)) as coming:

        def take(count: int) -> float:
            """Seconds a step."""
            began = time.perf_counter()
            losses = [next(coming) for _ in range(count)]
            wait_for(device)
            seconds = (time.perf_counter() - began) / count
            if not torch.isfinite(torch.stack(losses)).all():
                raise ValueError("the loss is not finite")
            return seconds

        take(WARM_UP)
        trial = take(TRIAL)
        warm_up = time.perf_counter() - started
        count = count or max(1, min(room, MOST_STEPS, round(SECONDS / trial)))
        each = [take(count) for _ in range(REPEATS)]
        peak, reserved = peak_bytes(device)
        kernels = profiled(take, min(count, 10), device) if profile else []
    return Timed(each, count, warm_up, peak, reserved, kernels)


def check_room(config: Config, count: int | None) -> int:
    """How many steps of the phase that lasts there are for each repeat."""
    first = first_of_last_phase(config)
    room = (config.steps - first - WARM_UP - TRIAL) // (REPEATS + 1)
    if room < (count or 1):
        raise ValueError(
            f"{count or 1} step(s) a repeat are too many where steps={config.steps}, of which "
            f"{first} are of an earlier phase"
        )
    return room


def first_of_last_phase(config: Config) -> int:
    """The first step that is like the last one in what it asks."""

    def phase(step: int) -> tuple[str, bool]:
        return config.objective_at(step), config.guided(step)

    last = phase(config.steps - 1)
    return next(step for step in range(config.steps) if phase(step) == last)


def trainable(learner: Learner) -> list[torch.nn.Parameter]:
    return [parameter for parameter in learner.parameters() if parameter.requires_grad]


def counted(
    config: Config, benchmark: Benchmark, device: torch.device, notes: list[str]
) -> tuple[int | None, int | None]:
    """Floating point operations of one plain step, and the fewest bytes it moves."""
    try:
        return count_step(config, benchmark, device)
    except (RuntimeError, ValueError) as error:
        # not every learner can be looked into, and a plain step needs more room
        notes.append(f"operations and bytes are not counted: {first_line(error)}")
        return None, None
    finally:
        forget(device)


def count_step(config: Config, benchmark: Benchmark, device: torch.device) -> tuple[int, int]:
    """Weights, slopes, both moments, and what is kept for the way back move twice each."""
    learner = placed(build(config)[1], device).train()
    slow = trainable(learner)
    weights = {parameter.untyped_storage().data_ptr() for parameter in learner.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        # not itself: a result that its own operation keeps would hold itself forever
        return tensor.detach()

    optimiser, first = make_optimiser(config, slow, device), first_of_last_phase(config)
    with (
        closing(plain_steps(config, first, benchmark, learner, optimiser)) as coming,
        saved_tensors_hooks(keep, lambda tensor: tensor),
        FlopCounterMode(display=False) as counter,
    ):
        next(coming)
    size = sum(parameter.numel() * parameter.element_size() for parameter in slow)
    return counter.get_total_flops(), 2 * (4 * size + sum(kept.values()))


def forget(device: torch.device) -> None:
    """Memory that nothing holds goes back to the card, and its peak counts from here."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> tuple[int, int]:
    """The most that was in use and reserved on the card; elsewhere, that this process ever held."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    held = held if sys.platform == "darwin" else 1024 * held
    return held, held


def profiled(
    take: Callable[[int], float], count: int, device: torch.device
) -> list[dict[str, Any]]:
    """The kernels that take longest, busiest first; on a CPU, the operations."""
    on_card = device.type == "cuda"
    activity = ProfilerActivity.CUDA if on_card else ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as found:
        take(count)
    times = [
        (event.self_device_time_total if on_card else event.self_cpu_time_total, event)
        for event in found.key_averages()
        if event.device_type.name == activity.name and not event.is_user_annotation
    ]
    total = sum(microseconds for microseconds, _ in times)
    busiest = sorted(times, key=lambda pair: -pair[0])[:SHOWN]
    return [
        {
            "name": event.key,
            "calls_per_step": event.count / count,
            "ms_per_step": microseconds / 1e3 / count,
            "share": microseconds / total,
        }
        for microseconds, event in busiest
    ]
