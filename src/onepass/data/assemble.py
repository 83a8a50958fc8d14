"""What was decoded in chunks, sorted by class into one array; memory stays bounded."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from onepass.data.reader import Chunk, Counts, Piece, Reader, Skipped, skip
from onepass.data.store import Manifest, checksum
from onepass.files import write_json

AT_A_TIME = 128 << 20  # bytes of images


@dataclass(frozen=True)
class Decoded:
    """What all chunks hold together."""

    numbers: list[np.ndarray]  # of each chunk: the class of every image, -1 where it is dropped
    counts: Counts  # by key, sorted
    skipped: Skipped
    grey: bool


def assemble(reader: Reader, pieces: Sequence[Piece], work: Path, fingerprint: str) -> None:
    """The store of all chunks, in `work/store`."""
    decoded = _gather(reader, pieces, work)
    names, splits = reader.arrange(decoded.counts)
    counts = list(decoded.counts.values())
    channels = 1 if reader.may_be_grey and decoded.grey else reader.shape[0]
    shape = (sum(counts), channels, *reader.shape[1:])
    _check_space(work, int(np.prod(shape)))
    folder = work / "store"
    folder.mkdir()
    images = np.lib.format.open_memmap(folder / "images.npy", "w+", np.uint8, shape)
    offset = images.offset
    del images
    with open(folder / "images.npy", "r+b") as file:
        _sort(_blocks(reader, pieces, work, decoded, channels), counts, file.fileno(), offset)
        os.fsync(file.fileno())
    images = np.load(folder / "images.npy", mmap_mode="r", allow_pickle=False)
    manifest = Manifest(
        name=reader.name,
        source=reader.source,
        licence=reader.licence,
        made=reader.made,
        classes=names,
        counts=counts,
        splits=splits,
        checksum=checksum(images),
        files=_source_files([piece.chunk for piece in pieces]),
        skipped={
            why: {"records": records, "first": first}
            for why, (records, first) in decoded.skipped.items()
        },
        fingerprint=fingerprint,
    )
    write_json(folder / "manifest.json", asdict(manifest))


def _gather(reader: Reader, pieces: Sequence[Piece], work: Path) -> Decoded:
    numbers: list[np.ndarray] = []
    seen: dict[str, int] = {}
    skipped: Skipped = {}
    grey = True
    for piece in pieces:
        facts = json.loads((work / f"{piece.stamp}.json").read_text())
        found = (seen.setdefault(key, len(seen)) for key in facts["keys"])
        numbers.append(np.fromiter(found, np.int32, len(facts["keys"])))
        for reason, (records, where) in facts["skipped"].items():
            skip(skipped, reason, where, records)
        grey = grey and facts["grey"]
    sizes = sum((np.bincount(each, minlength=len(seen)) for each in numbers), np.zeros(len(seen)))
    kept = sorted(key for key, number in seen.items() if sizes[number] >= reader.fewest)
    whole = set(kept)
    for key in (key for key in seen if key not in whole):
        why = f"images of classes with fewer than {reader.fewest}"
        skip(skipped, why, key, int(sizes[seen[key]]))
    if not kept:
        why = "; ".join(f"{n:,} skipped, {why} ({where})" for why, (n, where) in skipped.items())
        raise ValueError(f"{reader.name} has no images that can be read ({why or 'none at all'})")
    rank = np.full(len(seen), -1, np.int32)
    for place, key in enumerate(kept):
        rank[seen[key]] = place
    counts = {key: int(sizes[seen[key]]) for key in kept}
    return Decoded([rank[each] for each in numbers], counts, skipped, grey)


def _blocks(
    reader: Reader, pieces: Sequence[Piece], work: Path, decoded: Decoded, channels: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Classes and images of a few chunks at a time."""
    numbers, images, size = [], [], 0
    for piece, of_chunk in zip(pieces, decoded.numbers, strict=True):
        raw = np.fromfile(work / f"{piece.stamp}.images", np.uint8)
        images.append(raw.reshape(len(of_chunk), *reader.shape)[:, :channels])
        numbers.append(of_chunk)
        size += raw.nbytes
        if size >= AT_A_TIME:
            yield np.concatenate(numbers), np.concatenate(images)
            numbers, images, size = [], [], 0
    if size:
        yield np.concatenate(numbers), np.concatenate(images)


def _sort(
    blocks: Iterator[tuple[np.ndarray, np.ndarray]], counts: list[int], file: int, offset: int
) -> None:
    """Append the images of each block to those of their class, in the order they come."""
    place = np.cumsum(counts) - counts
    for numbers, images in blocks:
        order = np.argsort(numbers, kind="stable")
        classes, first, found = np.unique(numbers[order], return_index=True, return_counts=True)
        for number, start, count in zip(classes, first, found, strict=True):
            if number < 0:
                continue
            run = images[order[start : start + count]]
            # not through a memory map: its pages would count as ours until they are written
            _write_at(file, run.data.cast("B"), offset + int(place[number]) * run[0].nbytes)
            place[number] += count


def _write_at(file: int, content: memoryview, offset: int) -> None:
    while content:
        written = os.pwrite(file, content, offset)
        content, offset = content[written:], offset + written


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{folder} needs {size:,} bytes for the store, and {free:,} are free there")


def _source_files(chunks: Sequence[Chunk]) -> dict[str, Any]:
    """How many, their bytes, and a checksum of the checksums; each one's own where they are few."""
    files = sorted({file for chunk in chunks for file in chunk.files})
    with ThreadPoolExecutor() as pool:
        digests = dict(zip(files, pool.map(_digest, files), strict=True))
    together = hashlib.sha256("\n".join(digests.values()).encode()).hexdigest()
    facts = {
        "count": len(files),
        "bytes": sum(file.stat().st_size for file in files),
        "sha256": together,
    }
    if len(files) <= 100:
        above = os.path.commonpath([file.parent for file in files])
        facts["each"] = {
            file.relative_to(above).as_posix(): digest for file, digest in digests.items()
        }
    return facts


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
