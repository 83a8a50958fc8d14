"""Long work shown: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_MOVES = 10.0, 0.2


@runtime_checkable
class Show(Protocol):
    def __call__(self, done: int, text: str | None = None) -> None: ...


def tell(line: str) -> None:
    """A word to the person, apart from what a command answers."""
    print(line, file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: int, start: int = 0) -> Iterator[Show]:
    """Gives `show(done, text)`, cheap enough for every step; without a text the last one stays."""
    if sys.stderr.isatty():
        with _bar(what, total, start) as show:
            yield show
    else:
        yield _lines(what, total, start)


@contextmanager
def _bar(what: str, total: int, start: int) -> Iterator[Show]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.fields[text]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(what, total=total, completed=start, text="")
        last = 0.0

        def show(done: int, text: str | None = None) -> None:
            nonlocal last
            now = time.monotonic()
            if text is not None:
                bars.update(task, completed=done, text=text)
            elif now - last > SECONDS_BETWEEN_MOVES or done == total:
                bars.update(task, completed=done)
            else:
                return
            last = now

        yield show


def _lines(what: str, total: int, start: int) -> Show:
    began = last = time.monotonic()

    last_text = ""

    def show(done: int, text: str | None = None) -> None:
        nonlocal last, last_text
        now, last_text = time.monotonic(), last_text if text is None else text
        if now - last < SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        left = (now - began) / max(done - start, 1) * (total - done)
        after = f", {left:.0f} s left" if done < total else f", {now - began:.0f} s"
        print(f"{what} {done}/{total}{after}  {last_text}".rstrip(), file=sys.stderr, flush=True)

    return show
