"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each (Lake et al. 2015)."""

import io
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from onepass.benchmarks.bank import ByClass, Stored
from onepass.benchmarks.images import Images
from onepass.benchmarks.store import (
    Manifest,
    checksum,
    hold_out,
    read_store,
    store_path,
    write_store,
)
from onepass.benchmarks.views import ViewName
from onepass.files import cache_dir, data_dir
from onepass.registry import BENCHMARKS

SIZE = 32
DRAWINGS = 20
VALIDATION = 0.1  # the share of the background characters
# part/alphabet/character/drawing.png; what archivers add begins with a dot or two underscores
DRAWING = re.compile(r"(?!__)[^/]+/[^/]+/[^/]+/(?!\.)[^/]+\.png")
LARGEST_FILE = 1 << 16  # bytes; the real ones have a few hundred
BASE = "https://github.com/brendenlake/omniglot/raw/master/python"
PARTS = {
    "images_background": ("train", 964, "68d2efa1b9178cc56df9314c21c6e718"),
    "images_evaluation": ("test", 659, "6b91aef0f799c5bb55b94e3f2daec811"),
}
TOTAL = DRAWINGS * sum(characters for _, characters, _ in PARTS.values())
Progress = Callable[[int], None]


@BENCHMARKS.add("omniglot")
def omniglot(
    view: ViewName = "classify",
    augment: bool = False,
    label_shift: bool = True,
    validation: bool = True,
) -> Images:
    """Background characters to meta-train, evaluation characters to meta-test.

    With `validation`, a tenth of the background characters is held out for meta-validation.
    """
    splits = ("train", "validation", "test") if validation else ("train", "test")
    source = Stored("omniglot", (1, SIZE, SIZE), splits, lambda: read(validation))
    return Images(source, view, augment, label_shift)


def read(validation: bool = True) -> ByClass:
    images, manifest = read_store(prepare())
    train, test = manifest.splits["train"], manifest.splits["test"]
    if not validation:
        return ByClass(images, manifest.counts, {"train": train, "test": test})
    kept, held_out = hold_out(manifest.classes, train, VALIDATION)
    splits = {"train": kept, "validation": held_out, "test": test}
    return ByClass(images, manifest.counts, splits)


def prepare(download: bool = False, progress: Progress = lambda done: None) -> Path:
    """The prepared store; made first from files already there, or downloaded if told to."""
    path = store_path("omniglot")
    if path.is_dir():
        read_store(path)
        return path
    images, classes, splits = [], [], {}
    sources = {part: _find(part) or _fetch(part, download) for part in PARTS}
    for part, (split, expected, _) in PARTS.items():
        source = sources[part]
        first = len(classes)
        for name, drawings in _by_class(source).items():
            classes.append(name)
            for file, content in drawings:
                images.append(_decode(content, f"{source}: {file}"))
                progress(len(images))
            _expect(len(drawings), DRAWINGS, f"drawings of {name}", source)
        _expect(len(classes) - first, expected, "characters", source)
        splits[split] = list(range(first, len(classes)))
    stacked = np.stack(images)[:, None]
    return write_store(
        stacked,
        Manifest(
            name="omniglot",
            source=BASE,
            licence="MIT",
            made=f"grey, {SIZE}x{SIZE} bilinear from 105x105, dark ink on white",
            classes=classes,
            counts=[DRAWINGS] * len(classes),
            splits=splits,
            checksum=checksum(stacked),
        ),
    )


def _expect(found: int, expected: int, what: str, source: Path) -> None:
    if found != expected:
        raise ValueError(f"{source} has {found} {what}, and Omniglot has {expected}")


def found() -> list[Path]:
    """The sources that are there already."""
    return [path for part in PARTS if (path := _find(part))]


def _find(part: str) -> Path | None:
    """The zip, or the folder someone unpacked it to, where the person said or as downloaded."""
    places = [data_dir(), cache_dir() / "downloads"]
    # below omniglot/, or right there where someone named that folder itself
    names = [f"omniglot/{part}.zip", f"omniglot/{part}", f"{part}.zip", part]
    paths = [place / name for place in places if place for name in names]
    return next((path for path in paths if path.exists()), None)


def _fetch(part: str, download: bool) -> Path:
    advice = (
        f"put omniglot/{part}.zip (from {BASE}/{part}.zip) into a folder and name the folder with "
        "--data or ONEPASS_DATA"
    )
    if not download:
        where = data_dir() or "ONEPASS_DATA is not set, so nowhere"
        raise ValueError(
            f"no omniglot/{part}.zip (looked in: {where}); run `onepass data prepare omniglot` to "
            f"download it, or {advice}"
        )
    import pooch
    import requests

    try:
        pooch.get_logger().setLevel("WARNING")
        pooch.retrieve(
            f"{BASE}/{part}.zip",
            known_hash=f"md5:{PARTS[part][2]}",
            fname=f"{part}.zip",
            path=cache_dir() / "downloads" / "omniglot",
        )
    except (requests.RequestException, OSError, ValueError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"could not download {part}.zip ({reason}); {advice}") from error
    found = _find(part)
    assert found
    return found


def _by_class(source: Path) -> dict[str, list[tuple[str, bytes]]]:
    """alphabet/character -> its drawings, both in the order of their names."""
    classes: dict[str, list[tuple[str, bytes]]] = {}
    for name, content in sorted(_pngs(source)):
        *_, alphabet, character, _ = name.split("/")
        classes.setdefault(f"{alphabet}/{character}", []).append((name, content))
    return classes


def _pngs(source: Path) -> Iterator[tuple[str, bytes]]:
    """Every drawing's name (alphabet/character/file.png) and bytes."""
    if source.is_dir():
        for path in source.glob("*/*/*.png"):
            yield path.relative_to(source).as_posix(), path.read_bytes()
        return
    try:
        with zipfile.ZipFile(source) as archive:
            for entry in archive.infolist():
                if not DRAWING.fullmatch(entry.filename):
                    continue
                if entry.file_size > LARGEST_FILE:
                    raise ValueError(
                        f"{source}: {entry.filename} unpacks to {entry.file_size:,} bytes, and a "
                        f"drawing has at most {LARGEST_FILE:,}"
                    )
                yield entry.filename, archive.read(entry)
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, UnicodeDecodeError) as error:
        # a runtime error is an encrypted or otherwise unknown archive
        raise ValueError(f"{source} is not a whole, plain zip file: {error}") from error


def _decode(content: bytes, name: str) -> np.ndarray:
    # the size is read before anything is unpacked: a small file can claim a huge picture
    if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
        raise ValueError(f"{name} is not a PNG image")
    width, height = struct.unpack(">II", content[16:24])
    if (width, height) != (105, 105):
        raise ValueError(f"{name} is {width}x{height}, not 105x105")
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as image:
            grey = image.convert("L").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{name} is not a whole PNG image: {error}") from error
    return np.asarray(grey)
