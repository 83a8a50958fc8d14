"""Omniglot: whatever is wrong with the files is said in one line, and what is right stays right."""

import hashlib
import io
import json
import shutil
import struct
import zipfile
import zlib
from functools import cache as remember

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.testing import assert_close

from onepass.benchmarks.stored import by_class
from onepass.data import omniglot, open_store
from onepass.data.fetch import LAKE
from onepass.data.omniglot import DRAWINGS
from onepass.data.reader import Chunk
from onepass.data.store import checksum, hold_out, store_path
from onepass.episodes import EpisodeSpec
from onepass.registry import BENCHMARKS

LETTERS = {
    "images_background": ("Braille/character01", "Braille/character02", "Korean/character01"),
    "images_evaluation": ("Tengwar/character01", "Tengwar/character02"),
}
ZIPS = [f"{part}.zip" for part in LETTERS]
BACKGROUND, EVALUATION = (f"omniglot/{name}" for name in ZIPS)
ALL = DRAWINGS * sum(len(letters) for letters in LETTERS.values())
FIRST_DRAWING = "images_background/Braille/character01/0000_01.png"


def drawing(seed: int, width: int = 105) -> bytes:
    """A one-bit PNG, mostly white, as the real ones are."""
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.rand(105, width, generator=rng) > 0.1
    content = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(content, "PNG")
    return content.getvalue()


@remember
def good_files(part: str) -> dict[str, bytes]:
    """What an archive holds: part/alphabet/character/drawing.png -> its bytes."""
    first = 0 if part == "images_background" else 1000
    return {
        f"{part}/{letter}/{k:04}_{n:02}.png": drawing(first + DRAWINGS * k + n)
        for k, letter in enumerate(LETTERS[part])
        for n in range(1, DRAWINGS + 1)
    }


def write_zip(path, contents: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


def unpack(path) -> None:
    """The folder someone unpacked the zip to, instead of the zip."""
    with zipfile.ZipFile(path) as archive:
        archive.extractall(path.parent)
    path.unlink()


def failing_with(error: BaseException):
    def fail(*_, **__):
        raise error

    return fail


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def data(tmp_path, monkeypatch, cache):
    """A small Omniglot without a flaw, that a test may put one in."""
    monkeypatch.setenv("ONEPASS_DATA", str(tmp_path / "data"))
    for part, letters in LETTERS.items():
        write_zip(tmp_path / "data" / "omniglot" / f"{part}.zip", good_files(part))
        monkeypatch.setitem(omniglot.PARTS, part, len(letters))
    return tmp_path / "data"


@pytest.fixture
def no_data(data, monkeypatch):
    """Nothing to prepare from; the zips stay where nobody looks."""
    monkeypatch.delenv("ONEPASS_DATA")
    return data


def in_zip(change):
    """Spoils the background archive by a change to what it holds."""

    def spoil(data):
        contents = dict(good_files("images_background"))
        change(contents)
        write_zip(data / BACKGROUND, contents)

    return spoil


def in_bytes(change):
    """Spoils the background archive by a change to its bytes."""

    def spoil(data):
        content = (data / BACKGROUND).read_bytes()
        (data / BACKGROUND).write_bytes(change(content))

    return spoil


def drop_a_character(contents):
    for name in [name for name in contents if "Korean" in name]:
        del contents[name]


def drop_a_drawing(contents):
    del contents["images_background/Korean/character01/0002_20.png"]


def first_drawing(content: bytes):
    return in_zip(lambda contents: contents.update({FIRST_DRAWING: content}))


def unpack_too_few(data):
    in_zip(drop_a_character)(data)
    unpack(data / BACKGROUND)


def unpack_nothing(data):
    (data / BACKGROUND).unlink()
    (data / "omniglot" / "images_background").mkdir()


def garble_the_first_entry(content: bytes) -> bytes:
    # the compressed bytes come after a header of 30 bytes and the name
    where = content.index(b".png") + 4
    return content[:where] + bytes(reversed(range(200))) + content[where + 200 :]


def encrypt(content: bytes) -> bytes:
    # bit 0 of the flags, in the first header of both kinds
    content = bytearray(content)
    content[content.index(b"PK\x03\x04") + 6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def png_by_hand(side: int, *extra: bytes) -> bytes:
    """A PNG header that claims a square image, and no pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    body = (header, *extra, b"IDAT" + zlib.compress(b""), b"IEND")
    chunks = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in body)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


NOT_WHOLE = r"images_background\.zip is not a whole, plain zip file"
NO_PNG = r"character01/0000_01\.png is not a (whole )?PNG image"
BAD = {
    "a zip cut short": (in_bytes(lambda content: content[:-300]), NOT_WHOLE),
    "a zip cut to half": (in_bytes(lambda content: content[: len(content) // 2]), NOT_WHOLE),
    "an empty file": (in_bytes(lambda content: b""), NOT_WHOLE),
    "a web page": (in_bytes(lambda content: b"<html>Not found</html>"), NOT_WHOLE),
    "an empty zip": (
        in_zip(lambda contents: contents.clear()),
        r"images_background\.zip has 0 characters, and Omniglot has 3",
    ),
    "too few characters": (
        in_zip(drop_a_character),
        r"images_background\.zip has 2 characters, and Omniglot has 3",
    ),
    "too many characters": (
        in_zip(lambda contents: contents.update(good_files("images_evaluation"))),
        r"images_background\.zip has 5 characters, and Omniglot has 3",
    ),
    "too few drawings": (
        in_zip(drop_a_drawing),
        r"images_background\.zip has 19 drawings of Korean/character01, and Omniglot has 20",
    ),
    "a narrow drawing": (
        first_drawing(drawing(0, width=28)),
        r"character01/0000_01\.png is 28x105, not 105x105",
    ),
    "a drawing of text": (first_drawing(b"this is no picture"), NO_PNG),
    "a drawing of nothing": (first_drawing(b""), NO_PNG),
    "half a drawing": (first_drawing(drawing(0)[:200]), NO_PNG),
    "a drawing that unpacks to 100 MB": (
        in_zip(lambda contents: contents.update({FIRST_DRAWING: bytes(100_000_000)})),
        r"character01/0000_01\.png unpacks to 100,000,000 bytes",
    ),
    "a folder with too few characters": (
        unpack_too_few,
        r"omniglot/images_background has 2 characters, and Omniglot has 3",
    ),
    "an empty folder": (
        unpack_nothing,
        r"omniglot/images_background has 0 characters, and Omniglot has 3",
    ),
    "only one of two files": (
        lambda data: (data / EVALUATION).unlink(),
        r"no omniglot/images_evaluation\.zip \(looked in: .*/data\)",
    ),
    "a zip with a garbled entry": (in_bytes(garble_the_first_entry), NOT_WHOLE),
    "an encrypted zip": (in_bytes(encrypt), NOT_WHOLE),
    "a drawing that claims 60,000 pixels a side": (
        first_drawing(png_by_hand(60_000)),
        r"character01/0000_01\.png is 60000x60000, not 105x105",
    ),
    "a drawing with a broken chunk": (first_drawing(png_by_hand(105, b"pHYs12")), NO_PNG),
}
CASES = [pytest.param(*case, id=name) for name, case in BAD.items()]


@pytest.mark.parametrize(("spoil", "complaint"), CASES)
def test_bad_files_are_refused_and_leave_nothing(spoil, complaint, data, cache):
    spoil(data)
    with pytest.raises(ValueError, match=complaint):
        open_store("omniglot")
    assert [path.name for path in cache.rglob("*") if path.is_file()] in ([], [".omniglot.lock"])


def test_without_files_it_says_what_to_do(no_data, cache):
    expected = r"no omniglot/images_background\.zip .*ONEPASS_DATA is not set.*onepass data prepare"
    with pytest.raises(ValueError, match=expected):
        BENCHMARKS.build("omniglot").sample("train", EpisodeSpec(), 1, torch.Generator())
    assert not list(cache.rglob("*"))


def downsampled(content: bytes):
    """An oracle for the pixels: the same filter as torch has it."""
    grey = torch.from_numpy(np.array(Image.open(io.BytesIO(content)).convert("L"))).float()
    return F.interpolate(grey[None, None], (32, 32), mode="bilinear", antialias=True)[0]


def test_the_store_has_every_drawing_in_the_order_of_the_names(data):
    images = open_store("omniglot").images
    assert images.dtype == np.uint8
    assert images.shape == (ALL, 1, 32, 32)
    drawings = [content for part in LETTERS for _, content in sorted(good_files(part).items())]
    expected = torch.stack([downsampled(content) for content in drawings])
    # Pillow rounds to bytes between the two axes and at the end
    assert_close(torch.from_numpy(np.array(images)).float(), expected, rtol=0, atol=1.5)


def test_the_manifest_says_what_is_in_the_store(data):
    store = open_store("omniglot")
    manifest = json.loads((store_path("omniglot") / "manifest.json").read_text())
    assert "32x32" in manifest.pop("made")
    assert len(manifest.pop("fingerprint")) == 32
    sources = {name: (data / "omniglot" / name) for name in ZIPS}
    each = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sources.items()}
    assert manifest == {
        "name": "omniglot",
        "source": LAKE,
        "licence": "MIT",
        "classes": [letter for letters in LETTERS.values() for letter in letters],
        "counts": [20] * 5,
        "splits": {"train": [0, 1, 2], "validation": [], "test": [3, 4]},
        "checksum": hashlib.sha256(store.images.tobytes()).hexdigest(),
        "files": {
            "count": 2,
            "bytes": sum(path.stat().st_size for path in sources.values()),
            "sha256": hashlib.sha256("\n".join(each.values()).encode()).hexdigest(),
            "each": each,
        },
        "skipped": {},
        "version": 2,
    }


def test_an_unpacked_folder_makes_the_same_store_as_the_zip(data, cache, tmp_path, monkeypatch):
    from_zip = open_store("omniglot")
    for name in (BACKGROUND, EVALUATION):
        unpack(data / name)
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "other"))
    from_folder = open_store("omniglot")
    for same in ("classes", "counts", "splits", "checksum"):
        assert getattr(from_folder.manifest, same) == getattr(from_zip.manifest, same)
    assert (from_folder.images == from_zip.images).all()


def test_other_files_in_the_archive_do_no_harm(data):
    contents = good_files("images_background")
    others = {"README.md": b"hello", "images_background/cover.png": b"?", "x/y/z/notes.txt": b"?"}
    write_zip(data / BACKGROUND, {**others, **contents})
    assert len(open_store("omniglot").manifest.classes) == 5


def test_a_prepared_store_needs_no_files(data):
    open_store("omniglot")
    before = (store_path("omniglot") / "images.npy").stat().st_mtime_ns
    shutil.rmtree(data)
    open_store("omniglot")
    assert (store_path("omniglot") / "images.npy").stat().st_mtime_ns == before
    benchmark = BENCHMARKS.build("omniglot", validation=False)
    train, _, _ = benchmark.sample("train", EpisodeSpec(3, 5, 5), 2, torch.Generator())
    assert train.x.shape == (2, 15, 1, 32, 32)


def test_the_folder_of_the_files_itself_will_do(data, cache, monkeypatch):
    monkeypatch.setenv("ONEPASS_DATA", str(data / "omniglot"))
    assert open_store("omniglot").manifest.name == "omniglot"


def test_asking_for_more_than_there_is_is_refused_with_both_numbers(data, monkeypatch):
    monkeypatch.setattr("onepass.data.store.VALIDATION", 0.34)
    benchmark, rng = BENCHMARKS.build("omniglot"), torch.Generator()
    for split, classes in (("train", 2), ("validation", 1), ("test", 2)):
        with pytest.raises(ValueError, match=f"{split} split has {classes} classes, .* is 3"):
            benchmark.sample(split, EpisodeSpec(3, 1, 1), 1, rng)
    with pytest.raises(ValueError, match=r"classes of 20 images, .* 15 \+ 6 = 21"):
        benchmark.sample("train", EpisodeSpec(2, 15, 6), 1, rng)
    assert benchmark.sample("train", EpisodeSpec(2, 15, 5), 1, rng).train.x.shape[1] == 30


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 60), share=st.floats(0, 1, exclude_max=True), data=st.data())
def test_what_is_held_out_depends_on_the_names_alone(count, share, data):
    names = [f"class {i}" for i in range(count)]
    kept, out = hold_out(names, range(count), share)
    assert sorted(kept + out) == list(range(count))
    assert len(out) == round(share * count)
    shuffled = data.draw(st.permutations(names))
    _, out_of_shuffled = hold_out(shuffled, range(count), share)
    assert {shuffled[i] for i in out_of_shuffled} == {names[i] for i in out}


@remember
def small_zip() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for k in range(3):
            archive.writestr(f"images_background/Braille/character01/0001_{k:02}.png", drawing(k))
    return content.getvalue()


@st.composite
def damaged_zip(draw) -> bytes:
    content = small_zip()
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content) - 1))
        change = draw(st.binary(max_size=4))
        content = content[:place] + change + content[place + draw(st.integers(0, 4)) :]
    return content


def read_zip(path, content: bytes) -> None:
    """Every drawing, or one line that names the file."""
    path.write_bytes(content)
    chunk = Chunk((path,), ("images_background", "Braille"))
    try:
        for _, image in omniglot.read(chunk, {}):
            assert image.shape == (1, 32, 32)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017


FUZZ = dict(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@settings(max_examples=200, **FUZZ)
@given(content=damaged_zip())
def test_no_bytes_break_the_reader(content, tmp_path):
    read_zip(tmp_path / "images_background.zip", content)


@pytest.mark.slow
@settings(max_examples=3_000, **FUZZ)
@given(content=st.one_of(damaged_zip(), st.binary(max_size=600)))
def test_thousands_of_files_do_not_break_the_reader(content, tmp_path):
    read_zip(tmp_path / "images_background.zip", content)


@pytest.fixture
def real(real_cache, monkeypatch):
    """The real Omniglot, prepared once."""
    monkeypatch.delenv("ONEPASS_DATA")
    monkeypatch.setenv("ONEPASS_CACHE", str(real_cache))
    store = open_store("omniglot")
    return store.images, store.manifest


def test_real_omniglot_has_964_and_659_classes_of_20(real):
    images, manifest = real
    splits = by_class(open_store("omniglot"), validation=False).splits
    assert [len(splits[split]) for split in ("train", "test")] == [964, 659]
    assert images.shape == (32_460, 1, 32, 32)
    assert set(manifest.counts) == {20}
    assert len(set(manifest.classes)) == 1623
    assert checksum(images) == manifest.checksum


def test_real_alphabets_do_not_cross_the_split(real):
    _, manifest = real
    splits = by_class(open_store("omniglot"), validation=False).splits
    alphabets = [
        {manifest.classes[i].split("/")[0] for i in splits[split]} for split in ("train", "test")
    ]
    assert [len(each) for each in alphabets] == [30, 20]
    assert not alphabets[0] & alphabets[1]


def test_real_drawings_are_dark_ink_on_white(real):
    images, _ = real
    assert images.mean() > 200
    assert images.mean((1, 2, 3)).min() > 128
    # every drawing has ink, and paper
    assert images.min((1, 2, 3)).max() < 200
    assert images.max((1, 2, 3)).min() == 255


def test_validation_holds_out_the_same_96_classes_everywhere(real):
    _, manifest = real
    held_out = sorted(manifest.classes[i] for i in manifest.splits["validation"])
    assert len(held_out) == 96
    # what results in papers and checkpoints rest on; a change makes them incomparable
    assert hashlib.sha256("\n".join(held_out).encode()).hexdigest() == (
        "89ae9241beb1fae394f83ac350928b71cfa57c121e0e8d9062c186dd466a99f4"
    )


def test_without_validation_nothing_is_held_out(real):
    assert BENCHMARKS.build("omniglot", validation=False).splits == ("train", "test")
    splits = by_class(open_store("omniglot"), validation=False).splits
    assert {split: len(ids) for split, ids in splits.items()} == {"train": 964, "test": 659}


def test_real_splits_share_no_class(real):
    classes = by_class(open_store("omniglot")).splits
    together = [i for ids in classes.values() for i in ids]
    assert sorted(together) == list(range(1623))
    background = by_class(open_store("omniglot"), validation=False).splits["train"]
    assert sorted([*classes["train"], *classes["validation"]]) == background


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_real_episodes_are_of_their_split(split, real):
    images, _ = real
    whose = {image.tobytes(): row // 20 for row, image in enumerate(images)}
    benchmark, rng = BENCHMARKS.build("omniglot"), torch.Generator().manual_seed(0)
    train, test, _ = benchmark.sample(split, EpisodeSpec(90, 10, 10), 3, rng)
    x = torch.cat([part.x.unflatten(1, (90, 10)) for part in (train, test)], 2)
    classes = by_class(open_store("omniglot")).splits[split]
    pixels = ((x + 1) * 127.5).round().to(torch.uint8).flatten(0, 1).numpy()
    for task in pixels:
        (of_task,) = {whose[image.tobytes()] for image in task}
        assert of_task in classes
