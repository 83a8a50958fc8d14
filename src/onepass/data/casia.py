"""CASIA-HWDB 1.0 to 1.2: 3.9 million handwritten Chinese characters of 7,356 classes.

A .gnt record, little endian: uint32 length of all of it, 2 bytes of GBK tag, uint16 width, uint16
height, width x height grey bytes.
"""

import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from PIL import Image

from onepass.data.archives import open_zip
from onepass.data.fetch import NLPR, REMOTE, downloads, folders
from onepass.data.reader import Chunk, Reader, Skipped, arrange_by_hash, skip

SIZE = 32
CLASSES, TEST = 7_356, 1_000
HEADER = struct.Struct("<I2sHH")
LONGEST_EDGE = 4_096  # pixels; the real ones have a few hundred at most
# of one writer's file; the real ones have some 20 MB and 4,000 records
LARGEST_FILE, MOST_RECORDS = 1 << 28, 100_000


def missing() -> list[str]:
    """Of what a person has, whatever is there will do; of a download, all of it."""
    sources = _sources()
    if sources and downloads("casia") not in sources[0].parents:
        return []
    there = {path.name for path in sources}
    return [name for name in REMOTE["casia"] if name not in there]


def _sources() -> list[Path]:
    """Every .gnt file and every zip that may hold some, at any depth."""
    for folder in folders("casia"):
        # a folder of everything is not searched to its depths
        found = folder.rglob("*") if folder.name == "casia" else folder.glob("*")
        sources = [path for path in found if path.suffix.lower() == ".gnt" or _is_zip(path)]
        if sources:
            return sorted(sources)
    return []


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and path.name.lower().startswith(("gnt", "hwdb"))


def chunks() -> list[Chunk]:
    """One for each writer's file, zipped or not."""
    found: list[Chunk] = []
    seen: dict[tuple[str, int], str] = {}

    def add(chunk: Chunk, name: str, size: int, where: str) -> None:
        if size > LARGEST_FILE:
            raise ValueError(f"{where} has {size:,} bytes, and a .gnt at most {LARGEST_FILE:,}")
        if (first := seen.setdefault((name, size), where)) != where:
            raise ValueError(f"{where} is there twice, also as {first}: remove one")
        found.append(chunk)

    for source in _sources():
        if source.suffix.lower() == ".gnt":
            add(Chunk((source,)), source.name, source.stat().st_size, str(source))
            continue
        with open_zip(source) as archive:
            for number, entry in enumerate(archive.infolist()):
                name = entry.filename.rpartition("/")[2]
                if name.lower().endswith(".gnt") and not name.startswith("."):
                    where = f"{source}: entry {number}, {entry.filename}"
                    add(Chunk((source,), (number,)), name, entry.file_size, where)
    if not found:
        raise ValueError(f"no .gnt file in {', '.join(map(str, _sources()))}")
    return found


def read(chunk: Chunk, skipped: Skipped) -> Iterator[tuple[str, np.ndarray]]:
    with _open(chunk) as (file, name):
        yield from records(file, name, skipped)


@contextmanager
def _open(chunk: Chunk) -> Iterator[tuple[BufferedIOBase, str]]:
    (source,), part = chunk
    if not part:
        with open(source, "rb") as file:
            yield file, str(source)
        return
    with open_zip(source) as archive:
        entry: zipfile.ZipInfo = archive.infolist()[part[0]]
        with archive.open(entry) as file:
            assert isinstance(file, BufferedIOBase)
            yield file, f"{source}: {entry.filename}"


def records(file: BufferedIOBase, name: str, skipped: Skipped) -> Iterator[tuple[str, np.ndarray]]:
    """Every character and its picture; the rest of a file that lost its thread is skipped."""
    offset = 0
    for count in range(MOST_RECORDS + 1):
        where = f"{name}, byte {offset:,}"
        header = file.read(HEADER.size)
        if not header:
            return
        if count == MOST_RECORDS:
            raise ValueError(f"{where}: more than {MOST_RECORDS:,} records in one file")
        if len(header) < HEADER.size:
            return skip(skipped, "files cut short in a header", where)
        length, tag, width, height = HEADER.unpack(header)
        if length != HEADER.size + width * height or max(width, height) > LONGEST_EDGE:
            why = "rests of files, after a length that is not 10 + width x height"
            return skip(skipped, why, f"{where}: length {length:,}, {width}x{height}")
        pixels = file.read(width * height)
        if len(pixels) < width * height:
            return skip(skipped, "files cut short in a picture", where)
        offset += length
        if not pixels:
            skip(skipped, "records without width or height", where)
        elif (character := character_of(tag)) is None:
            skip(skipped, "records with a tag that is no GBK character", f"{where}: {tag.hex()}")
        else:
            yield character, fit(pixels, width, height)
    return None


def character_of(tag: bytes) -> str | None:
    """GBK with the user-defined codes of GB 18030; ASCII is padded with a zero byte."""
    try:
        text = tag.strip(b"\0").decode("gb18030")
    except UnicodeDecodeError:
        return None
    return text if len(text) == 1 and ord(text) > 32 else None


def fit(pixels: bytes, width: int, height: int) -> np.ndarray:
    """The longer edge to SIZE, the other in proportion, centred on white."""
    scale = SIZE / max(width, height)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    image = Image.frombuffer("L", (width, height), pixels, "raw", "L", 0, 1)
    small = np.asarray(image.resize(size, Image.Resampling.BICUBIC))
    page = np.full((1, SIZE, SIZE), 255, np.uint8)
    top, left = (SIZE - size[1]) // 2, (SIZE - size[0]) // 2
    page[0, top : top + size[1], left : left + size[0]] = small
    return page


CASIA = Reader(
    name="casia",
    source=NLPR,
    licence="for research, by the owner's terms",
    made=f"grey, longer edge to {SIZE} bicubic, other edge in proportion, centred on white",
    shape=(1, SIZE, SIZE),
    missing=missing,
    chunks=chunks,
    read=read,
    arrange=partial(arrange_by_hash, test=TEST),
    whole=CLASSES,
)
