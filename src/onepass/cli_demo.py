"""The command `onepass demo`."""

import importlib.util
from typing import Annotated

from typer import Argument, Option

from onepass.options import Data, use_data


def demo(
    models: Annotated[
        list[str] | None,
        Argument(
            metavar="[MODEL]...",
            help="Models that come with onepass, or folders of models or runs; default: all that "
            "come with it.",
        ),
    ] = None,
    port: Annotated[int, Option(min=0, max=65_535, help="0 for any that is free.")] = 7860,
    data: Data = None,
) -> None:
    """A page on this machine to draw symbols on, name them, and see them known.

    Example: onepass demo runs/quickstart --port 7860
    """
    use_data(data)
    if not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn")):
        raise ValueError('the page needs FastAPI: pip install "onepass[demo]"')
    from onepass.demo.play import symbol_sets
    from onepass.demo.roster import open_roster
    from onepass.demo.serve import listen, server_of

    roster = open_roster(models or [])
    # before data is prepared, which may take a while: what is wrong with a port is said at once
    with listen(port) as taken:
        server = server_of(roster, symbol_sets())
        print(f"draw at http://127.0.0.1:{taken.getsockname()[1]} with {', '.join(roster)}")
        print("ctrl-C ends it; nothing that anyone draws is kept", flush=True)
        server.run(sockets=[taken])
