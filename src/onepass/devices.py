"""Which processor or card a run is on."""

import torch

from onepass import ranks


def pick_device(name: str) -> torch.device:
    """`auto` takes a CUDA card or Apple's GPU where there is one."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    if name == "auto":
        name = next(kind for kind in ("cuda", "mps", "cpu") if there[kind])
    kind = name.partition(":")[0]
    if not there.get(kind, False):
        choices = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise ValueError(f"no device {name!r} on this machine; there are: auto, {choices}")
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")
        name = ranks.own_card(name)
        if ":" in name:
            # kernels of our own and new streams go to the current card
            torch.cuda.set_device(name)
    return torch.device(name)


def peak_gb(device: torch.device) -> float | None:
    """What this process had in use of a card's memory at most; None where there is no card."""
    return torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
