"""Checkpoints: one file each, whole or not at all, checked when read."""

import json
import zlib
from collections.abc import Callable

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from onepass.files import write_bytes
from onepass.learner import Learner
from onepass.run import Run, cut_metrics

KEPT = 2


def save_checkpoint(
    run: Run, step: int, learner: Learner, optimiser: torch.optim.Optimizer
) -> None:
    """Weights, buffers and the optimiser's moments; random numbers follow from seed and step.

    The checkpoint before this one is kept, older ones go.
    """
    tensors = {f"learner/{name}": value for name, value in learner.state_dict().items()}
    for name, parameter in learner.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser/{key}/{name}"] = value
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, value in tensors.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise FloatingPointError(diverged(run, f"{name} is not finite", step))
    marks = {"step": str(step), "seed": str(run.config.seed), "checksum": _checksum(tensors)}
    write_bytes(run.checkpoint_path(step), save(tensors, metadata=marks))
    for path in run.checkpoints()[KEPT:]:
        path.unlink()


def diverged(run: Run, what: str, step: int, hint: str = "") -> str:
    kept = run.checkpoints()
    last = f"the last good checkpoint is {kept[0]}" if kept else "there is no checkpoint yet"
    return f"{what} at step {step} with seed {run.config.seed}; {last}. Try a lower rate{hint}."


def resume(
    run: Run, learner: Learner, optimiser: torch.optim.Optimizer, tell: Callable[[str], None]
) -> int:
    """Put back the newest sound checkpoint; how many steps are done."""
    step, tensors, passed_over = load_checkpoint(run)
    for line in passed_over:
        tell(line)
    if passed_over and not step:
        tell("no sound checkpoint is left, so the run starts over")
    cut_metrics(run, step)
    if not step:
        return 0
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
            if value is not None:
                # the fused step counter lives beside the parameter, the plain one on the CPU
                on_device = key != "step" or device.type == "cuda"
                optimiser.state[parameter][key] = value.to(device) if on_device else value
    tell(f"resumed from step {step}")
    return step


def load_checkpoint(run: Run) -> tuple[int, dict[str, Tensor], list[str]]:
    """The newest sound checkpoint (or step 0 and nothing), and what was passed over."""
    passed_over = []
    for path in run.checkpoints():
        try:
            content = path.read_bytes()
            tensors = load(content)
            marks = _metadata(content)
        except (SafetensorError, ValueError, KeyError) as error:
            passed_over.append(f"{path.name} is damaged ({error}), so it is passed over")
            continue
        if marks.get("checksum") != _checksum(tensors):
            passed_over.append(f"{path.name} is damaged (wrong checksum), so it is passed over")
            continue
        return int(marks["step"]), tensors, passed_over
    return 0, {}, passed_over


def _metadata(content: bytes) -> dict[str, str]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length])["__metadata__"]


def _checksum(tensors: dict[str, Tensor]) -> str:
    code = 0
    for name in sorted(tensors):
        code = zlib.crc32(name.encode(), code)
        code = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, code)
    return f"{code:08x}"
