"""MS-Celeb-1M, aligned faces (Guo et al. 2016). Its owner withdrew it: read only where it is held.

A line of the TSV: the id of a person first, the JPEG of a face in base64 last.
"""

import base64
import binascii
from collections.abc import Iterator
from functools import partial
from io import BufferedIOBase

import numpy as np
from PIL import Image

from onepass.data.fetch import find
from onepass.data.pictures import decode_picture
from onepass.data.reader import Chunk, Reader, Skipped, arrange_by_hash, skip

SIZE = 32
FILE = "FaceImageCroppedWithAlignment.tsv"
TEST, FEWEST = 1_000, 20
CHUNK = 1 << 26  # bytes
LONGEST_LINE, LONGEST_ID = 1 << 23, 100


def missing() -> list[str]:
    return [] if find("msceleb", FILE) else [FILE]


def chunks() -> list[Chunk]:
    """Ranges of bytes; a line belongs to the range that it begins in."""
    source = find("msceleb", FILE)
    assert source
    size = source.stat().st_size
    if not size:
        raise ValueError(f"{source} is empty")
    return [Chunk((source,), (start, min(start + CHUNK, size))) for start in range(0, size, CHUNK)]


def read(chunk: Chunk, skipped: Skipped) -> Iterator[tuple[str, np.ndarray]]:
    (source,), (start, stop) = chunk
    with open(source, "rb") as file:
        for offset, line in lines(file, start, stop):
            where = f"{source}, byte {offset:,}"
            try:
                yield face(line)
            except ValueError as error:
                skip(skipped, f"lines {error}", where)


def lines(file: BufferedIOBase, start: int, stop: int) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in a range; of one that is too long, its beginning alone."""
    if start:
        file.seek(start - 1)
        # a line that goes on beyond the range is not looked for: it begins in an earlier one
        while not file.readline(LONGEST_LINE).endswith(b"\n"):
            if file.tell() >= stop:
                return
    while (offset := file.tell()) < stop and (line := file.readline(LONGEST_LINE)):
        _finish(file, line)
        yield offset, line


def _finish(file: BufferedIOBase, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(LONGEST_LINE)


def face(line: bytes) -> tuple[str, np.ndarray]:
    """The id and the picture of a line, or why there is none."""
    if len(line) >= LONGEST_LINE:
        raise ValueError("that are too long")
    who, tab, rest = line.rstrip(b"\r\n").partition(b"\t")
    content = rest.rpartition(b"\t")[2]
    name = who.decode("utf-8", "replace").strip()
    if not tab or not 0 < len(name) <= LONGEST_ID or "\ufffd" in name:
        raise ValueError("without an id and a picture")
    try:
        jpeg = base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise ValueError("whose base64 is damaged") from error
    try:
        image = decode_picture(jpeg, ("JPEG",)).convert("RGB")
    except ValueError as error:
        raise ValueError("whose JPEG cannot be decoded") from error
    small = np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return name, small.transpose(2, 0, 1)


MSCELEB = Reader(
    name="msceleb",
    source="withdrawn by its owner",
    licence="withdrawn by its owner",
    made=f"RGB, {SIZE}x{SIZE} bilinear whatever the aspect; ids of fewer than {FEWEST} dropped",
    shape=(3, SIZE, SIZE),
    missing=missing,
    chunks=chunks,
    read=read,
    arrange=partial(arrange_by_hash, test=TEST),
    fewest=FEWEST,
)
