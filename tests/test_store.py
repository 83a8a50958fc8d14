"""Stores: prepared once, by one process at a time, gone on with after a kill, never half there."""

import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from onepass.data import casia, data_sets, open_store, prepare_data
from onepass.data.prepare import prepare_store
from onepass.data.store import Manifest, Store, checksum, read_store, store_path
from test_casia import CHARACTERS, page, record, writer

MANY = [chr(0x4E00 + k) for k in range(1_500)]


@pytest.fixture
def small(data_folder):
    (data_folder / "casia").mkdir()
    for seed in range(6):
        (data_folder / "casia" / f"{seed}.gnt").write_bytes(writer(seed))
    return data_folder / "casia"


@pytest.fixture
def large(data_folder):
    """So large that several processes prepare it, each chunk in some tenths of a second."""
    (data_folder / "casia").mkdir()
    for seed in range(16):
        content = b"".join(record(sign, page(seed, 25, 25)) for sign in MANY)
        (data_folder / "casia" / f"{seed:02}.gnt").write_bytes(content)
    return data_folder / "casia"


def start(out: int = subprocess.PIPE) -> subprocess.Popen:
    arguments = [sys.executable, "-m", "onepass", "data", "prepare", "casia"]
    return subprocess.Popen(arguments, stdout=out, stderr=out, text=True, start_new_session=True)


def wait_until(true, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def work() -> set[str]:
    folder = store_path(".casia.work")
    return {path.name for path in folder.glob("*.json")} if folder.is_dir() else set()


def test_processes_and_small_steps_make_the_same_store(small, monkeypatch, tmp_path):
    alone = open_store("casia")
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr("onepass.data.prepare.ALONE_CHUNKS", 0)
    monkeypatch.setattr("onepass.data.prepare.ALONE_BYTES", 0)
    monkeypatch.setattr("onepass.data.assemble.AT_A_TIME", 1)
    together = open_store("casia")
    assert together.manifest == alone.manifest
    assert (together.images == alone.images).all()


def test_a_bad_file_in_a_worker_is_named_as_here(small, monkeypatch, leftovers):
    monkeypatch.setattr("onepass.data.prepare.ALONE_CHUNKS", 0)
    monkeypatch.setattr("onepass.data.prepare.ALONE_BYTES", 0)
    with zipfile.ZipFile(small / "Gnt1.0Test.zip", "w") as archive:
        archive.writestr("9.gnt", writer(9))
    content = (small / "Gnt1.0Test.zip").read_bytes()
    (small / "Gnt1.0Test.zip").write_bytes(content[:60] + b"?" + content[61:])
    with pytest.raises(
        ValueError, match=r"Gnt1\.0Test\.zip is not a whole, plain zip file: Bad CRC"
    ):
        open_store("casia")
    assert leftovers() == []


def test_readers_start_without_torch():
    script = "import sys, onepass.data; assert not {'torch', 'matplotlib'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_part_of_a_set_is_told_from_the_whole(small, capsys):
    open_store("casia")
    assert "casia: 20 classes, and the whole set has 7,356" in capsys.readouterr().err


def test_a_killed_preparation_goes_on_where_it_was(large):
    running = start(subprocess.DEVNULL)
    wait_until(lambda: len(work()) >= 2)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    # its workers end with it
    wait_until(lambda: not group_lives(running.pid))
    assert not store_path("casia").exists()
    finished = work()
    times = {name: (store_path(".casia.work") / name).stat().st_mtime_ns for name in finished}
    again = start(subprocess.DEVNULL)
    seen = {}

    def watch() -> bool:
        for name in finished & work():
            try:
                seen[name] = (store_path(".casia.work") / name).stat().st_mtime_ns
            except FileNotFoundError:
                break
        return again.poll() is not None

    wait_until(watch)
    assert again.returncode == 0
    assert seen == times, "a finished chunk was decoded again"
    store = prepare_data("casia")
    assert store.manifest.counts == [16] * len(MANY)
    assert (store.images[:, 0, 16, 16].reshape(-1, 16) == np.arange(16)).all()
    assert sorted(path.name for path in store_path("").iterdir()) == [".casia.lock", "casia"]


def test_ctrl_c_ends_in_one_line_and_the_work_is_kept(large):
    running = start()
    wait_until(lambda: len(work()) >= 1)
    os.killpg(running.pid, signal.SIGINT)
    _, said = running.communicate()
    assert running.returncode == 130, said
    assert "Traceback" not in said
    stopped = (
        "onepass: stopped by SIGINT while preparing casia; the same command goes on from there"
    )
    assert said.splitlines()[-1] == stopped
    assert work()
    assert not store_path("casia").exists()


def test_sigterm_to_all_is_no_lack_of_memory(large):
    running = start()
    wait_until(lambda: len(work()) >= 1)
    os.killpg(running.pid, signal.SIGTERM)
    _, said = running.communicate()
    assert running.returncode == 128 + signal.SIGTERM, said
    assert "stopped by SIGTERM while preparing casia" in said.splitlines()[-1]


def test_files_that_came_later_are_prepared_when_asked_for(small, capsys):
    before = prepare_data("casia")
    assert len(before.images) == 6 * len(CHARACTERS)
    (small / "6.gnt").write_bytes(writer(6))
    # training goes on with what is there; whoever prepares wants what the files have
    assert len(open_store("casia").images) == len(before.images)
    assert len(prepare_data("casia").images) == 7 * len(CHARACTERS)
    for file in small.iterdir():
        file.unlink()
    assert len(prepare_data("casia").images) == 7 * len(CHARACTERS)


def test_a_store_of_another_version_is_listed_as_it_is(small):
    open_store("casia")
    manifest = store_path("casia") / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 0}))
    assert data_sets()["casia"]["state"] == "to be prepared again"
    assert len(prepare_data("casia").images) == 6 * len(CHARACTERS)
    assert data_sets()["casia"]["state"] == "prepared"


def test_a_data_folder_that_is_not_there_is_named(data_folder, monkeypatch):
    monkeypatch.setenv("ONEPASS_DATA", "/nowhere/at/all")
    with pytest.raises(ValueError, match="ONEPASS_DATA is /nowhere/at/all, and there is no such"):
        open_store("casia")


def test_two_that_prepare_at_once_end_with_one_store(large):
    first, second = start(), start()
    said = [running.communicate() for running in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0), said
    waited = [err for _, err in said if "another process prepares casia: waiting" in err]
    worked = [err for _, err in said if "preparing casia" in err]
    assert len(worked) == 1
    assert len(waited) <= 1
    assert sorted(path.name for path in store_path("").iterdir()) == [".casia.lock", "casia"]
    assert prepare_data("casia").manifest.counts == [16] * len(MANY)


def test_a_file_changed_in_between_is_decoded_again(small, monkeypatch):
    read, decoded = casia.CASIA.read, []

    def interrupted(chunk, skipped):
        decoded.append(chunk.files[0].name)
        if len(decoded) == 4:
            raise KeyboardInterrupt
        return read(chunk, skipped)

    reader = replace(casia.CASIA, read=interrupted)
    with pytest.raises(KeyboardInterrupt):
        prepare_store(reader, store_path("casia"))
    assert decoded == ["0.gnt", "1.gnt", "2.gnt", "3.gnt"]
    (small / "1.gnt").write_bytes(writer(9))
    prepare_store(reader, store_path("casia"))
    assert decoded[4:] == ["1.gnt", "3.gnt", "4.gnt", "5.gnt"]
    shades = read_store(store_path("casia")).of_class(sorted(CHARACTERS).index("一"))
    assert sorted(shades[:, 0, 16, 16]) == [0, 2, 3, 4, 5, 9]


@pytest.mark.parametrize(
    "how", ["gone", "cut", "one bit", "no manifest", "half a manifest", "a class in two splits"]
)
def test_a_damaged_store_says_so_and_what_to_do(how, small):
    open_store("casia")
    images, manifest = (store_path("casia") / name for name in ("images.npy", "manifest.json"))
    content, facts = images.read_bytes(), json.loads(manifest.read_text())
    if how == "gone":
        images.unlink()
    elif how == "cut":
        images.write_bytes(content[:-1_000])
    elif how == "one bit":
        images.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif how == "no manifest":
        manifest.unlink()
    elif how == "half a manifest":
        manifest.write_text('{"version": 2}')
    else:
        facts["splits"]["test"].append(facts["splits"]["train"][0])
        manifest.write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=r"is damaged \(.*\): remove it and prepare it again"):
        open_store("casia")


def test_a_large_store_is_read_in_full_only_when_told(small, monkeypatch):
    open_store("casia")
    monkeypatch.setattr("onepass.data.store.CHECKED_ON_OPEN", 1_000)
    images = store_path("casia") / "images.npy"
    content = images.read_bytes()
    images.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    open_store("casia")
    with pytest.raises(ValueError, match="wrong checksum"):
        prepare_data("casia")


def test_a_store_of_another_version_is_refused(small):
    open_store("casia")
    path = store_path("casia") / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 1}))
    with pytest.raises(ValueError, match="store of version 1, and this is 2"):
        open_store("casia")


def test_too_little_space_is_said_before_it_is_used(small, monkeypatch):
    usage = type("Usage", (), {"free": 100})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(OSError, match="needs 122,880 bytes for the store, and 100 are free"):
        open_store("casia")
    assert not store_path("casia").exists()


def test_the_checksum_of_a_file_is_that_of_its_images(small):
    store = open_store("casia")
    assert isinstance(store.images, np.memmap)
    assert checksum(store.images) == checksum(np.array(store.images)) == store.manifest.checksum


def test_a_class_is_found_where_the_counts_say():
    images = np.arange(6, dtype=np.uint8).reshape(6, 1, 1, 1)
    manifest = Manifest("", "", "", "", list("abc"), [1, 3, 2], {"train": [0, 1, 2]}, "")
    store = Store(images, manifest)
    assert store.starts == [0, 1, 4]
    assert [store.of_class(k).ravel().tolist() for k in range(3)] == [[0], [1, 2, 3], [4, 5]]
