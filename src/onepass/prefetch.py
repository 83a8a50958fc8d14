"""What later steps need, made ahead of them by threads.

It can be made at any time: the random numbers of a step follow from its number alone.
"""

from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

WORKERS = 4
T = TypeVar("T")


def ahead(
    make: Callable[[int], T], first: int, last: int, workers: int, device: torch.device
) -> Generator[T, None, None]:
    """`make` of every step from `first` to before `last`, in order, up to 2 steps early a worker.

    Without workers each is made when it is asked for. Close it, and the threads end.
    """
    if not workers:
        yield from map(make, range(first, last))
        return
    pool = ThreadPoolExecutor(workers, "ahead", initializer=_own_stream, initargs=(device,))
    try:
        early = 2 * workers
        soon = range(first, min(first + early, last))
        coming = deque(pool.submit(_made, make, step, device) for step in soon)
        for step in range(first, last):
            made, event = coming.popleft().result()
            if step + early < last:
                coming.append(pool.submit(_made, make, step + early, device))
            if event is not None:
                _hand_over(made, event, device)
            yield made
    finally:
        pool.shutdown(cancel_futures=True)


def _own_stream(device: torch.device) -> None:
    """On a card, what a thread does waits for nothing that training does, nor the other way."""
    if device.type == "cuda":
        torch.cuda.set_stream(torch.cuda.Stream(device))


def _made(
    make: Callable[[int], T], step: int, device: torch.device
) -> tuple[T, torch.cuda.Event | None]:
    made = make(step)
    if device.type != "cuda":
        return made, None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return made, event


def _hand_over(made: object, event: torch.cuda.Event, device: torch.device) -> None:
    """The stream that asked goes on when all is there, and until then nobody gets its memory."""
    stream = torch.cuda.current_stream(device)
    stream.wait_event(event)
    for leaf in tree_leaves(made):
        if isinstance(leaf, Tensor):
            leaf.record_stream(stream)
