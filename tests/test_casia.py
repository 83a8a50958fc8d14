"""CASIA: .gnt files made byte by byte, zipped or not, whole or damaged."""

import io
import struct
import zipfile

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from onepass.data import casia, open_store

CHARACTERS = "一丁七万丈三上下不与丐丑专且世丘丙业丛东"


def record(character: str | bytes, pixels: np.ndarray, length: int | None = None) -> bytes:
    height, width = pixels.shape
    tag = character if isinstance(character, bytes) else character.encode("gbk")
    whole = 10 + pixels.size if length is None else length
    return struct.pack("<I2sHH", whole, tag.ljust(2, b"\0"), width, height) + pixels.tobytes()


def page(shade: int, height: int = 9, width: int = 6) -> np.ndarray:
    return np.full((height, width), shade, np.uint8)


def writer(seed: int, characters: str = CHARACTERS) -> bytes:
    """A file of one writer: every character once, in a shade that says which and by whom."""
    shades = {sign: 10 * k + seed for k, sign in enumerate(characters)}
    return b"".join(record(sign, page(shade)) for sign, shade in shades.items())


@pytest.fixture
def gnt(data_folder):
    """Three writers in three places, one of them in a zip."""
    (data_folder / "casia" / "deep" / "down").mkdir(parents=True)
    (data_folder / "casia" / "001-f.gnt").write_bytes(writer(1))
    (data_folder / "casia" / "deep" / "down" / "002-f.gnt").write_bytes(writer(2))
    with zipfile.ZipFile(data_folder / "casia" / "Gnt1.0Test.zip", "w") as archive:
        archive.writestr("some/folder/003-f.gnt", writer(3))
        archive.writestr("readme.txt", b"hello")
    return data_folder / "casia"


def test_every_record_is_found_under_its_character(gnt):
    store = open_store("casia")
    assert store.images.shape == (60, 1, 32, 32)
    assert store.manifest.classes == sorted(CHARACTERS)
    assert store.manifest.counts == [3] * 20
    for number, name in enumerate(store.manifest.classes):
        shade = 10 * CHARACTERS.index(name)
        middles = store.of_class(number)[:, 0, 16, 16]
        assert sorted(middles) == [shade + 1, shade + 2, shade + 3]


def test_splits_share_no_class_and_depend_on_names_alone(gnt):
    splits = open_store("casia").manifest.splits
    assert {name: len(ids) for name, ids in splits.items()} == {
        "train": 14,
        "validation": 2,
        "test": 4,
    }
    assert sorted(number for ids in splits.values() for number in ids) == list(range(20))


def test_of_the_whole_set_1000_classes_are_for_meta_test():
    names = {chr(0x4E00 + k): 1 for k in range(7_356)}
    _, splits = casia.CASIA.arrange(names)
    assert {name: len(ids) for name, ids in splits.items()} == {
        "train": 5_720,
        "validation": 636,
        "test": 1_000,
    }


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 20), (20, 50), (7, 3), (1, 90)])
def test_the_longer_edge_fills_the_page_and_the_rest_is_white(height, width):
    rng = np.random.default_rng(0)
    # far from black and white, where Pillow would cut what the filter overshoots
    pixels = rng.integers(90, 160, (height, width)).astype(np.uint8)
    found = casia.fit(pixels.tobytes(), width, height)
    scale = 32 / max(height, width)
    inner = max(1, round(height * scale)), max(1, round(width * scale))
    top, left = (32 - inner[0]) // 2, (32 - inner[1]) // 2
    expected = torch.full((32, 32), 255.0)
    # an oracle: the same filter as torch has it
    small = F.interpolate(
        torch.from_numpy(pixels).float()[None, None], inner, mode="bicubic", antialias=True
    )
    expected[top : top + inner[0], left : left + inner[1]] = small[0, 0].clamp(0, 255)
    # Pillow rounds to bytes between the two axes and at the end
    assert_close(torch.from_numpy(found[0]).float(), expected, rtol=0, atol=1.5)


def test_ascii_is_padded_and_what_gbk_cannot_say_is_no_character():
    assert casia.character_of("啊".encode("gbk")) == "啊"
    assert casia.character_of(b"A\0") == "A"
    for tag in (b"\xff\xff", b"\x81\x20", b"\0\0", b"AB", b" \0"):
        assert casia.character_of(tag) is None


GOOD = record("一", page(7))
DAMAGED = {
    "no width": (record("丁", page(0, 4, 0)), 2, "records without width or height", 65),
    "no height": (record("丁", page(0, 0, 4)), 2, "records without width or height", 65),
    "a tag that is no character": (record(b"\xff\xff", page(0)), 2, "a tag that is no GBK", 65),
    "a length that lies": (record("丁", page(0), length=11), 1, "rests of files", 65),
    "a huge length": (record("丁", page(0), length=2**32 - 1), 1, "rests of files", 65),
    "an absurd width": (struct.pack("<I2sHH", 10 + 65535, b"AB", 65535, 1), 1, "rests of fil", 65),
    "a cut header": (GOOD[:7], 1, "files cut short in a header", 65),
    "a cut picture": (GOOD[:-1], 1, "files cut short in a picture", 65),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_bad_record_is_skipped_counted_and_placed(case, data_folder, capsys):
    middle, good, reason, offset = DAMAGED[case]
    end = GOOD if good == 2 else b""
    (data_folder / "casia").mkdir()
    (data_folder / "casia" / "001.gnt").write_bytes(record("丁", page(9, 11, 5)) + middle + end)
    store = open_store("casia")
    assert len(store.images) == good
    ((why, facts),) = store.manifest.skipped.items()
    assert reason in why
    assert facts["records"] == 1
    assert f"001.gnt, byte {offset}" in facts["first"]
    assert why in capsys.readouterr().err


def test_a_file_that_is_no_gnt_at_all_leaves_nothing(data_folder, leftovers):
    (data_folder / "casia").mkdir()
    (data_folder / "casia" / "001.gnt").write_bytes(b"<html>Log in first</html>")
    with pytest.raises(ValueError, match=r"no images that can be read \(1 skipped, rests of files"):
        open_store("casia")
    assert leftovers() == []


def zip_with(path, *entries):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)


def spoil_zip(casia_folder, content: bytes):
    (casia_folder / "Gnt1.0Test.zip").write_bytes(content)


def flipped(content: bytes) -> bytes:
    where = content.index(b".gnt") + 40
    return content[:where] + bytes([content[where] ^ 255]) + content[where + 1 :]


BAD = {
    "a zip cut short": (
        lambda to: spoil_zip(to, (to / "Gnt1.0Test.zip").read_bytes()[:-30]),
        r"Gnt1\.0Test\.zip is not a whole, plain zip file",
    ),
    "a web page": (
        lambda to: spoil_zip(to, b"<html>Not found</html>"),
        r"Gnt1\.0Test\.zip is not a whole, plain zip file",
    ),
    "a wrong checksum inside": (
        lambda to: spoil_zip(to, flipped((to / "Gnt1.0Test.zip").read_bytes())),
        r"Gnt1\.0Test\.zip is not a whole, plain zip file: Bad CRC-32",
    ),
    "the same file twice": (
        lambda to: (to / "deep" / "001-f.gnt").write_bytes(writer(1)),
        r"deep/001-f\.gnt is there twice, also as .*casia/001-f\.gnt: remove one",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_files_are_refused_and_leave_nothing(case, gnt, leftovers):
    spoil, complaint = BAD[case]
    spoil(gnt)
    with pytest.raises(ValueError, match=complaint):
        open_store("casia")
    assert leftovers() == []


def test_a_zip_bomb_is_refused_before_it_is_unpacked(gnt, leftovers, monkeypatch):
    monkeypatch.setattr(casia, "LARGEST_FILE", 1 << 20)
    zip_with(gnt / "Gnt1.1Test.zip", ("bomb.gnt", bytes(1 << 24)))
    said = r"Gnt1\.1Test\.zip: entry 0, bomb\.gnt has 16,777,216 bytes, and a \.gnt at most"
    with pytest.raises(ValueError, match=said):
        open_store("casia")
    assert leftovers() == []


def test_a_bomb_of_tiny_records_is_refused(gnt, leftovers, monkeypatch):
    monkeypatch.setattr(casia, "MOST_RECORDS", 1_000)
    zip_with(gnt / "Gnt1.1Test.zip", ("b.gnt", record("一", page(0, 1, 1)) * 1_001))
    with pytest.raises(ValueError, match=r"b\.gnt, byte 11,000: more than 1,000 records"):
        open_store("casia")
    assert leftovers() == []


def test_a_path_in_a_zip_leads_nowhere(gnt, tmp_path):
    zip_with(gnt / "Gnt1.2Test.zip", ("../../../../evil.gnt", writer(4)), ("/abs.gnt", writer(5)))
    before = {path for path in tmp_path.rglob("*") if "cache" not in path.parts}
    assert len(open_store("casia").images) == 100
    assert {path for path in tmp_path.rglob("*") if "cache" not in path.parts} == before


def test_without_files_it_says_which_and_on_what_terms(data_folder, leftovers):
    said = r"no casia/Gnt1\.0TrainPart1\.zip .*research only.*--agree.*put casia/Gnt1\.0TrainPart1"
    with pytest.raises(ValueError, match=said):
        open_store("casia")
    (data_folder / "casia").mkdir()
    with pytest.raises(ValueError, match=said):
        open_store("casia")
    assert leftovers() == []


tag = st.one_of(st.binary(min_size=2, max_size=2), st.sampled_from([b"\xb0\xa1", b"A\0"]))
edge = st.one_of(st.integers(0, 12), st.integers(0, 65_535))


@st.composite
def damaged_gnt(draw) -> bytes:
    """Records that are mostly right, then a few bytes changed, cut or doubled."""
    content = b""
    for _ in range(draw(st.integers(0, 6))):
        width, height = draw(edge), draw(edge)
        honest = draw(st.integers(0, 4)) > 0
        length = 10 + width * height if honest else draw(st.integers(0, 2**32 - 1))
        pixels = min(width * height, 200)
        header = struct.pack("<I2sHH", length % 2**32, draw(tag), width, height)
        content += header + draw(st.binary(min_size=pixels, max_size=pixels))
    for _ in range(draw(st.integers(0, 3))):
        if content:
            place = draw(st.integers(0, len(content) - 1))
            content = content[:place] + draw(st.binary(max_size=3)) + content[place + 1 :]
    return content[: draw(st.integers(0, len(content)))] if draw(st.booleans()) else content


def read_all(content: bytes) -> None:
    skipped: dict = {}
    found = list(casia.records(io.BytesIO(content), "file", skipped))
    assert len(found) <= len(content) // 11 + 1
    for name, image in found:
        assert len(name) == 1
        assert image.shape == (1, 32, 32)
    assert all(records > 0 for records, _ in skipped.values())


@settings(max_examples=300, deadline=None)
@given(damaged_gnt())
def test_no_bytes_break_the_reader(content):
    read_all(content)


@pytest.mark.slow
@settings(max_examples=5_000, deadline=None)
@given(st.one_of(damaged_gnt(), st.binary(max_size=400)))
def test_thousands_of_files_do_not_break_the_reader(content):
    read_all(content)


def test_a_download_that_broke_off_is_gone_on_with(data_folder, monkeypatch):
    folder = casia.downloads("casia")
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "Gnt1.0Test.zip", "w") as archive:
        archive.writestr("003-f.gnt", writer(3))
    missing = casia.missing()
    assert len(missing) == 9
    assert "Gnt1.0Test.zip" not in missing
    # what a person holds may be a part
    (data_folder / "casia").mkdir()
    (data_folder / "casia" / "001-f.gnt").write_bytes(writer(1))
    assert casia.missing() == []
