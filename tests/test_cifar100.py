"""CIFAR-100: the official archive made byte by byte, whole and damaged, packed and unpacked."""

import gzip
import io
import tarfile
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onepass.data import cifar100, open_store
from onepass.data.reader import Chunk

NAMES = [f"name_{k:02}" for k in range(100)]


def records(each: int, first: int = 0) -> bytes:
    """`each` images of every class in turn; the first pixel says the class, the second which."""
    content = b""
    for n in range(first, first + each):
        for label in range(100):
            content += bytes([label // 5, label, label, n]) + bytes([label]) * 3_070
    return content


FILES = {
    "train.bin": records(2),
    "test.bin": records(1, first=2),
    "fine_label_names.txt": "\n".join(NAMES).encode() + b"\n\n",
    "coarse_label_names.txt": b"animals\n",
}


def packed(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(f"cifar-100-binary/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


WHOLE = packed(FILES)


@pytest.fixture
def place(data_folder, monkeypatch):
    """Where the archive goes; three images of a class are all there are."""
    monkeypatch.setattr(cifar100, "EACH", 3)
    (data_folder / "cifar100").mkdir()
    return data_folder / "cifar100"


def check(store) -> None:
    assert store.images.shape == (300, 3, 32, 32)
    assert store.manifest.classes == NAMES
    assert {name: len(ids) for name, ids in store.manifest.splits.items()} == {
        "train": 54,
        "validation": 6,
        "test": 40,
    }
    for label in range(100):
        found = store.of_class(label)
        assert (found[:, 0, 0, 0] == label).all()
        assert sorted(found[:, 0, 0, 1]) == [0, 1, 2]
        assert (found[:, 1:] == label).all()


def test_train_and_test_images_are_one_set_of_classes(place):
    (place / "cifar-100-binary.tar.gz").write_bytes(WHOLE)
    check(open_store("cifar100"))


@pytest.mark.parametrize("below", ["cifar-100-binary", "."])
def test_the_unpacked_folder_will_do(place, below):
    (place / below).mkdir(exist_ok=True)
    for name, content in FILES.items():
        (place / below / name).write_bytes(content)
    check(open_store("cifar100"))


def changed(**files: bytes | None) -> bytes:
    merged = FILES | {name.replace("_bin", ".bin"): data for name, data in files.items()}
    return packed({name: data for name, data in merged.items() if data is not None})


RECORD = 3_074
BAD = {
    "a web page": (b"<html>Not found</html>", "is not a whole tar.gz file"),
    "an empty file": (b"", "is not a whole tar.gz file"),
    "a cut head of the gzip": (b"\x1f\x8b\x08\x04\x00\x00", "is not a whole tar.gz file"),
    "half an archive": (WHOLE[: len(WHOLE) // 2], "is not a whole tar.gz file"),
    "a cut end of the gzip": (WHOLE[:-300], "is not a whole tar.gz file"),
    "a gzip of something else": (gzip.compress(b"hello" * 999), "is not a whole tar.gz file"),
    "no names": (packed({"train.bin": b""}), "has no fine_label_names.txt"),
    "too few names": (
        packed(FILES | {"fine_label_names.txt": b"apple\nbear\n"}),
        "fine_label_names.txt has 2 different names, not 100",
    ),
    "a name twice": (
        packed(FILES | {"fine_label_names.txt": b"apple\n" * 100}),
        "fine_label_names.txt has 1 different names, not 100",
    ),
    "no test images": (changed(test_bin=None), "has no test.bin"),
    "a record cut short": (
        changed(train_bin=FILES["train.bin"][:-1]),
        f"train.bin is cut short in the record at byte {199 * RECORD:,}",
    ),
    "a label out of range": (
        changed(train_bin=FILES["train.bin"][: 5 * RECORD] + b"\0\x64" + bytes(3_072)),
        f"train.bin has label 100 at byte {5 * RECORD + 1:,}",
    ),
    "an image missing": (
        changed(test_bin=FILES["test.bin"][:-RECORD]),
        "has 2 images of name_99, and CIFAR-100 has 3",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_and_leave_nothing(case, place, leftovers):
    content, complaint = BAD[case]
    (place / "cifar-100-binary.tar.gz").write_bytes(content)
    with pytest.raises(ValueError, match=complaint) as caught:
        open_store("cifar100")
    assert "cifar-100-binary.tar.gz" in str(caught.value)
    assert leftovers() == []


def test_a_bomb_in_the_archive_is_refused_by_its_header(place, leftovers, monkeypatch):
    monkeypatch.setattr(cifar100, "LARGEST_FILE", 1 << 20)
    (place / "cifar-100-binary.tar.gz").write_bytes(packed({"zeros": bytes(1 << 22)} | FILES))
    with pytest.raises(
        ValueError, match=r"'cifar-100-binary/zeros' is not of CIFAR-100: too large"
    ):
        open_store("cifar100")
    assert leftovers() == []


def test_links_and_paths_in_the_archive_lead_nowhere(place, tmp_path):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, kind in (("train.bin", tarfile.SYMTYPE), ("../../../evil", tarfile.REGTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
        for name, data in FILES.items():
            entry = tarfile.TarInfo(f"cifar-100-binary/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    (place / "cifar-100-binary.tar.gz").write_bytes(content.getvalue())
    check(open_store("cifar100"))
    assert not list(tmp_path.parent.glob("evil"))


def test_without_files_it_says_what_to_do(data_folder):
    said = r"no cifar100/cifar-100-binary\.tar\.gz .*onepass data prepare cifar100.*--data or ONEP"
    with pytest.raises(ValueError, match=said):
        open_store("cifar100")


@st.composite
def damaged_archive(draw) -> bytes:
    """A small archive with a few bytes changed, before or after it was compressed."""
    few = {"train.bin": bytes(2 * RECORD), "fine_label_names.txt": FILES["fine_label_names.txt"]}
    content = gzip.decompress(packed(few)) if draw(st.booleans()) else packed(few)
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, min(len(content), 2_000) - 1))
        content = content[:place] + draw(st.binary(max_size=2)) + content[place + 1 :]
    content = content[: draw(st.integers(1, len(content)))] if draw(st.booleans()) else content
    return gzip.compress(content, 1) if content[:2] != b"\x1f\x8b" else content


@contextmanager
def suppress_complaint(path):
    try:
        yield
    except ValueError as error:
        if str(path) not in str(error):
            raise


def read_all(path, content: bytes) -> None:
    path.write_bytes(content)
    for part in cifar100.PARTS:
        # a complaint names the file; anything else is a bug, and ends the test
        with suppress_complaint(path):
            found = list(cifar100.read(Chunk((path,), (part, *NAMES)), {}))
            assert all(image.shape == (3, 32, 32) for _, image in found)


FUZZ = dict(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(max_examples=200, **FUZZ)
@given(content=damaged_archive())
def test_no_bytes_break_the_reader(content, tmp_path):
    read_all(tmp_path / "archive.tar.gz", content)


@pytest.mark.slow
@settings(max_examples=3_000, **FUZZ)
@given(content=st.one_of(damaged_archive(), st.binary(max_size=600)))
def test_thousands_of_files_do_not_break_the_reader(content, tmp_path):
    read_all(tmp_path / "archive.tar.gz", content)


def test_pixels_are_the_bytes_of_the_file(tmp_path):
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (4, 3, 32, 32)).astype(np.uint8)
    content = b"".join(bytes([0, k]) + image.tobytes() for k, image in enumerate(pixels))
    (tmp_path / "fine_label_names.txt").write_bytes(b"")
    (tmp_path / "test.bin").write_bytes(content)
    chunk = Chunk((tmp_path / "fine_label_names.txt",), ("test.bin", *NAMES))
    found = list(cifar100.read(chunk, {}))
    assert [name for name, _ in found] == NAMES[:4]
    assert (np.stack([image for _, image in found]) == pixels).all()


def test_a_changed_file_beside_the_names_is_another_source(place):
    for name, content in FILES.items():
        (place / name).write_bytes(content)
    before = [chunk.stamp() for chunk in cifar100.chunks()]
    (place / "train.bin").write_bytes(records(3))
    after = [chunk.stamp() for chunk in cifar100.chunks()]
    assert before[0] != after[0]
    assert before[1] == after[1]
    (place / "test.bin").unlink()
    with pytest.raises(ValueError, match=r"no test\.bin beside"):
        cifar100.chunks()
