"""From files to a store: decoded once, in parallel, resumable, and there only when it is whole.

The work is cut into chunks, and each is decoded into a file of its own. Those that a killed process
left behind are taken as they are. At the end all are sorted by class into one array.
"""

import hashlib
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from io import RawIOBase
from pathlib import Path

import numpy as np

from onepass.data.assemble import assemble
from onepass.data.reader import Chunk, Piece, Reader, Skipped
from onepass.data.store import VERSION, Store, read_store
from onepass.files import alone, write_json
from onepass.progress import progress
from onepass.signals import caught_signals, leave

TOLD_IMAGES = 10_000  # whose speed is worth a line
# less than this is done before other processes have started
ALONE_CHUNKS, ALONE_BYTES, ALONE_FILES = 4, 4 << 20, 2_000


def prepare_store(reader: Reader, path: Path) -> Store:
    """The store at `path`, made now unless it is there already; by one process at a time."""
    pieces = [Piece(chunk, chunk.stamp()) for chunk in reader.chunks()]
    fingerprint = _hash(_way(reader), [piece.stamp for piece in pieces])
    work = path.with_name(f".{path.name}.work")
    # looked at before the lock, which a folder that is read-only could not hold
    if there := _current(path, fingerprint):
        return there
    with alone(path, f"another process prepares {reader.name}: waiting for it to finish"):
        if there := _current(path, fingerprint):
            return there
        try:
            _clear(work, pieces, _hash(_way(reader)))
            _decode_all(reader, pieces, work)
            assemble(reader, pieces, work, fingerprint)
        except ValueError:
            # the files are at fault, and another try begins with other files
            shutil.rmtree(work, ignore_errors=True)
            raise
        _put(work, path)
        store = read_store(path)
    _tell(reader, store)
    return store


def _current(path: Path, fingerprint: str) -> Store | None:
    """The store that is there, unless it is of other files, of another version, or damaged."""
    try:
        there = read_store(path) if path.is_dir() else None
    except ValueError:
        return None
    return there if there and there.manifest.fingerprint == fingerprint else None


def _way(reader: Reader) -> tuple:
    return VERSION, reader.name, reader.made, reader.shape, reader.fewest


def _hash(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _clear(work: Path, pieces: Sequence[Piece], way: str) -> None:
    """Keep what was decoded from the same files in the same way, and nothing else."""
    mark = work / "way"
    if work.is_dir() and not (mark.is_file() and mark.read_text() == way):
        shutil.rmtree(work)
    work.mkdir(exist_ok=True)
    mark.write_text(way)
    kept = {f"{piece.stamp}{end}" for piece in pieces for end in (".images", ".json")}
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in kept and path != mark:
            path.unlink()


def _decode_all(reader: Reader, pieces: Sequence[Piece], work: Path) -> None:
    todo = [piece for piece in pieces if not (work / f"{piece.stamp}.json").is_file()]
    start, images, begun = len(pieces) - len(todo), 0, time.monotonic()
    decode = partial(decode_chunk, reader.read, reader.shape, work)
    with progress(f"preparing {reader.name}", len(pieces), start) as show:
        for done, found in enumerate(_in_parallel(decode, todo, reader.name), start + 1):
            images += found
            show(done, _rate(images, begun))
    if images >= TOLD_IMAGES:
        line = f"{reader.name}: decoded {_rate(images, begun)} on {cores()} cores"
        print(line, file=sys.stderr, flush=True)


def _rate(images: int, begun: float) -> str:
    return f"{images:,} images, {images / max(time.monotonic() - begun, 1e-3):,.0f}/s"


def _in_parallel(
    decode: Callable[[Piece], int], pieces: Sequence[Piece], name: str
) -> Iterator[int]:
    """What `decode` gives for each piece, as they get done."""
    files = {file for piece in pieces for file in piece.chunk.files}
    small = sum(file.stat().st_size for file in files) < ALONE_BYTES and len(files) < ALONE_FILES
    if len(pieces) <= ALONE_CHUNKS or small:
        yield from map(decode, pieces)
        return
    # a fresh interpreter each: a fork would copy locks that other threads hold
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(cores(), len(pieces)), context, initializer=_begin_worker)
    try:
        with caught_signals("finishing the files that are being read") as caught:
            # workers are born deaf to these: the parent hears them, and ends the work in good order
            heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
            try:
                futures = [pool.submit(decode, piece) for piece in pieces]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, heard)
            for future in as_completed(futures):
                yield future.result()
                leave(caught, f"while preparing {name}")
    except BrokenProcessPool as error:
        raise OSError(
            f"a worker ended without a word while preparing {name}: too little memory, or a script "
            "without `if __name__ == '__main__':` (then run `onepass data prepare` first)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _begin_worker() -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent
    parent.join()
    os._exit(1)


def decode_chunk(
    read: Callable[[Chunk, Skipped], Iterator[tuple[str, np.ndarray]]],
    shape: tuple[int, int, int],
    work: Path,
    piece: Piece,
) -> int:
    """Decode a piece into its two files, the second when the first is whole; how many images."""
    keys: list[str] = []
    skipped: Skipped = {}
    grey = True
    path = work / f"{piece.stamp}.images"
    with open(path, "wb", buffering=0) as file:
        for key, image in read(piece.chunk, skipped):
            assert image.shape == shape, f"{image.shape} is not {shape}"
            assert image.dtype == np.uint8
            grey = grey and bool((image == image[:1]).all())
            keys.append(key)
            _append(file, image, path)
    if piece.chunk.stamp() != piece.stamp:
        raise ValueError(f"{piece.chunk.files[0]} or one beside it changed while it was read")
    write_json(path.with_suffix(".json"), {"keys": keys, "skipped": skipped, "grey": grey})
    return len(keys)


def _append(file: RawIOBase, image: np.ndarray, path: Path) -> None:
    content = np.ascontiguousarray(image).data.cast("B")
    try:
        while content:
            content = content[file.write(content) :]
    except OSError as error:
        raise OSError(f"could not write {path}: {error.strerror or error}") from error


def _put(work: Path, path: Path) -> None:
    """The finished store into its place, an outdated one out of it."""
    if path.is_dir():
        os.replace(path, work / "old")
    os.replace(work / "store", path)
    shutil.rmtree(work)


def _tell(reader: Reader, store: Store) -> None:
    """What a person should know before the numbers are compared with others'."""
    classes = len(store.manifest.classes)
    if reader.whole and classes != reader.whole:
        line = f"{reader.name}: {classes:,} classes, and the whole set has {reader.whole:,}; its "
        line += "splits are of what is there, so compare with no one who has another part"
        print(line, file=sys.stderr, flush=True)
    for reason, facts in store.manifest.skipped.items():
        line = f"{store.manifest.name}: skipped {facts['records']:,}, {reason}"
        print(f"{line} (the first: {facts['first']})", file=sys.stderr, flush=True)
