"""CIFAR-100: 60,000 small colour photographs of 100 classes (Krizhevsky 2009).

A record is the coarse label, the fine label and 3 x 32 x 32 bytes.
"""

import gzip
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from onepass.data.fetch import KRIZ, find
from onepass.data.reader import Chunk, Counts, Reader, Skipped, Splits
from onepass.data.store import split_by_hash

ARCHIVE, FOLDER, NAMES = "cifar-100-binary.tar.gz", "cifar-100-binary", "fine_label_names.txt"
PARTS = ("train.bin", "test.bin")
SHAPE, RECORD = (3, 32, 32), 2 + 3 * 32 * 32
CLASSES, TEST, EACH = 100, 40, 600
LARGEST_FILE, MOST_FILES = 1 << 28, 64


def missing() -> list[str]:
    return [] if _find() else [ARCHIVE]


def _find() -> Path | None:
    """The archive, or the file of names in the folder that someone unpacked it to."""
    return find("cifar100", ARCHIVE, f"{FOLDER}/{NAMES}", NAMES)


def chunks() -> list[Chunk]:
    source = _find()
    assert source
    with _open(source, NAMES) as file:
        names = [line.decode("ascii", "replace") for line in file.read(1 << 16).split()]
    if len(names) != CLASSES or len(set(names)) != CLASSES:
        raise ValueError(f"{source}: {NAMES} has {len(set(names))} different names, not {CLASSES}")
    if source.name != NAMES:
        return [Chunk((source,), (part, *names)) for part in PARTS]
    beside = {part: source.with_name(part) for part in PARTS}
    for part, path in beside.items():
        if not path.is_file():
            raise ValueError(f"no {part} beside {source}")
    return [Chunk((path, source), (part, *names)) for part, path in beside.items()]


@contextmanager
def _open(source: Path, name: str) -> Iterator[BufferedIOBase]:
    """A file of the archive, or beside the names."""
    if source.name == NAMES:
        with open(source.with_name(name), "rb") as file:
            yield file
        return
    try:
        # as a stream, so that nothing is unpacked to disk or held in memory
        with gzip.open(source) as content, tarfile.open(fileobj=content, mode="r|") as archive:
            yield _member(archive, source, name)
    except (tarfile.TarError, zlib.error, OSError, EOFError) as error:
        raise ValueError(f"{source} is not a whole tar.gz file: {error}") from error


def _member(archive: tarfile.TarFile, source: Path, name: str) -> BufferedIOBase:
    for count, member in enumerate(archive):
        if count >= MOST_FILES or member.size > LARGEST_FILE:
            raise ValueError(
                f"{source}: {member.name!r} is not of CIFAR-100: too large or too many"
            )
        file = archive.extractfile(member) if member.isreg() else None
        if isinstance(file, BufferedIOBase) and Path(member.name).name == name:
            return file
    raise ValueError(f"{source} has no {name}")


def read(chunk: Chunk, skipped: Skipped) -> Iterator[tuple[str, np.ndarray]]:
    (*_, source), (part, *names) = chunk
    with _open(source, part) as file:
        offset = 0
        while record := file.read(RECORD):
            if len(record) < RECORD:
                raise ValueError(f"{source}: {part} is cut short in the record at byte {offset:,}")
            if record[1] >= CLASSES:
                raise ValueError(f"{source}: {part} has label {record[1]} at byte {offset + 1:,}")
            yield names[record[1]], np.frombuffer(record, np.uint8, offset=2).reshape(SHAPE)
            offset += RECORD


def arrange(counts: Counts) -> tuple[list[str], Splits]:
    """Train and test images together; the classes are split."""
    for name, count in counts.items():
        if count != EACH:
            raise ValueError(f"{_find()} has {count} images of {name}, and CIFAR-100 has {EACH}")
    if len(counts) != CLASSES:
        raise ValueError(f"{_find()} has images of {len(counts)} classes, not {CLASSES}")
    return list(counts), split_by_hash(list(counts), TEST)


CIFAR100 = Reader(
    name="cifar100",
    source=f"{KRIZ}/{ARCHIVE}",
    licence="none stated; cite Krizhevsky 2009",
    made="train and test images together, as they are; 60 classes to meta-train, 40 to meta-test",
    shape=SHAPE,
    missing=missing,
    chunks=chunks,
    read=read,
    arrange=arrange,
)
