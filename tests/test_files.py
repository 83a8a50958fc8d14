"""Files are written whole or not at all."""

import errno
import json
import os
import resource
from contextlib import contextmanager

import pytest

from onepass import files


def disk_is_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def no_file_longer_than(limit: int):
    """The kernel writes up to the limit and fails then, as a disk does that fills up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("call", ["replace", "fsync"])
@pytest.mark.parametrize("old", [b"old", None])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(call, old, tmp_path, monkeypatch):
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)
    monkeypatch.setattr(files.os, call, disk_is_full)
    with pytest.raises(OSError, match=f"could not write {path}: No space left"):
        files.write_bytes(path, b"new")
    left = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert left == ({"file": old} if old else {})


def test_a_write_that_stops_halfway_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with no_file_longer_than(1000), pytest.raises(OSError, match=f"could not write {path}"):
        files.write_bytes(path, bytes(100_000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_write_replaces_the_file_and_makes_its_folder(tmp_path):
    path = tmp_path / "some" / "folder" / "file"
    for content in (b"old and long", b"new"):
        files.write_bytes(path, content)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == ["file"]


def test_json_comes_back_as_it_went(tmp_path):
    content = {"a": [1, 2.5, None], "b": "é"}
    files.write_json(tmp_path / "file", content)
    assert json.loads((tmp_path / "file").read_bytes()) == content


def test_a_line_is_appended_whole(tmp_path):
    for line in ("one", "zwölf"):
        files.append_line(tmp_path / "file", line)
    assert (tmp_path / "file").read_text(encoding="utf-8") == "one\nzwölf\n"


def test_a_line_that_does_not_fit_is_taken_back(tmp_path):
    path = tmp_path / "file"
    files.append_line(path, "one")
    with no_file_longer_than(50), pytest.raises(OSError, match=f"could not write {path}"):
        files.append_line(path, "x" * 100)
    assert path.read_bytes() == b"one\n"
    files.append_line(path, "two")
    assert path.read_bytes() == b"one\ntwo\n"


def test_the_cache_is_where_the_person_says(tmp_path, monkeypatch):
    for name in ("ONEPASS_CACHE", "XDG_CACHE_HOME", "ONEPASS_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert files.data_dir() is None
    places = [files.cache_dir()]
    for name in ("XDG_CACHE_HOME", "ONEPASS_CACHE", "ONEPASS_DATA"):
        monkeypatch.setenv(name, str(tmp_path / name))
        places.append(files.cache_dir())
    given = tmp_path / "ONEPASS_CACHE"
    expected = [tmp_path / ".cache" / "onepass", tmp_path / "XDG_CACHE_HOME" / "onepass"]
    assert places == [*expected, given, given]
    assert files.data_dir() == tmp_path / "ONEPASS_DATA"
