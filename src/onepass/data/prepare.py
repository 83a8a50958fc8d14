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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path

import numpy as np

from onepass.data.assemble import assemble
from onepass.data.reader import Chunk, Reader, Skipped
from onepass.data.store import VERSION, Store, read_store
from onepass.files import alone, write_json
from onepass.progress import progress

# less than this is done before other processes have started
ALONE_CHUNKS, ALONE_BYTES = 4, 4 << 20


def prepare_store(reader: Reader, path: Path) -> Store:
    """The store at `path`, made now unless it is there already; by one process at a time."""
    chunks = reader.chunks()
    fingerprint = _hash(_way(reader), [chunk.stamp for chunk in chunks])
    work = path.with_name(f".{path.name}.work")
    with alone(path, f"another process prepares {reader.name}: waiting for it to finish"):
        if path.is_dir() and (there := read_store(path)).manifest.fingerprint == fingerprint:
            return there
        try:
            _clear(work, chunks, _hash(_way(reader)))
            _decode_all(reader, chunks, work)
            assemble(reader, chunks, work, fingerprint)
        except ValueError:
            # the files are at fault, and another try begins with other files
            shutil.rmtree(work, ignore_errors=True)
            raise
        _put(work, path)
        store = read_store(path)
    _tell(reader, store)
    return store


def _way(reader: Reader) -> tuple:
    return VERSION, reader.name, reader.made, reader.shape, reader.fewest


def _hash(*facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:32]


def _clear(work: Path, chunks: Sequence[Chunk], way: str) -> None:
    """Keep what was decoded from the same files in the same way, and nothing else."""
    mark = work / "way"
    if work.is_dir() and not (mark.is_file() and mark.read_text() == way):
        shutil.rmtree(work)
    work.mkdir(exist_ok=True)
    mark.write_text(way)
    kept = {f"{chunk.stamp}{end}" for chunk in chunks for end in (".images", ".json")}
    for path in work.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in kept and path != mark:
            path.unlink()


def _decode_all(reader: Reader, chunks: Sequence[Chunk], work: Path) -> None:
    todo = [chunk for chunk in chunks if not (work / f"{chunk.stamp}.json").is_file()]
    start, images = len(chunks) - len(todo), 0
    decode = partial(decode_chunk, reader.read, reader.shape, work)
    with progress(f"preparing {reader.name}", len(chunks), start) as show:
        for done, found in enumerate(_in_parallel(decode, todo, reader.name), start + 1):
            images += found
            show(done, f"{images:,} images")


def _in_parallel(
    decode: Callable[[Chunk], int], chunks: Sequence[Chunk], name: str
) -> Iterator[int]:
    """What `decode` gives for each chunk, as they get done."""
    size = sum(file.stat().st_size for file in {file for chunk in chunks for file in chunk.files})
    if len(chunks) <= ALONE_CHUNKS or size < ALONE_BYTES:
        yield from map(decode, chunks)
        return
    # a fresh interpreter each: a fork would copy locks that other threads hold
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(cores(), len(chunks)), context, initializer=_begin_worker)
    try:
        # workers are born deaf to ctrl-c: the parent hears it, and ends the work in good order
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            futures = [pool.submit(decode, chunk) for chunk in chunks]
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        for future in as_completed(futures):
            yield future.result()
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
    chunk: Chunk,
) -> int:
    """Decode a chunk into its two files, the second when the first is whole; how many images."""
    keys: list[str] = []
    skipped: Skipped = {}
    grey = True
    path = work / f"{chunk.stamp}.images"
    with open(path, "wb") as file:
        for key, image in read(chunk, skipped):
            assert image.shape == shape, f"{image.shape} is not {shape}"
            assert image.dtype == np.uint8
            grey = grey and bool((image == image[:1]).all())
            keys.append(key)
            file.write(np.ascontiguousarray(image).data)
    write_json(path.with_suffix(".json"), {"keys": keys, "skipped": skipped, "grey": grey})
    return len(keys)


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
        line = f"{reader.name}: {classes:,} classes, and the whole set has {reader.whole:,}"
        print(line, file=sys.stderr, flush=True)
    for reason, facts in store.manifest.skipped.items():
        line = f"{store.manifest.name}: skipped {facts['records']:,}, {reason}"
        print(f"{line} (the first: {facts['first']})", file=sys.stderr, flush=True)
