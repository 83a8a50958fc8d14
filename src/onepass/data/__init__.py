"""Images by class: from the files that owners distribute, or anyone's own, to stores."""

from pathlib import Path

from onepass.data.casia import CASIA
from onepass.data.cifar100 import CIFAR100
from onepass.data.fetch import TERMS, WITHDRAWN, fetch_missing
from onepass.data.folder import open_folder, open_npz
from onepass.data.msceleb import MSCELEB
from onepass.data.omniglot import OMNIGLOT
from onepass.data.prepare import prepare_store
from onepass.data.reader import Reader
from onepass.data.store import Manifest, Store, read_store, store_path

__all__ = [
    "OWN",
    "READERS",
    "Manifest",
    "Store",
    "data_sets",
    "open_folder",
    "open_npz",
    "open_store",
    "prepare_data",
    "what_is_missing",
    "where_from",
]

READERS: dict[str, Reader] = {
    reader.name: reader for reader in (OMNIGLOT, CIFAR100, CASIA, MSCELEB)
}
OWN = {"folder": open_folder, "npz": open_npz}


def open_store(name: str) -> Store:
    """The prepared store of a data set, `folder:PATH` or `npz:PATH`; made first from files already
    there."""
    return _open(name, download=False)


def prepare_data(name: str, agree: bool = False) -> Store:
    """The same, made anew where its files are others by now; with what is not there downloaded, and
    every byte checked."""
    store = _open(name, download=True, agree=agree)
    return read_store(store_path(name), verify=True) if name in READERS else store


def _open(name: str, download: bool, agree: bool = False) -> Store:
    kind, colon, path = name.partition(":")
    if colon and kind in OWN:
        return OWN[kind](path)
    if name not in READERS:
        choices = ", ".join([*READERS, *(f"{kind}:PATH" for kind in OWN)])
        raise ValueError(f"no data set {name!r} to prepare; there are: {choices}")
    reader, path = READERS[name], store_path(name)
    if path.is_dir() and not download:
        return read_store(path)
    missing = reader.missing()
    # whoever prepares wants what the files have; files that are gone by now are not missed
    if path.is_dir() and missing:
        return read_store(path)
    fetch_missing(name, missing, download, agree)
    return prepare_store(reader, path)


def data_sets() -> dict[str, dict[str, str]]:
    return {
        name: {"state": _state(name), "where": where_from(name), "licence": reader.licence}
        for name, reader in READERS.items()
    }


def where_from(name: str) -> str:
    """Where a benchmark's examples would come from."""
    kind, _, path = name.partition(":")
    if kind in OWN and path:
        return str(Path(path).expanduser().resolve())
    if name not in READERS:
        return "drawn as needed, no files"
    if store_path(name).is_dir():
        return str(store_path(name))
    if not READERS[name].missing():
        return _files(READERS[name])
    if name in WITHDRAWN:
        return f"--data FOLDER only: {WITHDRAWN[name]}"
    return f"a download{' with --agree' if name in TERMS else ''}, or --data FOLDER"


def what_is_missing(name: str) -> str | None:
    """A line on what to put where, for a data set that cannot be opened as things are."""
    if name not in READERS:
        return None
    try:
        if store_path(name).is_dir():
            read_store(store_path(name))
        else:
            fetch_missing(name, READERS[name].missing(), download=False)
    except ValueError as error:
        return str(error)
    return None


def _files(reader: Reader) -> str:
    try:
        files = sorted({str(file) for chunk in reader.chunks() for file in chunk.files})
    except ValueError as error:
        return str(error)
    return ", ".join(files) if len(files) <= 3 else f"{files[0]} and {len(files) - 1:,} more"


def _state(name: str) -> str:
    if not store_path(name).is_dir():
        return "not prepared"
    try:
        read_store(store_path(name))
    except ValueError:
        return "to be prepared again"
    return "prepared"
