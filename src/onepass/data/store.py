"""Prepared data: one memory-mapped uint8 array, sorted by class, and a manifest to explain it."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from onepass.files import cache_dir

VERSION = 2
VALIDATION = 0.1  # of the classes that are not for meta-test
OWN_TEST = 0.2  # of the classes of a person's own data
# a store up to this many bytes is read in full on every open; a larger one only when asked to
CHECKED_ON_OPEN = 256 << 20


@dataclass(frozen=True)
class Manifest:
    name: str
    source: str
    licence: str
    made: str  # how the images were made from the source
    classes: list[str]
    counts: list[int]
    splits: dict[str, list[int]]  # class ids of train, validation and test
    checksum: str  # sha256 of the images
    files: dict[str, Any] = field(default_factory=dict)  # of the source: count, bytes, sha256
    skipped: dict[str, Any] = field(default_factory=dict)  # reason -> records, and the first
    fingerprint: str = ""  # names, sizes and times of the source files
    version: int = VERSION


@dataclass(frozen=True, eq=False)
class Store:
    """Images sorted by class, and what they are."""

    images: UInt8[np.ndarray, "N C H W"]
    manifest: Manifest

    @property
    def x_shape(self) -> tuple[int, int, int]:
        _, channels, height, width = self.images.shape
        return channels, height, width

    @property
    def starts(self) -> list[int]:
        """The row of each class's first image."""
        counts = np.array(self.manifest.counts, dtype=np.int64)
        return (np.cumsum(counts) - counts).tolist()

    def of_class(self, number: int) -> np.ndarray:
        start = self.starts[number]
        return self.images[start : start + self.manifest.counts[number]]

    def split_anew(self, test: float = OWN_TEST, fewest: int = 1) -> "Store":
        """Another share of the classes for meta-test; those with fewer images are in no split."""
        names, counts = self.manifest.classes, self.manifest.counts
        check_share(test)
        kept = [number for number, count in enumerate(counts) if count >= fewest]
        rest, held_out = _hold_out_some(names, kept, round(test * len(kept)))
        splits = with_validation(names, rest, held_out)
        return replace(self, manifest=replace(self.manifest, splits=splits))

    @classmethod
    def from_arrays(
        cls, images: Any, labels: Any, *, name: str = "arrays", test: float = OWN_TEST
    ) -> "Store":
        """A store in memory: uint8 images [N H W], [N H W C] or [N C H W], and a label of each."""
        check_share(test)
        images, labels = _channels_first(np.asarray(images)), np.asarray(labels)
        if labels.shape != (len(images),) or labels.dtype.kind not in "iuUS":
            raise ValueError(
                f"labels are {labels.dtype} of shape {labels.shape}; {len(images)} images need as "
                "many labels, whole numbers or text"
            )
        classes, numbers, counts = np.unique(labels, return_inverse=True, return_counts=True)
        images = np.ascontiguousarray(images[np.argsort(numbers, kind="stable")])
        names = [each.decode() if isinstance(each, bytes) else str(each) for each in classes]
        manifest = Manifest(
            name=name,
            source="arrays",
            licence="the owner's",
            made="as given",
            classes=names,
            counts=counts.tolist(),
            splits=split_by_hash(names, round(test * len(names))),
            checksum=checksum(images),
        )
        return cls(images, manifest)


def check_share(test: float) -> None:
    if not 0 <= test <= 1:
        raise ValueError(f"test is {test}; it is a share of the classes, from 0 to 1")


def _channels_first(images: np.ndarray) -> np.ndarray:
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or 0 in images.shape:
        raise ValueError(
            f"images are {images.dtype} of shape {images.shape}; "
            "give at least one, as uint8 [N H W], [N H W C] or [N C H W]"
        )
    if images.ndim == 3:
        return images[:, None]
    last, first = images.shape[3] in (1, 3), images.shape[1] in (1, 3)
    if last == first:
        raise ValueError(
            f"images have shape {images.shape}: which axis has the channels? one of the second "
            "and the last must be 1 or 3, and the other must not"
        )
    return images.transpose(0, 3, 1, 2) if last else images


def store_path(name: str) -> Path:
    return cache_dir() / "stores" / name


def read_store(path: Path, verify: bool = False) -> Store:
    """The store in a folder, memory-mapped, held to the sizes that its manifest says.

    The checksum is held too where that is quick, or where told to `verify`.
    """
    try:
        content = json.loads((path / "manifest.json").read_text())
        version = content.get("version")
        if version == VERSION:
            images = np.load(path / "images.npy", mmap_mode="r", allow_pickle=False)
            store = Store(images, Manifest(**content))
            _check(store, verify or images.nbytes <= CHECKED_ON_OPEN)
            return store
    except (OSError, ValueError, TypeError, AttributeError, EOFError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged ({reason}): remove it and prepare it again") from error
    raise ValueError(
        f"{path} is a store of version {version}, and this is {VERSION}: "
        "remove it and prepare it again"
    )


def _check(store: Store, in_full: bool) -> None:
    images, manifest = store.images, store.manifest
    if images.dtype != np.uint8 or images.ndim != 4 or len(images) != sum(manifest.counts):
        raise ValueError(f"{images.dtype} of shape {images.shape}, not {sum(manifest.counts)}")
    together = sorted(number for ids in manifest.splits.values() for number in ids)
    if together != list(range(len(manifest.classes))) or len(manifest.counts) != len(together):
        raise ValueError("its splits are not its classes")
    if in_full and checksum(images) != manifest.checksum:
        raise ValueError("wrong checksum")


def checksum(images: np.ndarray) -> str:
    """sha256 of the bytes; those of a file are read a block at a time."""
    if not isinstance(images, np.memmap) or images.filename is None:
        return hashlib.sha256(np.ascontiguousarray(images).data).hexdigest()
    # not through the memory map: its pages would count as ours for as long as it is open
    with open(images.filename, "rb") as file:
        file.seek(images.offset)
        return hashlib.file_digest(file, "sha256").hexdigest()


def hold_out(names: Sequence[str], ids: Sequence[int], share: float) -> tuple[list[int], list[int]]:
    """Ids kept and ids held out, by a hash of the class name: the same on every machine."""
    return _hold_out_some(names, ids, round(share * len(ids)))


def _hold_out_some(
    names: Sequence[str], ids: Sequence[int], count: int
) -> tuple[list[int], list[int]]:
    by_hash = sorted(ids, key=lambda i: hashlib.sha256(names[i].encode()).digest())
    out = set(by_hash[:count])
    return [i for i in ids if i not in out], [i for i in ids if i in out]


def split_by_hash(names: Sequence[str], test: int) -> dict[str, list[int]]:
    """So many classes for meta-test, a tenth of the others for meta-validation."""
    rest, held_out = _hold_out_some(names, range(len(names)), test)
    return with_validation(names, rest, held_out)


def with_validation(
    names: Sequence[str], rest: Sequence[int], test: Sequence[int]
) -> dict[str, list[int]]:
    """The owner's split, with a tenth of what is not for meta-test held out."""
    train, validation = hold_out(names, rest, VALIDATION)
    return {"train": train, "validation": validation, "test": list(test)}
