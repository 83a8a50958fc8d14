"""MS-Celeb-1M: lines of the TSV made byte by byte, whole and damaged."""

import base64
import io

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from onepass.data import msceleb, open_store
from onepass.data.reader import Chunk


def jpeg(shade: int = 128, width: int = 50, height: int = 40) -> bytes:
    content = io.BytesIO()
    Image.new("RGB", (width, height), (shade, 255 - shade, shade)).save(content, "JPEG", quality=95)
    return content.getvalue()


def line(who: str, picture: bytes) -> bytes:
    middle = b"\t1\thttp://a/b\thttp://c\tFaceId-0\tAAAAAA==\t"
    return who.encode() + middle + base64.b64encode(picture) + b"\n"


def people(*names: str, each: int = 20) -> bytes:
    return b"".join(
        line(name, jpeg(10 * k + n)) for n in range(each) for k, name in enumerate(names)
    )


@pytest.fixture
def tsv(data_folder):
    (data_folder / "msceleb").mkdir()
    return data_folder / "msceleb" / msceleb.FILE


def test_people_with_fewer_than_20_pictures_are_dropped_and_counted(tsv):
    tsv.write_bytes(people("m.01", "m.02", "m.03") + people("m.04", each=19))
    store = open_store("msceleb")
    assert store.images.shape == (60, 3, 32, 32)
    assert store.manifest.classes == ["m.01", "m.02", "m.03"]
    assert store.manifest.skipped == {
        "images of classes with fewer than 20": {"records": 19, "first": "m.04"}
    }
    for number in range(3):
        # a flat JPEG keeps its shade to within its rounding
        shades = store.of_class(number)[:, 0, 16, 16].astype(int)
        assert_close(shades, np.arange(20) + 10 * number, rtol=0, atol=3)


def test_the_picture_is_stretched_to_the_page():
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (45, 70, 3)).astype(np.uint8)
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=90)
    name, found = msceleb.face(line("m.0x_y", content.getvalue()))
    assert name == "m.0x_y"
    decoded = np.array(Image.open(io.BytesIO(content.getvalue()))).transpose(2, 0, 1)
    expected = F.interpolate(
        torch.from_numpy(decoded).float()[None], (32, 32), mode="bilinear", antialias=True
    )
    # Pillow rounds to bytes between the two axes and at the end
    assert_close(torch.from_numpy(found.copy()).float(), expected[0], rtol=0, atol=1.5)


@pytest.mark.parametrize("chunk", [1, 7, 100, 1_000, 5_000])
def test_a_line_is_read_once_wherever_the_file_is_cut(chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(msceleb, "CHUNK", chunk)
    lines = [f"line {n}\t{'x' * n}\n".encode() for n in range(30)]
    content = b"".join(lines)[:-1]
    found = [
        line
        for start in range(0, len(content), chunk)
        for _, line in msceleb.lines(io.BytesIO(content), start, min(start + chunk, len(content)))
    ]
    assert b"".join(found) == content
    assert len(found) == 30


DAMAGED = {
    "one field": (b"m.99\n", "lines without an id and a picture"),
    "an empty line": (b"\n", "lines without an id and a picture"),
    "no id": (line("", jpeg()), "lines without an id and a picture"),
    "an id that is no text": (b"\xff\xfe" + line("", jpeg()), "lines without an id and a picture"),
    "an id without end": (line("m" * 200, jpeg()), "lines without an id and a picture"),
    "bad base64": (b"m.99\t!!!!\n", "lines whose base64 is damaged"),
    "cut base64": (line("m.99", jpeg())[:-3] + b"\n", "lines whose base64 is damaged"),
    "no JPEG": (line("m.99", b"hello"), "lines whose JPEG cannot be decoded"),
    "half a JPEG": (line("m.99", jpeg()[:300]), "lines whose JPEG cannot be decoded"),
    "an empty picture": (b"m.99\t\n", "lines whose JPEG cannot be decoded"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_bad_line_is_skipped_counted_and_placed(case, tsv):
    bad, reason = DAMAGED[case]
    good = people("m.01", "m.02", each=10)
    tsv.write_bytes(good + bad + people("m.01", "m.02", each=10))
    store = open_store("msceleb")
    assert store.manifest.counts == [20, 20]
    assert store.manifest.skipped == {reason: {"records": 1, "first": f"{tsv}, byte {len(good):,}"}}


def test_a_line_without_end_is_skipped_in_pieces(tsv, monkeypatch):
    monkeypatch.setattr(msceleb, "LONGEST_LINE", 4_000)
    monkeypatch.setattr(msceleb, "CHUNK", 10_000)
    good = people("m.01", "m.02", each=10)
    tsv.write_bytes(good + b"m.99\t" + b"A" * 100_000 + b"\n" + good)
    store = open_store("msceleb")
    assert store.manifest.counts == [20, 20]
    assert list(store.manifest.skipped) == ["lines that are too long"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (b"<html>Not found</html>", r"no images that can be read \(1 skipped, lines without an id"),
        (people("m.01", each=3), r"3 skipped, images of classes with fewer than 20"),
    ],
    ids=["nothing", "a web page", "too few of everyone"],
)
def test_a_file_without_people_is_refused_and_leaves_nothing(content, complaint, tsv, leftovers):
    tsv.write_bytes(content)
    with pytest.raises(ValueError, match=complaint):
        open_store("msceleb")
    assert leftovers() == []


def test_it_is_never_downloaded(data_folder):
    from onepass.data import prepare_data

    said = r"no msceleb/FaceImageCroppedWithAlignment\.tsv .*owner withdrew it, so it is never down"
    with pytest.raises(ValueError, match=said):
        prepare_data("msceleb", agree=True)


@st.composite
def damaged_lines(draw) -> bytes:
    content = b"".join(draw(st.lists(st.sampled_from(LINES), min_size=1, max_size=4)))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, max(0, len(content) - 1)))
        content = content[:place] + draw(st.binary(max_size=3)) + content[place + 1 :]
    return content


LINES = [line("m.01", jpeg(1, 9, 7)), line("m.02", jpeg(9, 3, 3)), b"m.03\t\n", b"\n", b"\t\t\t\n"]


def damaged_jpeg(place: int, value: int) -> bytes:
    content = bytearray(jpeg(1, 9, 7))
    content[place % len(content)] = value
    return line("m.01", bytes(content))


def read_all(path, content: bytes) -> None:
    path.write_bytes(content)
    skipped: dict = {}
    found = list(msceleb.read(Chunk((path,), (0, len(content))), skipped))
    assert all(image.shape == (3, 32, 32) for _, image in found)
    read = len(found) + sum(records for records, _ in skipped.values())
    assert read == len(content.splitlines(True)) or b"\r" in content or not content.isascii()


FUZZ = dict(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
any_lines = st.one_of(
    damaged_lines(), st.builds(damaged_jpeg, st.integers(0, 10**6), st.integers(0, 255))
)


@settings(max_examples=300, **FUZZ)
@given(content=any_lines)
def test_no_bytes_break_the_reader(content, tmp_path):
    read_all(tmp_path / "file.tsv", content)


@pytest.mark.slow
@settings(max_examples=5_000, **FUZZ)
@given(content=st.one_of(any_lines, st.binary(max_size=300)))
def test_thousands_of_files_do_not_break_the_reader(content, tmp_path):
    read_all(tmp_path / "file.tsv", content)


def test_a_file_without_lines_is_read_once_and_not_once_for_every_range(tmp_path, monkeypatch):
    monkeypatch.setattr(msceleb, "LONGEST_LINE", 100)
    path = tmp_path / "long.tsv"
    path.write_bytes(b"x" * 100_000)
    read = 0
    for start in range(0, 100_000, 1_000):
        with open(path, "rb") as file:
            found = list(msceleb.lines(file, start, start + 1_000))
            read += file.tell() - start
        assert len(found) == (start == 0)
    assert read < 250_000
