"""Listens on this machine alone."""

import socket

import uvicorn

from onepass.demo.play import SymbolSet
from onepass.demo.roster import Roster
from onepass.demo.server import create_app

ADDRESS = "127.0.0.1"
CONNECTIONS = 128  # at once; more are told to come again


def listen(port: int) -> socket.socket:
    """Taken before anything is said about it; 0 takes one that is free."""
    taken = socket.socket()
    # a page that was just ended may be started again
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((ADDRESS, port))
    except OSError as error:
        taken.close()
        reason = error.strerror or error
        raise ValueError(
            f"port {port} cannot be used ({reason}): name another, --port 0"
        ) from error
    return taken


def serve(roster: Roster, sets: dict[str, SymbolSet], taken: socket.socket) -> None:
    """Until someone ends it."""
    config = uvicorn.Config(
        create_app(roster, sets),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
    )
    uvicorn.Server(config).run(sockets=[taken])
