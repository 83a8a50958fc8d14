"""Signals that end a run in good order."""

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Interrupted(Exception):
    """Asked to stop by a signal; everything is saved."""

    def __init__(self, message: str, number: int):
        super().__init__(message)
        self.exit_code = 128 + number


@contextmanager
def caught_signals(
    word: str | None = "finishing this step, then saving; once more to leave at once",
) -> Iterator[list[int]]:
    """A list that SIGINT and SIGTERM write themselves into; a second one acts as it would have.

    `word` is what a person is told of it; with None, nothing.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def catch(number: int, frame: object) -> None:
        caught.append(number)
        if word:
            print(f"{signal.Signals(number).name}: {word}", file=sys.stderr, flush=True)
        signal.signal(number, before[number])  # pyright: ignore[reportArgumentType]

    for number in before:
        signal.signal(number, catch)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def leave(caught: list[int], where: str) -> None:
    """Raise `Interrupted` if a signal was caught, with a word on how to go on."""
    if caught:
        name = signal.Signals(caught[0]).name
        message = f"stopped by {name} {where}; the same command goes on from there"
        raise Interrupted(message, caught[0])
