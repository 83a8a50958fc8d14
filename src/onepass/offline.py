"""Offline: a fresh network trained on one episode's whole train set, as if nothing were continual.

Not a learner: it sees everything at once and as often as it likes. The score is the best one on the
episode's queries while it trains, as in the paper, which flatters it; mean and standard error over
repeats.
"""

import math
import time
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass
from torch import nn

from onepass import ranks
from onepass.benchmarks.base import Benchmark, draw
from onepass.config import STRICT, Config, Positive, first_problem, resolved
from onepass.devices import pick_device
from onepass.encoders import Norm, make_encoder
from onepass.evaluation import stderr_of
from onepass.progress import progress
from onepass.registry import BENCHMARKS, PositiveReal
from onepass.run import opened, write_result
from onepass.seeds import derive, generator
from onepass.training import Tell

EVERY = 10  # updates between two looks at the queries


@dataclass(frozen=True, config=STRICT)
class Offline:
    """The paper does not say how its networks were trained; these settings are ours.

    Batch-norm is not the default: with so few examples it does worse than no norm at all.
    """

    repeats: Positive = 10
    updates: Positive = 600
    batch: Positive = 16
    rate: PositiveReal = 1e-3
    width: Positive = 512
    encoder: str = "auto"
    norm: Norm = "none"


def offline(config: Config, path: Path, device: str = "auto", tell: Tell = print) -> None:
    """Like `train`, with the same files in the end; there are no weights worth keeping."""
    where = pick_device(device)
    if ranks.launched() > 1:
        raise ValueError("offline takes one process: start it without torchrun")
    try:
        options = TypeAdapter(Offline).validate_python(config.learner.options)
    except ValidationError as error:
        raise ValueError(f"offline: {first_problem(error)}") from error
    if options.norm == "batch" and min(config.spec.length, options.batch) == 1:
        raise ValueError("one example has no batch statistics: use learner.norm=group")
    config = resolved(config)
    benchmark = BENCHMARKS.build(config.benchmark.name, **config.benchmark.options)
    with opened(path, config) as run:
        if run.has("result.json"):
            tell(f"{path} is finished already; its result stands")
            return
        started, rows = time.monotonic(), []
        with progress("offline repeats", options.repeats) as show:
            for repeat in range(options.repeats):
                rows.append(one_episode(config, options, benchmark, where, repeat))
                show(repeat + 1, f"error {rows[-1][0]:.3f}")
        outcomes = torch.tensor(rows, dtype=torch.float64)
        mean, stderr = outcomes.mean(0).tolist(), stderr_of(outcomes).tolist()
        score = {"error": mean[0], "stderr": stderr[0], "loss": mean[1], "loss_stderr": stderr[1]}
        nothing = dict.fromkeys(score)
        scores = {
            "meta_test": score | {"episodes": options.repeats},
            # there is no meta-training, so nothing was meta-trained on
            "meta_train": nothing | {"episodes": 0},
        }
        seconds = time.monotonic() - started
        parameters = sum(p.numel() for p in network_for(config, options, benchmark).parameters())
        write_result(run, scores, parameters, 0, seconds, None, where)


def network_for(config: Config, options: Offline, benchmark: Benchmark) -> nn.Sequential:
    body = make_encoder(benchmark.x_shape, options.width, options.encoder, options.norm)
    return nn.Sequential(body, nn.Linear(body.features, benchmark.target(config.spec).outputs))


def one_episode(
    config: Config, options: Offline, benchmark: Benchmark, device: torch.device, repeat: int
) -> tuple[float, float]:
    """The best error on the queries while a fresh network trains, and the loss at that moment."""
    target = benchmark.target(config.spec)
    rng = generator(device, config.seed, "offline", repeat)
    train, test, _ = draw(benchmark, target, "test", config.spec, 1, rng)
    torch.manual_seed(derive(config.seed, "offline network", repeat))
    network = network_for(config, options, benchmark).to(device)
    optimiser = torch.optim.Adam(network.parameters(), options.rate)
    best = (float("inf"), float("inf"))
    for update in range(1, options.updates + 1):
        network.train()
        rows = torch.randperm(config.spec.length, generator=rng, device=device)[: options.batch]
        optimiser.zero_grad()
        target.loss(network(train.x[0][rows])[None], train.y[:, rows]).mean().backward()
        optimiser.step()
        if update % EVERY == 0 or update == options.updates:
            network.eval()
            with torch.no_grad():
                answer = network(test.x[0])[None]
            error, loss = (f(answer, test.y).mean().item() for f in (target.error, target.loss))
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the network's answers are not finite after {update} updates; "
                    f"learner.rate is {options.rate:g}: a lower one may help"
                )
            best = min(best, (error, loss))
    return best
