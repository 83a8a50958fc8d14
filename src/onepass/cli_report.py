"""The command `onepass report`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from onepass.options import Data, use_data


def report(
    runs: Annotated[list[Path], Argument(help="Runs, folders that hold some, or result files.")],
    out: Annotated[Path, Option(help="The page.")] = Path("report.html"),
    query: Annotated[
        int | None,
        Option(help="Which query's reading to show, from 1; default: a middle one."),
    ] = None,
    data: Data = None,
) -> None:
    """One HTML page about one run or several: tables, curves, examples; open it anywhere.

    Example: onepass report runs/quickstart --out report.html
    """
    use_data(data)
    from onepass.report.page import report

    size = report(runs, out, query)
    print(f"page: {out} ({size / 1e6:.1f} MB)")
