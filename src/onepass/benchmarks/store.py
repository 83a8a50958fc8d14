"""Prepared data: one memory-mapped uint8 array, sorted by class, and a manifest to explain it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from onepass.files import cache_dir, whole_folder, write_json

VERSION = 1


@dataclass(frozen=True)
class Manifest:
    name: str
    source: str
    licence: str
    made: str  # how the images were made from the source
    classes: list[str]
    counts: list[int]
    splits: dict[str, list[int]]  # class ids of `train` and `test`, as the owner splits them
    checksum: str  # sha256 of the images
    version: int = VERSION


def store_path(name: str) -> Path:
    return cache_dir() / "stores" / name


def write_store(images: np.ndarray, manifest: Manifest) -> Path:
    """Atomic: the folder appears when everything in it is written."""
    path = store_path(manifest.name)
    with whole_folder(path) as folder:
        np.save(folder / "images.npy", images, allow_pickle=False)
        write_json(folder / "manifest.json", asdict(manifest))
    return path


def read_store(path: Path) -> tuple[np.ndarray, Manifest]:
    """The images, memory-mapped, and what they are; held to the checksum they were written with."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        version = manifest.get("version")
        if version == VERSION:
            images = np.load(path / "images.npy", mmap_mode="r", allow_pickle=False)
            store = images, Manifest(**manifest)
            if checksum(images) != store[1].checksum:
                raise ValueError("wrong checksum")
            return store
    except (OSError, ValueError, TypeError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged ({reason}): remove it and prepare it again") from error
    raise ValueError(
        f"{path} is a store of version {version}, and this is {VERSION}: "
        "remove it and prepare it again"
    )


def checksum(images: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()


def hold_out(names: Sequence[str], ids: Sequence[int], share: float) -> tuple[list[int], list[int]]:
    """Ids kept and ids held out, by a hash of the class name: the same on every machine."""
    by_hash = sorted(ids, key=lambda i: hashlib.sha256(names[i].encode()).digest())
    out = set(by_hash[: round(share * len(by_hash))])
    return [i for i in ids if i not in out], [i for i in ids if i in out]
