"""The captured step: what a step does on a CUDA card, recorded once and then only replayed.

A step is hundreds of small kernels, and launching them takes the host longer than the card needs to
run them. A CUDA graph launches all of them at once: sampling, loss, backward and update. There is
one graph per phase, since guidance and mid-stream queries are other kernels; no phase comes back,
so the memory of the last one goes before the next is recorded. What changes from step to step is
read from the card: the seeds through generators that the graph knows, the rate as a tensor. So a
captured run draws the same episodes and the same dropout as a plain one.
"""

import re
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import torch
import torch._dynamo.exc
import torch._functorch.config
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from onepass.benchmarks.base import Benchmark
from onepass.config import Config
from onepass.encoders import MANY
from onepass.kernels import HAS_KERNEL
from onepass.learner import Learner
from onepass.objectives import MetaLoss, meta_loss
from onepass.seeds import derive
from onepass.step import Drawn, draw_step, drawn_steps, set_step, update

T = TypeVar("T")
Tell = Callable[[str], None]
Phase = Generator[Tensor, int, None]
"""Sent the number of a step, it takes that step and yields the losses."""


def captured_steps(
    config: Config,
    first: int,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    tell: Tell,
    compiled: bool = True,
) -> Generator[Tensor, None, None]:
    """`plain_steps` for a CUDA card; a phase that cannot be recorded is taken step by step."""
    device = next(learner.parameters()).device
    rng, resident = torch.Generator(device), benchmark.on_device(device)
    examples = config.batch * config.tasks * (config.shots + config.queries)
    tell, places = once(tell), {}
    is_compiled = compiled and HAS_KERNEL
    loss = compiled_loss(tell, examples) if is_compiled else meta_loss
    bodies = learner.loop_bodies if is_compiled else ()
    current, phase = None, None

    def begin(step: int) -> None:
        rng.manual_seed(derive(config.seed, "data", step))
        set_step(config, step, optimiser)

    def now(step: int) -> Tensor:
        if resident:
            drawn = draw_step(config, step, benchmark, learner.target, rng)
        else:
            drawn = places[config.objective_at(step)]
        return update(config, config.guided(step), drawn, learner, optimiser, loss)

    with (
        melted_methods(learner, bodies, tell),
        closing(drawn_steps(config, first, benchmark, learner.target, device)) as coming,
    ):
        for step in range(first, config.steps):
            objective, guided = config.objective_at(step), config.guided(step)
            if not resident:
                hold(places, objective, next(coming))
            if phase is None or (objective, guided) != current:
                if phase is not None:
                    # its last step may still be running
                    torch.cuda.synchronize(device)
                    phase.close()
                current = objective, guided
                phase = phase_steps(begin, now, learner, optimiser, rng, tell)
                next(phase)
            yield phase.send(step)


def once(tell: Tell) -> Tell:
    """The same line only the first time."""
    said: set[str] = set()

    def tell_new(line: str) -> None:
        if line not in said:
            said.add(line)
            tell(line)

    return tell_new


def hold(places: dict[str, Drawn], objective: str, drawn: Drawn) -> None:
    """What the host drew, laid where a recording looks for it."""
    if objective not in places:
        places[objective] = tree_map_only(Tensor, torch.clone, drawn)
        return
    for place, value in zip(tree_leaves(places[objective]), tree_leaves(drawn), strict=True):
        if isinstance(place, Tensor):
            place.copy_(value)


def phase_steps(
    begin: Callable[[int], None],
    now: Callable[[int], Tensor],
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    rng: torch.Generator,
    tell: Tell,
) -> Phase:
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
        # other threads may draw ahead meanwhile
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            losses = now(step)
    except RuntimeError as error:
        tell(f"steps are taken one by one, since they cannot be recorded: {first_line(error)}")
    else:
        while True:
            begin(step)
            graph.replay()
            step = yield losses.clone()
    # not above, where the error would hold all that the failed step left
    while True:
        begin(step)
        # slopes go on being added up on the stream where that began
        with beside(stream):
            losses = now(step)
        step = yield losses


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
    _set_waiting("error")
    try:
        yield
    except RuntimeError:
        _set_waiting(mode)
        for buffer, value in zip(learner.buffers(), before, strict=True):
            buffer.copy_(value)
        raise
    finally:
        _set_waiting(mode)


def _set_waiting(mode: int | str) -> None:
    with warnings.catch_warnings():
        # it says that it is a prototype
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode(mode)


def compiled_loss(tell: Tell, examples: int) -> Callable[..., MetaLoss]:
    """`meta_loss`, there and back."""
    # of a convolution, batch-norm and ReLU in a row, one large tensor is kept for the way back
    # instead of two where there are many, and one more pass makes the other
    torch._functorch.config.ban_recompute_materialized_backward = examples <= MANY
    # the way back, too, is compiled when the loss is, so that what fails there is met there
    torch._functorch.config.force_non_lazy_backward_lowering = True
    # seen in torch 2.11: of what this cache gives back, views of inputs lead to freed memory
    torch._functorch.config.enable_autograd_cache = False
    return melted(meta_loss, tell)


@contextmanager
def melted_methods(learner: Learner, names: Sequence[str], tell: Tell) -> Iterator[None]:
    """Bodies of loops that are too long to be compiled whole."""
    for name in names:
        setattr(learner, name, melted(getattr(learner, name), tell))
    try:
        yield
    finally:
        for name in names:
            delattr(learner, name)


def melted(function: Callable[..., T], tell: Tell) -> Callable[..., T]:
    """With its small kernels melted together; as it is where that does not work."""
    # expressions of so many operations, not 30, are computed where they are read and not stored:
    # on the way back, what queries of linear attention send to keys and values
    with unadvised():
        compiled = torch.compile(
            function, dynamic=False, options={"realize_opcount_threshold": 100}
        )
    failed = False

    def call(*arguments: Any) -> T:
        nonlocal failed
        if not failed:
            try:
                with unadvised():
                    return compiled(*arguments)
            except torch._dynamo.exc.TorchDynamoException as error:
                failed = True
                tell(f"steps are not compiled, since that fails here: {first_line(error)}")
        return function(*arguments)

    return call


@contextmanager
def unadvised() -> Iterator[None]:
    """Without what torch has to say to those who write compilers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")
        yield


def first_line(error: Exception) -> str:
    """What went wrong, in a line; where the first one only announces it, with the last."""
    # torch ends its errors with advice
    text = re.split(r"\n\s*(?:from user code:|Set TORCH)", str(error))[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and lines[1:] else lines[0]
