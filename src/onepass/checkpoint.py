"""Checkpoints: one file each, whole or not at all, checked when read."""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from onepass import ranks
from onepass.config import Config, to_json
from onepass.files import write_bytes
from onepass.learner import Learner
from onepass.run import Run, cut_metrics
from onepass.sealed import sealed, unsealed

KEPT = 2
SECONDS_BETWEEN = 60.0


def save_checkpoint(
    run: Run, step: int, learner: Learner, optimiser: torch.optim.Optimizer
) -> None:
    """Weights, buffers and the optimiser's moments; random numbers follow from seed and step.

    The checkpoint before this one is kept, older ones go.
    """
    tensors = _tensors(learner, optimiser)
    for name, _ in learner.named_parameters():
        if not torch.isfinite(tensors[f"learner/{name}"]).all():
            raise FloatingPointError(diverged(run, f"{name} is not finite", step, learner.hint()))
    marks = {"step": str(step), "config": _fingerprint(run)}
    write_bytes(run.checkpoint_path(step), sealed(tensors, marks))
    for path in run.checkpoints()[KEPT:]:
        path.unlink()


def _tensors(learner: Learner, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {f"learner/{name}": value for name, value in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser/{key}/{name}"] = value
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def checkpoint_due(config: Config, step: int, saved: float) -> bool:
    """By steps, or by the time since one was saved: a fast run need not write all the time."""
    if step == config.steps:
        return True
    if config.checkpoint_every is not None:
        return step % config.checkpoint_every == 0
    # together with a line of the log, which would otherwise be cut in two by the clock
    return step % config.log_every == 0 and time.monotonic() - saved > SECONDS_BETWEEN


def diverged(run: Run, what: str, step: int, hint: str = "") -> str:
    kept = run.checkpoints()
    last = f"the last good checkpoint is {kept[0]}" if kept else "there is no checkpoint yet"
    return f"{what} at step {step} with seed {run.config.seed}; {last}. Try a lower rate{hint}."


def resume(
    run: Run, learner: Learner, optimiser: torch.optim.Optimizer, tell: Callable[[str], None]
) -> int:
    """Put back the newest sound checkpoint; how many steps are done."""
    step, tensors, passed_over = load_checkpoint(run)
    for path, reason in passed_over.items():
        tell(f"{path.name} {reason}, so it is passed over")
        # else it would count as the newest, and sound ones would go in its place
        path.unlink()
    if passed_over and not step:
        tell("no sound checkpoint is left, so the run starts over")
    cut_metrics(run, step)
    if not step:
        return 0
    _put_back(tensors, learner, optimiser)
    tell(f"resumed from step {step}")
    return step


def share_state(step: int, learner: Learner, optimiser: torch.optim.Optimizer) -> int:
    """All processes go on from where the first one is; how many steps are done there."""
    if ranks.count() == 1:
        return step
    if ranks.is_first():
        ranks.from_first(sealed(_tensors(learner, optimiser), {"step": str(step)}))
        return step
    tensors, marks = unsealed(ranks.from_first(b""))
    _put_back(tensors, learner, optimiser)
    return int(marks["step"])


def _put_back(
    tensors: dict[str, Tensor], learner: Learner, optimiser: torch.optim.Optimizer
) -> None:
    device = next(learner.parameters()).device
    weights = {
        name.removeprefix("learner/"): value
        for name, value in tensors.items()
        if name.startswith("learner/")
    }
    learner.load_state_dict(weights)
    for name, parameter in learner.named_parameters():
        for key in ("step", "exp_avg", "exp_avg_sq"):
            value = tensors.get(f"optimiser/{key}/{name}")
            if value is None:
                continue
            if key == "step":
                # the fused step counter lives beside the parameter, the plain one on the CPU
                state = value.to(device) if device.type == "cuda" else value
            else:
                # in the layout of the parameter, which the fused step takes for granted
                state = torch.empty_like(parameter, requires_grad=False).copy_(value)
            optimiser.state[parameter][key] = state


def load_checkpoint(run: Run) -> tuple[int, dict[str, Tensor], dict[Path, str]]:
    """The newest sound checkpoint (or step 0 and nothing), and what was passed over and why."""
    passed_over: dict[Path, str] = {}
    for path in run.checkpoints():
        try:
            tensors, marks = unsealed(path.read_bytes())
            step = int(marks["step"])
        except (ValueError, KeyError) as error:
            passed_over[path] = f"is damaged ({error})"
            continue
        if marks["config"] != _fingerprint(run):
            passed_over[path] = "is of another config"
        else:
            return step, tensors, passed_over
    return 0, {}, passed_over


def _fingerprint(run: Run) -> str:
    """Of everything that decides what a checkpoint means."""
    settings = json.dumps(to_json(run.config), sort_keys=True)
    return hashlib.sha256(settings.encode()).hexdigest()
