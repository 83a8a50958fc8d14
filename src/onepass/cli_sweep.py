"""The commands for many runs: sweep, reproduce, ledger."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Option


def add_sweep_commands(app: typer.Typer) -> None:
    for command in (ledger,):
        app.command()(command)


def ledger(
    results: Annotated[Path, Option(help="The folder of result files.")] = Path("results"),
    out: Annotated[Path, Option(help="The page.")] = Path("docs/results.md"),
) -> None:
    """Make the page of results from the files of finished runs.

    Example: onepass ledger --results results --out docs/results.md
    """
    from onepass.ledger import write_ledger

    count = write_ledger(results, out)
    print(f"{out}: {count} result(s)")
