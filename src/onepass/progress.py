"""Long work shown: a live bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[int, str], None]
SECONDS_BETWEEN_LINES = 10.0


@contextmanager
def progress(what: str, total: int, start: int = 0) -> Iterator[Show]:
    """Gives `show(done, text)`; how much time is left is worked out from how often it is called."""
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
        yield lambda done, text="": bars.update(task, completed=done, text=text)


def _lines(what: str, total: int, start: int) -> Show:
    began = last = time.monotonic()

    def show(done: int, text: str = "") -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES and done < total:
            return
        last = now
        left = (now - began) / max(done - start, 1) * (total - done)
        after = f", {left:.0f} s left" if done < total else f", {now - began:.0f} s"
        print(f"{what} {done}/{total}{after}  {text}".rstrip(), file=sys.stderr, flush=True)

    return show
