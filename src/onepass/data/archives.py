"""Zip files of anyone's making, read without unpacking anything to disk."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def open_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """The archive; whatever is wrong with it, also while it is read, is one line."""
    try:
        with zipfile.ZipFile(path) as archive:
            yield archive
    except (
        zipfile.BadZipFile,
        zlib.error,
        OSError,
        EOFError,
        # an encrypted or otherwise unknown archive
        RuntimeError,
        UnicodeDecodeError,
    ) as error:
        raise ValueError(f"{path} is not a whole, plain zip file: {error}") from error
