"""Every random number follows from a seed and what it is for, so that nothing has to be remembered.

The data and the dropout of step 1,000 are the same whether a run got there in one go or was
resumed at step 999.
"""

import hashlib

import torch


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed of its own for each purpose."""
    text = "/".join(str(part) for part in (seed, *purpose))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


def generator(device: torch.device, seed: int, *purpose: str | int) -> torch.Generator:
    return torch.Generator(device).manual_seed(derive(seed, *purpose))
