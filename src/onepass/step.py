"""One meta-training step: sample, loss, backward, update."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from onepass import ranks
from onepass.benchmarks.base import Benchmark, draw, draw_varied
from onepass.config import Config
from onepass.episodes import Episodes
from onepass.learner import Learner
from onepass.objectives import OBJECTIVES, MetaLoss, meta_loss
from onepass.prefetch import WORKERS, ahead
from onepass.seeds import derive, generator
from onepass.targets import Target

Drawn = tuple[Episodes, Tensor | None]
"""The episodes of a step, and after how many examples each query comes."""


def plain_steps(
    config: Config,
    first: int,
    benchmark: Benchmark,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
) -> Generator[Tensor, None, None]:
    """The losses of each step from `first` on, taken when asked for."""
    device = next(learner.parameters()).device
    with closing(drawn_steps(config, first, benchmark, learner.target, device)) as coming:
        for step, drawn in enumerate(coming, first):
            yield train_step(config, step, drawn, learner, optimiser)


def drawn_steps(
    config: Config, first: int, benchmark: Benchmark, target: Target, device: torch.device
) -> Generator[Drawn, None, None]:
    """What each step from `first` on sees; drawn ahead by threads where the host must help."""

    def make(step: int) -> Drawn:
        rng = generator(device, config.seed, "data", step)
        return draw_step(config, step, benchmark, target, rng)

    workers = 0 if benchmark.on_device(device) else WORKERS
    return ahead(make, first, config.steps, workers, device)


def draw_step(
    config: Config, step: int, benchmark: Benchmark, target: Target, rng: torch.Generator
) -> Drawn:
    """The whole batch is drawn, and of many processes each takes its share."""
    form = draw_varied if config.order == "varied" else draw
    episodes = form(benchmark, target, "train", config.spec, config.batch, rng)
    stop = OBJECTIVES[config.objective_at(step)](episodes, config.tasks, rng)
    return [*parts(episodes, stop, ranks.count())][ranks.rank()]


def train_step(
    config: Config, step: int, drawn: Drawn, learner: Learner, optimiser: torch.optim.Optimizer
) -> Tensor:
    """One update; [loss, guidance, error], still on the device."""
    set_step(config, step, optimiser)
    return update(config, config.guided(step), drawn, learner, optimiser, meta_loss)


def set_step(config: Config, step: int, optimiser: torch.optim.Optimizer) -> None:
    """What changes from step to step: the seed of dropout, and the rate, be it on the card."""
    # each process has masks of its own; the first has those of a single one
    own = [ranks.rank()] if ranks.rank() else []
    torch.manual_seed(derive(config.seed, "dropout", step, *own))
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(config.rate_at(step))
        else:
            group["lr"] = config.rate_at(step)


def update(
    config: Config,
    guided: bool,
    drawn: Drawn,
    learner: Learner,
    optimiser: torch.optim.Optimizer,
    loss: Callable[..., MetaLoss],
) -> Tensor:
    """Loss, backward, the mean over all processes, and a step of the optimiser."""
    device = drawn[0].train.x.device
    is_bf16 = config.precision_on(device.type) == "bf16"
    optimiser.zero_grad(set_to_none=True)
    totals = torch.zeros(3, device=device)
    for part, part_stop in parts(*drawn, config.accumulate):
        try:
            with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                losses = loss(learner, part, part_stop, guided)
            total = losses.loss + config.guidance * losses.guidance if guided else losses.loss
            (total / config.accumulate).backward()
        except torch.OutOfMemoryError as error:
            raise ValueError(
                f"a step of {config.batch} episodes in {config.accumulate} part(s) does not fit on "
                f"{device}: try accumulate={2 * config.accumulate} learner.norm=group, "
                "or a smaller batch"
            ) from error
        totals += torch.stack([value.detach().float() for value in losses]) / config.accumulate
    gradients = [p.grad for p in learner.parameters() if p.grad is not None]
    ranks.average([*gradients, totals])
    optimiser.step()
    return totals


def parts(episodes: Episodes, stop: Tensor | None, count: int) -> Iterator[Drawn]:
    """The batch in `count` equal pieces, one after the other."""
    batch = len(episodes.train.x)
    for start in range(0, batch, batch // count):
        rows = slice(start, start + batch // count)
        yield tree_map_only(Tensor, lambda t, rows=rows: t[rows], (episodes, stop))
