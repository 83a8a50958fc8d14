"""Anyone's own pictures: a folder with a folder for each class, or an .npz of two arrays."""

import hashlib
import os
import unicodedata
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from onepass.data.pictures import decode_picture
from onepass.data.prepare import prepare_store
from onepass.data.reader import Chunk, Counts, Reader, Skipped, Splits, skip
from onepass.data.store import OWN_TEST, Store, split_by_hash, store_path

Colour = Literal["auto", "grey", "rgb"]
JPEG, PNM = {".jfif", ".jpe", ".jpeg", ".jpg"}, {".pbm", ".pgm", ".pnm", ".ppm"}
ENDINGS = {".bmp", ".gif", ".png", ".tif", ".tiff", ".webp"} | JPEG | PNM
FILES_IN_CHUNK = 256
LARGEST_FILE, LARGEST_ARRAYS = 1 << 28, 1 << 33  # bytes
# the names that others give to parts of one data set, each with all classes in it
PARTS = {"train", "val", "valid", "validation", "test"}


def open_folder(path: str | Path, size: int = 32, colour: Colour = "auto") -> Store:
    """The pictures below a folder, prepared again when a file in it was changed."""
    if not str(path):
        raise ValueError("folder: needs a path after it, such as folder:flowers")
    root = Path(path).expanduser().resolve()
    if not root.is_dir():
        raise ValueError(f"there is no folder {path}")
    reader = Reader(
        name=f"folder:{root}",
        source=str(root),
        licence="the owner's",
        made=f"{colour}, {size}x{size} bilinear whatever the aspect",
        shape=(1 if colour == "grey" else 3, size, size),
        missing=list,
        chunks=partial(chunks, root),
        read=partial(read, root, size, colour == "grey"),
        arrange=partial(arrange, root),
        may_be_grey=colour == "auto",
    )
    which = hashlib.sha256(repr((str(root), size, colour)).encode()).hexdigest()[:12]
    return prepare_store(reader, store_path(f"folder-{root.name[:40]}-{which}"))


def chunks(root: Path) -> list[Chunk]:
    """A few hundred files each, in the order of their names."""
    files = list(_files(root))
    if not files:
        raise ValueError(f"{root} has no files in it: it needs a folder of pictures for each class")
    _check_names(root, files)
    starts = range(0, len(files), FILES_IN_CHUNK)
    return [
        Chunk(
            tuple(files[start : start + FILES_IN_CHUNK]),
            tuple(class_of(root, file) for file in files[start : start + FILES_IN_CHUNK]),
        )
        for start in starts
    ]


def _check_names(root: Path, files: list[Path]) -> None:
    """Two folders of one name, as far as Unicode goes, would be one class."""
    folders: dict[str, Path] = {}
    for file in files:
        first = folders.setdefault(class_of(root, file), file.parent)
        if first != file.parent:
            raise ValueError(f"{first} and {file.parent} have the same name: rename one of them")


def _files(root: Path) -> Iterator[Path]:
    """Every plain file, not hidden. A link to a folder is followed where it leads out of the root:
    what is below the root is found without it, and under its own name."""
    seen = set()
    for folder, below, names in os.walk(root, followlinks=True):
        below[:] = sorted(name for name in below if not _hidden(root, Path(folder, name)))
        if (real := os.path.realpath(folder)) in seen:
            below.clear()
            continue
        seen.add(real)
        paths = (Path(folder, name) for name in sorted(names) if not name.startswith("."))
        yield from (path for path in paths if path.is_file())


def _hidden(root: Path, folder: Path) -> bool:
    inside = folder.is_symlink() and folder.resolve().is_relative_to(root)
    return inside or folder.name.startswith(".")


def class_of(root: Path, file: Path) -> str:
    """The folder that a picture is in, as it is named below the root; the same on every system."""
    name = os.fsencode(file.parent.relative_to(root).as_posix()).decode("utf-8", "backslashreplace")
    return unicodedata.normalize("NFC", name)


def read(
    root: Path, size: int, grey: bool, chunk: Chunk, skipped: Skipped
) -> Iterator[tuple[str, np.ndarray]]:
    for file, name in zip(*chunk, strict=True):
        if file.suffix.lower() not in ENDINGS:
            skip(skipped, "files that are no pictures by their name", str(file))
        elif name == ".":
            skip(skipped, "pictures in no class folder", str(file))
        elif file.stat().st_size > LARGEST_FILE:
            skip(skipped, f"files of more than {LARGEST_FILE:,} bytes", str(file))
        else:
            try:
                image = decode_picture(file.read_bytes())
            except ValueError as error:
                skip(skipped, "pictures that cannot be decoded", f"{file}: {error}")
                continue
            image = image.convert("L" if grey else "RGB")
            small = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR))
            yield name, small[None] if grey else small.transpose(2, 0, 1)


def arrange(root: Path, counts: Counts) -> tuple[list[str], Splits]:
    names = list(counts)
    if len(names) < 2:
        raise ValueError(f"{root} has pictures of one class alone: a folder is needed for each")
    heads = {name.partition("/")[0] for name in names}
    tails = [name.partition("/")[2] for name in names]
    if heads <= PARTS and len(set(tails)) < len(tails):
        parts = ", ".join(sorted(heads))
        raise ValueError(
            f"{root} has the same classes in {parts}: name one of these folders, since "
            "meta-learning keeps classes apart, not pictures"
        )
    return names, split_by_hash(names, round(OWN_TEST * len(names)))


def open_npz(path: str | Path) -> Store:
    """The arrays `images` and `labels` of an .npz file, in memory; see `Store.from_arrays`."""
    if not str(path):
        raise ValueError("npz: needs a path after it, such as npz:flowers.npz")
    file = Path(path).expanduser()
    if not file.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LARGEST_ARRAYS:
            raise ValueError(f"it unpacks to {size:,} bytes, more than {LARGEST_ARRAYS:,}")
        with np.load(file, allow_pickle=False) as arrays:
            if lacks := {"images", "labels"} - set(arrays):
                raise ValueError(f"it has no {' and no '.join(sorted(lacks))}")
            return Store.from_arrays(arrays["images"], arrays["labels"], name=f"npz:{path}")
    except Exception as error:
        # a damaged archive or header raises nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path} cannot be read as images and labels: {reason}") from error
