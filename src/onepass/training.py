"""Meta-training, one function read top to bottom: sample, loss, backward, step, log, checkpoint."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onepass import ranks
from onepass.benchmarks.base import Benchmark
from onepass.checkpoint import checkpoint_due, diverged, resume, save_checkpoint, share_state
from onepass.config import Config, build, resolved
from onepass.devices import peak_gb, pick_device
from onepass.episodes import Split
from onepass.evaluation import Evaluation, evaluate
from onepass.fast import Tell, captured_steps
from onepass.files import append_line
from onepass.learner import Learner, count_parameters
from onepass.progress import Show, progress
from onepass.run import Run, load_weights, opened, save_weights, write_result
from onepass.signals import Interrupted, caught_signals, leave
from onepass.step import plain_steps


def train(config: Config, path: Path, device: str = "auto", tell: Tell = print) -> Learner:
    """Meta-train, evaluate, write the result; goes on where an earlier call left off.

    Under torchrun all processes train it together, and the first one writes.
    """
    where, config = pick_device(device), resolved(config)
    with ranks.joined(where):
        with ranks.machine_first():
            benchmark, learner = build(config)
            check_trainable(config, benchmark, learner)
        placed(learner, where)
        ranks.share_statistics(learner)
        slow = [parameter for parameter in learner.parameters() if parameter.requires_grad]
        optimiser = make_optimiser(config, slow, where) if slow else None
        if ranks.is_first():
            lead(config, path, benchmark, learner, optimiser, tell)
            ranks.agreed([])
        else:
            follow(config, path, benchmark, learner, optimiser)
    return learner


def lead(
    config: Config,
    path: Path,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer | None,
    tell: Tell,
) -> None:
    """All that the one process does, or the first of many: it reads and writes the run."""
    with opened(path, config) as run, caught_signals() as caught:
        if run.has("result.json"):
            tell(f"{path} is finished already; its result stands")
            load_weights(run.weights, learner)
            if optimiser:
                share_state(config.steps, learner, optimiser)
            return
        where, memory = next(learner.parameters()).device, None
        if optimiser:
            with lost(path):
                memory = meta_train(run, config, benchmark, learner, optimiser, caught, tell)
        else:
            tell(f"{config.learner.name} has nothing to meta-train, so it is only evaluated")
        save_weights(run.weights, learner)
        scores = final_scores(config, benchmark, learner, caught)
        steps, seconds = (config.steps, seconds_so_far(run)) if optimiser else (0, 0.0)
        write_result(run, scores, count_parameters(learner), steps, seconds, memory, where)


def follow(
    config: Config,
    path: Path,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer | None,
) -> None:
    """What the other processes do: the same steps, in silence, then wait for the first."""
    with caught_signals(word=None) as caught, lost(path):
        if optimiser:
            done = share_state(0, learner, optimiser)
            learner.train()
            coming = steps(config, done, benchmark, learner, optimiser, tell=lambda line: None)
            with contextlib.closing(coming):
                for _ in coming:
                    if stopping := ranks.agreed(caught):
                        raise Interrupted("", stopping[0])
        ranks.agreed([])


@contextlib.contextmanager
def lost(path: Path) -> Iterator[None]:
    """Words on how to go on when another process is gone."""
    try:
        yield
    except ConnectionError as error:
        again = f"the same command goes on from the last checkpoint in {path}"
        if not Run(path).checkpoints():
            again = f"{path} has no checkpoint yet, so that the same command begins anew"
        raise ConnectionError(f"{error}; {again}") from error


def meta_train(
    run: Run,
    config: Config,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    caught: list[int],
    tell: Tell,
) -> float | None:
    """The loop itself, from the last checkpoint to the last step.

    How many GB of a card were in use at most is handed back, if a step was taken on one.
    """
    done = share_state(resume(run, learner, optimiser, tell), learner, optimiser)
    with (
        progress("meta-training", config.steps, done) as show,
        events(run, done) as log,
        contextlib.closing(steps(config, done, benchmark, learner, optimiser, tell)) as coming,
    ):
        earlier, started = seconds_so_far(run), time.monotonic()
        # the first line of the log comes with a checkpoint, so that little is ever lost
        saved = started if done else -math.inf
        learner.train()
        pending: list[Tensor] = []

        def write_pending(step: int) -> None:
            if pending:
                seconds = earlier + time.monotonic() - started
                write_line(run, config, step, pending, seconds, learner.hint(), show, log)
                pending.clear()

        for after, losses in enumerate(coming, done + 1):
            pending.append(losses)
            if after < config.steps:
                show(after)
            if due(after, config.log_every, config.steps):
                write_pending(after)
            if config.evaluate_every and due(after, config.evaluate_every, config.steps):
                paused = time.monotonic()
                write_evaluation(run, config, after, benchmark, learner, caught, log)
                started += time.monotonic() - paused
            # looked at once: a signal that comes later is for the next step
            stopping = ranks.agreed(caught)
            if stopping or checkpoint_due(config, after, saved):
                write_pending(after)
                save_checkpoint(run, after, learner, optimiser)
                saved = time.monotonic()
            leave(stopping, f"after step {after}, saved in {run.path}")
    return peak_gb(next(learner.parameters()).device) if done < config.steps else None


def placed(learner: Learner, device: torch.device) -> Learner:
    """The same learner, on the device and in the layout that it trains fastest in."""
    learner.to(device)
    if device.type == "cuda":
        # the layout the card's convolutions want; on a CPU it would be slower
        learner.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    return learner


def make_optimiser(
    config: Config, parameters: list[nn.Parameter], device: torch.device
) -> torch.optim.Optimizer:
    if device.type != "cuda":
        return torch.optim.Adam(parameters, config.rate)
    # its rate lives on the card, where a recorded step finds the new one
    rate = torch.tensor(config.rate, device=device)
    return torch.optim.Adam(parameters, rate, fused=True, capturable=True)


def steps(
    config: Config,
    first: int,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    tell: Tell,
) -> Generator[Tensor, None, None]:
    """The losses of every step, taken one by one, or recorded and replayed on a CUDA card."""
    if next(learner.parameters()).device.type == "cuda":
        return captured_steps(config, first, benchmark, learner, optimiser, tell)
    return plain_steps(config, first, benchmark, learner, optimiser)


def check_trainable(config: Config, benchmark: Benchmark, learner: Learner) -> None:
    """What cannot work, said before the first step."""
    if config.batch % (ranks.count() * config.accumulate):
        among = f"{ranks.count()} processes x " if ranks.count() > 1 else ""
        raise ValueError(
            f"a batch of {config.batch} does not divide by {among}accumulate={config.accumulate}"
        )
    statistics = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in learner.modules())
    if config.accumulate > 1 and statistics:
        raise ValueError(
            f"accumulate={config.accumulate} would change what batch-norm sees: "
            "use learner.norm=group, or accumulate=1"
        )
    for split in benchmark.splits:
        if split == "validation" and not config.evaluate_every:
            continue
        # episodes that cannot be drawn show here, not at the end of a long run
        benchmark.sample(split, config.spec, 1, torch.Generator().manual_seed(0))


def due(step: int, every: int, steps: int) -> bool:
    return step % every == 0 or step == steps


def write_line(
    run: Run,
    config: Config,
    step: int,
    pending: list[Tensor],
    seconds: float,
    hint: str,
    show: Show,
    log: Callable[[int, dict[str, float]], None],
) -> None:
    """Mean loss since the last line; a loss that is not finite ends the run here."""
    values = torch.stack(pending).cpu()
    bad = (~torch.isfinite(values).all(1)).nonzero()
    if len(bad):
        first = step - len(pending) + int(bad[0]) + 1
        raise FloatingPointError(diverged(run, "the loss is not finite", first, hint))
    loss, guidance, error = values.mean(0).tolist()
    speed = step * config.batch / max(seconds, 1e-9)
    line = {
        "step": step,
        "loss": loss,
        "guidance": guidance,
        "error": error,
        "rate": config.rate_at(step - 1),
        "episodes_per_s": speed,
        "seconds": seconds,
    }
    append_line(run.metrics, json.dumps(line))
    log(step, {key: line[key] for key in ("loss", "guidance", "error", "rate", "episodes_per_s")})
    show(step, f"loss {loss:.3f}  error {error:.3f}  {speed:,.0f} episodes/s")


def write_evaluation(
    run: Run,
    config: Config,
    step: int,
    benchmark: Benchmark,
    learner: Learner,
    caught: list[int],
    log: Callable[[int, dict[str, float]], None],
) -> None:
    """Held-out classes where the benchmark has some; never the ones the result is about."""
    split = "validation" if "validation" in benchmark.splits else "train"
    try:
        held = scored(config, benchmark, learner, split, lambda: leave(caught, "evaluating"))
    except Interrupted:
        # the step is saved next; its evaluation is not worth waiting for
        return
    line = {"step": step, "split": split, "error": held.error, "stderr": held.stderr}
    append_line(run.metrics, json.dumps({**line, "loss": held.loss}))
    log(step, {f"{split}/error": held.error, f"{split}/loss": held.loss})


def final_scores(
    config: Config, benchmark: Benchmark, learner: Learner, caught: list[int]
) -> dict[str, Any]:
    """Meta-test, and meta-train beside it."""
    where = "while evaluating, after the last step"
    return {
        f"meta_{split}": asdict(
            scored(config, benchmark, learner, split, lambda: leave(caught, where))
        )
        for split in ("test", "train")
    }


def scored(
    config: Config, benchmark: Benchmark, learner: Learner, split: Split, look: Callable[[], None]
) -> Evaluation:
    """An evaluation as the config has it, shown while it goes; `look` may end it."""
    with progress(f"evaluating meta-{split}", config.evaluation_episodes) as show:

        def tick(done: int, total: int) -> None:
            look()
            show(done)

        return evaluate(
            learner,
            benchmark,
            config.spec,
            split=split,
            episodes=config.evaluation_episodes,
            batch=config.evaluation_batch,
            seed=config.seed,
            tick=tick,
        )


def seconds_so_far(run: Run) -> float:
    return max((line.get("seconds", 0.0) for line in run.read_metrics()), default=0.0)


@contextlib.contextmanager
def events(run: Run, done: int) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """TensorBoard events beside the metrics file."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.path / "events"), purge_step=done + 1) as writer:

        def log(step: int, values: dict[str, float]) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield log
