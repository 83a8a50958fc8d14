"""How long things take on a device, and what it could do at best."""

import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch


class Ceilings(NamedTuple):
    """What one large product and one large copy reach on this machine."""

    flops_per_s: float
    bytes_per_s: float  # read and written


def wait_for(device: torch.device) -> None:
    """Until everything asked of a card is done; a CPU is always done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    wait_for(device)
    started = time.perf_counter()
    call()
    wait_for(device)
    return time.perf_counter() - started


def seconds_each(call: Callable[[], object], repeats: int, device: torch.device) -> list[float]:
    """Every call timed on its own, after a few that are not."""
    for _ in range(3):
        call()
    return [seconds_of(call, device) for _ in range(repeats)]


def ceilings(device: torch.device) -> Ceilings:
    """The best of several: whatever else the machine does only makes it slower."""
    on_card = device.type == "cuda"
    size, numbers = (8_192, 2**28) if on_card else (1_024, 2**25)
    dtype = torch.bfloat16 if on_card else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.zeros(numbers, device=device)
    target = torch.empty_like(source)
    multiply = seconds_each(lambda: torch.mm(a, b, out=product), 20, device)
    copy = seconds_each(lambda: target.copy_(source), 20, device)
    return Ceilings(2 * size**3 / min(multiply), 2 * 4 * numbers / min(copy))


def card_name(device: torch.device) -> str:
    """What the work ran on, as its maker calls it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.is_file() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return name if device.type == "cpu" else f"{name} ({device.type})"
