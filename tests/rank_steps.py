"""Meta-training steps in float64, in one process or as one of many; run by test_ranks."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.utils._pytree import tree_map_only

from onepass import ranks
from onepass.checkpoint import resume, save_checkpoint, share_state
from onepass.config import Config, build, from_json
from onepass.run import opened
from onepass.seeds import generator
from onepass.step import draw_step, train_step
from onepass.training import check_trainable


def take_steps(config: Config, path: Path | None = None, until: int = 0) -> dict[str, Tensor]:
    """Weights, buffers and losses after all steps, every number of 64 bits.

    With a path it goes on from the run there, and saves what it came to.
    """
    benchmark, learner = build(config)
    check_trainable(config, benchmark, learner)
    learner.double().train()
    ranks.share_statistics(learner)
    optimiser = torch.optim.Adam(learner.parameters(), config.rate)
    losses = []
    with opened(path, config) if path and ranks.is_first() else nullcontext() as run:
        done = resume(run, learner, optimiser, tell=lambda line: None) if run else 0
        for step in range(share_state(done, learner, optimiser), until or config.steps):
            rng = generator(torch.device("cpu"), config.seed, "data", step)
            drawn = tree_map_only(
                Tensor,
                lambda part: part.double() if part.is_floating_point() else part,
                draw_step(config, step, benchmark, learner.target, rng),
            )
            losses.append(train_step(config, step, drawn, learner, optimiser))
        if run:
            save_checkpoint(run, until or config.steps, learner, optimiser)
    return {**learner.state_dict(), "losses": torch.stack(losses)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    configs, out, *resumed = json.loads(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]
    arguments = [Path(resumed[0]), int(resumed[1])] if resumed else []
    with ranks.joined(torch.device("cpu")):
        for name, content in configs.items():
            found = take_steps(from_json(content), *arguments)
            save_file(found, out / f"{name}-{ranks.rank()}.safetensors")
