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
        # only who listens has the port to itself
        taken.listen()
    except OSError as error:
        taken.close()
        raise ValueError(
            f"port {port}: {error.strerror}; name another, or --port 0 for any that is free"
        ) from error
    return taken


def server_of(roster: Roster, sets: dict[str, SymbolSet]) -> uvicorn.Server:
    """Its `run(sockets=[...])` goes on until someone ends it."""
    config = uvicorn.Config(
        create_app(roster, sets),
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=30,
    )
    return uvicorn.Server(config)
