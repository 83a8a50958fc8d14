"""Omniglot: 1,623 handwritten characters of 50 alphabets, 20 drawings each (Lake et al. 2015)."""

import io
import re
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from onepass.data.archives import open_zip
from onepass.data.fetch import LAKE, find
from onepass.data.reader import Chunk, Counts, Reader, Skipped, Splits
from onepass.data.store import with_validation

SIZE = 32
DRAWINGS = 20
ALPHABETS = 8  # in a chunk: an archive takes a moment to open
# part/alphabet/character/drawing.png; what archivers add begins with a dot or two underscores
DRAWING = re.compile(r"(?!__)[^/]+/[^/]+/[^/]+/(?!\.)[^/]+\.png")
LARGEST_FILE = 1 << 16  # bytes; the real ones have a few hundred
# sorted by name, as classes are: characters of the first part come first
PARTS = {"images_background": 964, "images_evaluation": 659}
TEST = "images_evaluation"


def missing() -> list[str]:
    return [f"{part}.zip" for part in PARTS if not _find(part)]


def _find(part: str) -> Path | None:
    """The zip, or the folder someone unpacked it to."""
    return find("omniglot", f"{part}.zip", part)


def chunks() -> list[Chunk]:
    """A few alphabets each."""
    found = []
    for part in PARTS:
        source = _find(part)
        assert source
        if source.is_dir():
            drawings = sorted(source.glob("*/*/*.png"))
            found += [
                Chunk(tuple(path for path in drawings if path.parts[-3] in some), (part, *some))
                for some in _some({path.parts[-3] for path in drawings})
            ]
        else:
            with open_zip(source) as archive:
                names = [name for name in archive.namelist() if DRAWING.fullmatch(name)]
            if not names:
                raise ValueError(f"{source} has 0 characters, and Omniglot has {PARTS[part]}")
            alphabets = {name.split("/")[1] for name in names}
            found += [Chunk((source,), (part, *some)) for some in _some(alphabets)]
    return found


def _some(alphabets: set[str]) -> list[list[str]]:
    names = sorted(alphabets)
    return [names[start : start + ALPHABETS] for start in range(0, len(names), ALPHABETS)]


def read(chunk: Chunk, skipped: Skipped) -> Iterator[tuple[str, np.ndarray]]:
    """The drawings of some alphabets in the order of their names; none is let go."""
    part, *alphabets = chunk.part
    source = chunk.files[0]
    if source.suffix == ".png":
        for path in chunk.files:
            yield f"{part}/{path.parts[-3]}/{path.parts[-2]}", decode(path.read_bytes(), str(path))
        return
    with open_zip(source) as archive:
        entries = [
            entry
            for entry in archive.infolist()
            if DRAWING.fullmatch(entry.filename) and entry.filename.split("/")[1] in alphabets
        ]
        for entry in sorted(entries, key=lambda entry: entry.filename):
            if entry.file_size > LARGEST_FILE:
                raise ValueError(
                    f"{source}: {entry.filename} unpacks to {entry.file_size:,} bytes, and a "
                    f"drawing has at most {LARGEST_FILE:,}"
                )
            _, alphabet, character, _ = entry.filename.split("/")
            yield (
                f"{part}/{alphabet}/{character}",
                decode(archive.read(entry), f"{source}: {entry.filename}"),
            )


def arrange(counts: Counts) -> tuple[list[str], Splits]:
    """The owner's two parts, whole or not at all."""
    keys = list(counts)
    for part, expected in PARTS.items():
        for key in (key for key in keys if key.startswith(f"{part}/")):
            _expect(counts[key], DRAWINGS, f"drawings of {key.partition('/')[2]}", part)
        found = sum(key.startswith(f"{part}/") for key in keys)
        _expect(found, expected, "characters", part)
    names = [key.partition("/")[2] for key in keys]
    test = [i for i, key in enumerate(keys) if key.startswith(f"{TEST}/")]
    return names, with_validation(names, [i for i in range(len(keys)) if i not in set(test)], test)


def _expect(found: int, expected: int, what: str, part: str) -> None:
    if found != expected:
        raise ValueError(f"{_find(part)} has {found} {what}, and Omniglot has {expected}")


def decode(content: bytes, name: str) -> np.ndarray:
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
    return np.asarray(grey)[None]


OMNIGLOT = Reader(
    name="omniglot",
    source=LAKE,
    licence="MIT",
    made=f"grey, {SIZE}x{SIZE} bilinear from 105x105, dark ink on white",
    shape=(1, SIZE, SIZE),
    missing=missing,
    chunks=chunks,
    read=read,
    arrange=arrange,
)
