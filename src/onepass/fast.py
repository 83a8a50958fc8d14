"""The captured step: what a step does on a CUDA card, recorded once and then only replayed.

A step is hundreds of small kernels, and launching them takes the host longer than the card needs to
run them. A CUDA graph launches all of them at once: sampling, loss, backward and update. There is
one graph per phase, since guidance and mid-stream queries are other kernels. What changes from step
to step is read from the card: the seeds through generators that the graph knows, the rate as a
tensor. So a captured run draws the same episodes and the same dropout as a plain one.
"""

import importlib.util
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch._dynamo.exc
from torch import Tensor

from onepass.benchmarks.base import Benchmark
from onepass.config import Config
from onepass.learner import Learner
from onepass.objectives import MetaLoss, meta_loss
from onepass.step import draw_step, set_step, update

Steps = Generator[Tensor, int, None]
"""Sent the number of a step, it takes that step and yields the losses."""


def captured_steps(
    config: Config,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    tell: Callable[[str], None],
    compiled: bool = True,
) -> Callable[[int], Tensor]:
    """`train_step` for a CUDA card; a phase that cannot be recorded is taken step by step."""
    rng = torch.Generator(next(learner.parameters()).device)
    loss = compiled_loss(tell) if compiled and has_triton() else meta_loss
    phases: dict[tuple[str, bool], Steps] = {}

    def begin(step: int) -> None:
        set_step(config, step, optimiser, rng)

    def now(step: int) -> Tensor:
        drawn = draw_step(config, step, benchmark, learner.target, rng)
        return update(config, step, drawn, learner, optimiser, loss)

    def take(step: int) -> Tensor:
        phase = config.objective_at(step), config.guided(step)
        if phase not in phases:
            phases[phase] = phase_steps(begin, now, learner, optimiser, rng, tell)
            next(phases[phase])
        return phases[phase].send(step)

    return take


def phase_steps(
    begin: Callable[[int], None],
    now: Callable[[int], Tensor],
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    rng: torch.Generator,
    tell: Callable[[str], None],
) -> Steps:
    """Two steps as they are, then a recording of one, replayed ever after."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    step = yield torch.empty(0)
    # kernels are chosen and the optimiser's moments made
    begin(step)
    with beside(stream):
        losses = now(step)
    step = yield losses
    try:
        begin(step)
        with beside(stream), no_waiting(learner):
            losses = now(step)
        step = yield losses
        graph.register_generator_state(rng)
        optimiser.zero_grad(set_to_none=True)
        begin(step)
        with torch.cuda.graph(graph, stream=stream):
            losses = now(step)
    except RuntimeError as error:
        tell(f"steps are taken one by one, since they cannot be recorded: {first_line(error)}")
        while True:
            begin(step)
            step = yield now(step)
    while True:
        begin(step)
        graph.replay()
        step = yield losses.clone()


@contextmanager
def beside(stream: torch.cuda.Stream) -> Iterator[None]:
    """On another stream, in turn with this one; recordings cannot be made on the default one."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)


@contextmanager
def no_waiting(learner: Learner) -> Iterator[None]:
    """Whatever would make the host wait for the card is an error, and leaves no trace.

    A recording cannot hold such a step; found out here, before a recording would be spoilt.
    """
    before = [buffer.clone() for buffer in learner.buffers()]
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError:
        torch.cuda.set_sync_debug_mode(mode)
        for buffer, value in zip(learner.buffers(), before, strict=True):
            buffer.copy_(value)
        raise
    finally:
        torch.cuda.set_sync_debug_mode(mode)


def compiled_loss(tell: Callable[[str], None]) -> Callable[..., MetaLoss]:
    """`meta_loss` with its small kernels melted together; as it is where that does not work."""
    compiled, failed = torch.compile(meta_loss, dynamic=False), False

    def loss(*arguments: Any) -> MetaLoss:
        nonlocal failed
        if not failed:
            try:
                return compiled(*arguments)
            except torch._dynamo.exc.TorchDynamoException as error:
                failed = True
                tell(f"steps are not compiled, since that fails here: {first_line(error)}")
        return meta_loss(*arguments)

    return loss


def has_triton() -> bool:
    """Compiled kernels need it, and not every build of torch brings it."""
    return importlib.util.find_spec("triton") is not None


def first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
