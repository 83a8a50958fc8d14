"""Choosing without replacement, many rows at once and without a loop over them."""

import torch
from jaxtyping import Int
from torch import Tensor

FEW = 1_024  # to choose from; of more, a key for each costs more than it is worth
CHOSEN = 256  # of which each is held against each; of more, that costs more than a loop


def distinct(rows: tuple[int, ...], among: int, count: int, rng: torch.Generator) -> Tensor:
    """[*rows, count] numbers below `among`, uniform, none twice in a row."""
    if _keys_are_cheap(among, count):
        return _keys((*rows, among), rng).topk(count).indices
    if count <= CHOSEN:
        return _first_different(rows, among, count, rng)
    return _by_floyd(torch.full(rows, among, device=rng.device), count, rng)


def distinct_within(
    sizes: Int[Tensor, "*rows"], largest: int, count: int, rng: torch.Generator
) -> Int[Tensor, "*rows count"]:
    """The same where each row chooses among its own number, none above `largest`."""
    if not _keys_are_cheap(largest, count):
        return _by_floyd(sizes, count, rng)
    keys = _keys((*sizes.shape, largest), rng)
    # those past the end of a row sort last
    past = torch.arange(largest, device=rng.device) >= sizes[..., None]
    return keys.masked_fill(past, -1).topk(count).indices


def _keys_are_cheap(among: int, count: int) -> bool:
    return among <= max(FEW, 4 * count)


def _keys(shape: tuple[int, ...], rng: torch.Generator) -> Tensor:
    if shape[-1] <= FEW:
        return torch.rand(shape, generator=rng, device=rng.device)
    # a float has 24 random bits: of many, two would be equal too often
    return torch.randint(2**62, shape, generator=rng, device=rng.device)


def _first_different(rows: tuple[int, ...], among: int, count: int, rng: torch.Generator) -> Tensor:
    """The first different ones of more draws than are needed, in a handful of kernels.

    Where there are at least 4 times as many to choose from as are chosen, and 1,024, a row whose
    draws do not suffice comes less often than once in 10^50.
    """
    draws = 2 * count + 16
    drawn = torch.randint(among, (*rows, draws), generator=rng, device=rng.device)
    again = (drawn[..., :, None] == drawn[..., None, :]).tril(-1).any(-1)
    # in the order of their drawing, repeated ones after all others
    place = torch.arange(draws, device=rng.device) + draws * again
    first = place.topk(count, largest=False).values
    return drawn.gather(-1, first % draws)


def _by_floyd(sizes: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """Floyd's choice: its memory is that of what is chosen, however much there is to choose from.

    Place i draws a number up to `size - count + i` and takes that bound itself, which no earlier
    place could have, where the number is taken already (Bentley and Floyd 1987).
    """
    bound = (sizes - count)[..., None] + torch.arange(count, device=sizes.device)
    shape = bound.shape
    drawn = torch.randint(2**62, shape, generator=rng, device=rng.device) % (bound + 1)
    chosen = drawn.clone()
    for place in range(1, count):
        number = drawn[..., place]
        taken = (chosen[..., :place] == number[..., None]).any(-1)
        chosen[..., place] = torch.where(taken, bound[..., place], number)
    # every set is as likely, but not every order of it
    order = torch.rand(shape, generator=rng, device=rng.device).argsort(-1)
    return chosen.gather(-1, order)
