"""Data sets that are prepared from files: which there are, and where each comes from."""

from collections.abc import Callable
from pathlib import Path

from onepass.benchmarks import omniglot
from onepass.benchmarks.store import store_path
from onepass.progress import progress

PREPARE: dict[str, Callable[..., Path]] = {"omniglot": omniglot.prepare}


def prepare_data(name: str) -> Path:
    """The prepared store of a data set, made now if need be, downloads allowed."""
    if name not in PREPARE:
        raise ValueError(f"no data set {name!r} to prepare; there are: {', '.join(PREPARE)}")
    with progress(f"preparing {name}", omniglot.TOTAL) as show:
        return PREPARE[name](download=True, progress=lambda done: show(done))


def data_sets() -> dict[str, dict[str, str]]:
    return {name: {"state": _state(name), "where": where_from(name)} for name in PREPARE}


def where_from(name: str) -> str:
    """Where a benchmark's examples would come from."""
    if name not in PREPARE:
        return "drawn as needed, no files"
    if store_path(name).is_dir():
        return str(store_path(name))
    sources = omniglot.found()
    return ", ".join(map(str, sources)) if sources else "a download, or --data FOLDER"


def _state(name: str) -> str:
    return "prepared" if store_path(name).is_dir() else "not prepared"
