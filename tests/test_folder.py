"""Anyone's own pictures: folders and arrays, of every kind and in every state."""

import io
import os
import struct
import zlib
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from onepass.data import Store, open_folder, open_npz, open_store
from onepass.data.pictures import decode_picture
from onepass.episodes import EpisodeSpec
from onepass.registry import BENCHMARKS
from onepass.sheet import rows_of_benchmark, save_sheet

FUZZ = dict(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


def picture(shade, mode: str = "L", size=(10, 8), format: str = "PNG") -> bytes:
    return encoded(Image.new(mode, size, shade), format)


@pytest.fixture
def flowers(data_folder, tmp_path):
    """Ten classes of four grey pictures, as a person might have them."""
    root = tmp_path / "flowers"
    for k in range(10):
        (root / f"flower {k}").mkdir(parents=True)
        for n in range(4):
            (root / f"flower {k}" / f"{n}.png").write_bytes(picture(20 * k + n))
    return root


def test_a_folder_of_class_folders_is_a_store(flowers):
    store = open_store(f"folder:{flowers}")
    assert store.images.shape == (40, 1, 32, 32)
    assert store.manifest.classes == [f"flower {k}" for k in range(10)]
    assert store.manifest.counts == [4] * 10
    for k in range(10):
        assert store.of_class(k)[:, 0, 5, 5].tolist() == [20 * k + n for n in range(4)]
    sizes = {name: len(ids) for name, ids in store.manifest.splits.items()}
    assert sizes == {"train": 7, "validation": 1, "test": 2}


def test_one_coloured_picture_makes_all_of_them_rgb_unless_told(flowers):
    (flowers / "flower 3" / "red.jpg").write_bytes(picture((200, 20, 20), "RGB", format="JPEG"))
    assert open_folder(flowers).images.shape == (41, 3, 32, 32)
    assert open_folder(flowers, size=16, colour="grey").images.shape == (41, 1, 16, 16)


def test_colour_without_colour_is_grey_unless_told(flowers):
    (flowers / "flower 3" / "grey.png").write_bytes(picture((9, 9, 9), "RGB"))
    assert open_folder(flowers).images.shape == (41, 1, 32, 32)
    assert open_folder(flowers, colour="rgb").images.shape == (41, 3, 32, 32)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (picture(100), 100),
        (picture(1, "1"), 255),
        (picture((100, 0), "LA"), 255),
        (picture((0, 0, 0, 0), "RGBA"), 255),
        (picture((50, 50, 50, 255), "RGBA"), 50),
        (picture(100 << 8, "I;16"), 100),
        (picture(100, format="BMP"), 100),
        (picture(100, format="GIF"), 100),
        (picture(100, format="TIFF"), 100),
        (picture((100, 100, 100), "RGB", format="WEBP"), 100),
        (picture(100, format="PPM"), 100),
        (encoded(Image.new("P", (4, 4), 0), transparency=0), 255),
        (encoded(Image.new("CMYK", (8, 8), (0, 0, 0, 255)), "JPEG"), 0),
    ],
    ids=str,
)
def test_every_common_kind_of_picture_is_read(content, expected):
    pixels = np.asarray(decode_picture(content).convert("L")).astype(int)
    assert abs(pixels - expected).max() <= 2


def test_a_photograph_is_turned_upright():
    image = Image.new("L", (8, 4), 0)
    exif = image.getexif()
    exif[0x0112] = 6
    assert decode_picture(encoded(image, "JPEG", exif=exif)).size == (4, 8)


def png_that_claims(side: int) -> bytes:
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    body = (header, b"IDAT" + zlib.compress(b""), b"IEND")
    chunks = (struct.pack(">I", len(c) - 4) + c + struct.pack(">I", zlib.crc32(c)) for c in body)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


BAD = {
    "text": ("a.png", b"this is no picture", "pictures that cannot be decoded"),
    "nothing": ("a.png", b"", "pictures that cannot be decoded"),
    "half a picture": ("a.png", picture(3)[:40], "pictures that cannot be decoded"),
    "a bomb": ("a.png", png_that_claims(60_000), "pictures that cannot be decoded"),
    "a smaller bomb": ("a.png", png_that_claims(9_000), "pictures that cannot be decoded"),
    "PostScript": ("a.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n", "pictures that cannot be decoded"),
    "notes": ("notes.txt", b"hello", "files that are no pictures by their name"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_skipped_counted_and_named(case, flowers, capsys):
    name, content, reason = BAD[case]
    (flowers / "flower 3" / name).write_bytes(content)
    store = open_folder(flowers)
    assert len(store.images) == 40
    facts = store.manifest.skipped[reason]
    assert facts["records"] == 1
    assert f"flower 3/{name}" in facts["first"]
    assert reason in capsys.readouterr().err


def test_a_bomb_is_refused_by_its_header():
    with pytest.raises(ValueError, match="9000x9000 pixels are too many"):
        decode_picture(png_that_claims(9_000))


def test_a_picture_outside_of_the_class_folders_is_named(flowers):
    (flowers / "cover.png").write_bytes(picture(3))
    (flowers / ".hidden.png").write_bytes(picture(3))
    store = open_folder(flowers)
    assert len(store.images) == 40
    assert list(store.manifest.skipped) == ["pictures in no class folder"]


def test_a_pipe_and_a_circle_of_links_do_no_harm(flowers):
    os.mkfifo(flowers / "flower 1" / "pipe.png")
    (flowers / "flower 2" / "again").symlink_to(flowers)
    assert len(open_folder(flowers).images) == 40


def test_a_changed_folder_is_prepared_again(flowers, capsys):
    assert open_folder(flowers).of_class(0)[0, 0, 0, 0] == 0
    capsys.readouterr()
    open_folder(flowers)
    assert "preparing" not in capsys.readouterr().err
    (flowers / "flower 0" / "0.png").write_bytes(picture(77))
    changed = open_folder(flowers)
    assert changed.of_class(0)[0, 0, 0, 0] == 77
    assert len(changed.images) == 40


def empty(root):
    root.mkdir()


def one_class(root):
    (root / "only").mkdir(parents=True)
    (root / "only" / "a.png").write_bytes(picture(0))


def parts(root):
    for part in ("train", "test"):
        for name in ("cat", "dog"):
            (root / part / name).mkdir(parents=True)
            (root / part / name / "a.png").write_bytes(picture(0))


def empty_classes(root):
    for name in "ab":
        (root / name).mkdir(parents=True)


def nothing_good(root):
    for name in "ab":
        (root / name).mkdir(parents=True)
        (root / name / "a.png").write_bytes(b"?")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda root: None, "there is no folder"),
        (empty, "has no files in it: it needs a folder of pictures for each class"),
        (empty_classes, "has no files in it"),
        (one_class, "has pictures of one class alone"),
        (parts, "has the same classes in test, train: name one of these folders"),
        (nothing_good, r"no images that can be read \(2 skipped, pictures that cannot be decoded"),
    ],
)
def test_a_folder_that_will_not_do_is_refused_in_one_line(make, complaint, data_folder, leftovers):
    root = data_folder / "mine"
    make(root)
    with pytest.raises(ValueError, match=complaint):
        open_folder(root)
    assert leftovers() == []


def test_names_are_the_same_however_a_system_composes_them(data_folder):
    root = data_folder / "mine"
    for name in ("e\u0301", "b"):
        (root / name).mkdir(parents=True)
        (root / name / "a.png").write_bytes(picture(0))
    assert open_folder(root).manifest.classes == ["b", "\u00e9"]


def test_arrays_in_a_file_are_a_store(data_folder):
    images = np.arange(60, dtype=np.uint8)[:, None, None].repeat(5, 1).repeat(7, 2)
    np.savez(data_folder / "mine.npz", images=images, labels=np.arange(60) % 6)
    store = open_store(f"npz:{data_folder / 'mine.npz'}")
    assert store.images.shape == (60, 1, 5, 7)
    assert store.manifest.classes == list("012345")
    assert store.of_class(2)[:, 0, 0, 0].tolist() == list(range(2, 60, 6))


def save(path, **arrays):
    np.savez(path, **arrays)


IMAGES = np.zeros((4, 5, 5), np.uint8)
BAD_ARRAYS = {
    "no labels": (dict(images=IMAGES), "it has no labels"),
    "nothing": (dict(other=IMAGES), "it has no images and no labels"),
    "floats": (dict(images=IMAGES / 2, labels=[0, 0, 1, 1]), "images are float64 of shape"),
    "too few labels": (dict(images=IMAGES, labels=[0, 1]), "4 images need as many labels"),
    "fractions": (dict(images=IMAGES, labels=[0.5] * 4), "labels are float64"),
    "objects": (dict(images=IMAGES, labels=np.array([{}] * 4)), "cannot be read"),
    "no images": (dict(images=IMAGES[:0], labels=[]), "give at least one"),
    "no channels": (dict(images=np.zeros((4, 5, 5, 5), np.uint8), labels=[0] * 4), "which axis"),
}


@pytest.mark.parametrize("case", BAD_ARRAYS)
def test_arrays_that_will_not_do_are_refused_in_one_line(case, data_folder):
    arrays, complaint = BAD_ARRAYS[case]
    np.savez(data_folder / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=complaint) as caught:
        open_npz(data_folder / "mine.npz")
    assert "\n" not in str(caught.value)


def test_a_bomb_of_arrays_is_refused_before_it_is_unpacked(data_folder, monkeypatch):
    monkeypatch.setattr("onepass.data.folder.LARGEST_ARRAYS", 1 << 20)
    big = np.zeros((2_000, 32, 32), np.uint8)
    np.savez_compressed(data_folder / "bomb.npz", images=big, labels=np.zeros(2_000, int))
    with pytest.raises(ValueError, match=r"unpacks to 2,\d+,\d+ bytes, more than 1,048,576"):
        open_npz(data_folder / "bomb.npz")


@settings(max_examples=100, deadline=None)
@given(data=st.data(), layout=st.sampled_from(["NHW", "NHWC", "NCHW"]))
def test_every_image_of_an_array_is_found_under_its_label(data, layout):
    labels = data.draw(st.lists(st.sampled_from(["cat", "dog", "cow"]), min_size=1, max_size=20))
    shape = {"NHW": (4, 5), "NHWC": (4, 5, 3), "NCHW": (3, 4, 5)}[layout]
    images = np.random.default_rng(0).integers(0, 256, (len(labels), *shape)).astype(np.uint8)
    store = Store.from_arrays(images, labels)
    first = (
        np.moveaxis(images, -1, 1) if layout == "NHWC" else images.reshape(len(images), -1, 4, 5)
    )
    for number, name in enumerate(store.manifest.classes):
        assert (store.of_class(number) == first[np.array(labels) == name]).all()
    assert store.x_shape == first.shape[1:]
    assert store.images.flags["C_CONTIGUOUS"]


@pytest.mark.parametrize("view", ["classify", "completion", "rotation"])
def test_a_folder_is_a_benchmark_in_every_view(view, flowers):
    benchmark = BENCHMARKS.build(f"folder:{flowers}", view=view, test=0.3)
    train, _, _ = benchmark.sample("test", EpisodeSpec(3, 2, 2), 2, torch.Generator())
    assert train.x.shape[:2] == (2, 6)
    with pytest.raises(ValueError, match=r"flowers's test split has 3 classes, and tasks is 4"):
        benchmark.sample("test", EpisodeSpec(4, 2, 2), 1, torch.Generator())


PICTURES = [
    picture(100, size=(5, 4), format=format)
    for format in ("PNG", "GIF", "BMP", "JPEG", "TIFF", "WEBP", "PPM")
]


@st.composite
def damaged_picture(draw) -> bytes:
    content = draw(st.sampled_from(PICTURES))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=4)) + content[place + 1 :]
    return content


def decode(content: bytes) -> None:
    try:
        image = decode_picture(content)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
    else:
        assert image.mode in ("L", "RGB")


@settings(max_examples=400, **FUZZ)
@given(damaged_picture())
def test_no_bytes_break_the_reader(content):
    decode(content)


@pytest.mark.slow
@settings(max_examples=6_000, **FUZZ)
@given(st.one_of(damaged_picture(), st.binary(max_size=200)))
def test_thousands_of_pictures_do_not_break_the_reader(content):
    decode(content)


@settings(max_examples=200, **FUZZ)
@given(place=st.integers(0, 2_000), change=st.binary(max_size=3))
def test_no_damage_to_an_npz_breaks_the_reader(place, change, tmp_path):
    read_damaged_npz(place, change, tmp_path)


@pytest.mark.slow
@settings(max_examples=3_000, **FUZZ)
@given(place=st.integers(0, 2_000), change=st.binary(max_size=6))
def test_thousands_of_damages_to_an_npz_do_not_break_the_reader(place, change, tmp_path):
    read_damaged_npz(place, change, tmp_path)


def read_damaged_npz(place, change, tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, images=np.zeros((4, 3, 3), np.uint8), labels=np.array([0, 0, 1, 1]))
    content = buffer.getvalue()
    place %= len(content)
    path = tmp_path / "mine.npz"
    path.write_bytes(content[:place] + change + content[place + 1 :])
    try:
        store = open_npz(path)
    except ValueError as error:
        assert str(path) in str(error)  # noqa: PT017
    else:
        assert len(store.images) == sum(store.manifest.counts)


def test_folders_that_unicode_cannot_tell_apart_are_refused(flowers):
    for name in ("caf\u00e9", "cafe\u0301"):
        (flowers / name).mkdir()
        (flowers / name / "0.png").write_bytes(picture(9))
    with pytest.raises(ValueError, match=r"have the same name: rename one of them"):
        open_folder(flowers)


@pytest.mark.skipif(os.name == "nt", reason="names are Unicode there")
def test_names_that_are_no_unicode_stay_apart(flowers):
    for name in (b"\xff", b"\xfe"):
        folder = os.path.join(os.fsencode(flowers), name)
        try:
            os.mkdir(folder)
        except OSError:
            pytest.skip("this file system takes Unicode names alone")
        with open(os.path.join(folder, b"0.png"), "wb") as file:
            file.write(picture(9))
    classes = open_folder(flowers).manifest.classes
    assert {"\\xff", "\\xfe"} <= set(classes)


def test_a_link_to_a_class_is_no_other_class(flowers, tmp_path):
    (flowers / "a link").symlink_to(flowers / "flower 3")
    outside = tmp_path / "elsewhere"
    outside.mkdir()
    (outside / "0.png").write_bytes(picture(77))
    (flowers / "weed").symlink_to(outside)
    store = open_folder(flowers)
    assert store.manifest.classes == [*(f"flower {k}" for k in range(10)), "weed"]


def test_a_folder_is_prepared_once_however_it_is_spelled(flowers, monkeypatch):
    first = open_folder(flowers)
    monkeypatch.chdir(flowers.parent)

    def refuse(*arguments):
        raise AssertionError("prepared again")

    monkeypatch.setattr("onepass.data.prepare._decode_all", refuse)
    # a cache that cannot be written to is no reason to fail either
    monkeypatch.setattr("onepass.data.prepare.alone", refuse)
    for spelled in ("flowers", "./flowers", flowers / ".." / "flowers"):
        assert open_folder(spelled).manifest == first.manifest


def test_a_damaged_store_of_a_folder_is_made_again(flowers):
    store = open_folder(flowers)
    manifest = os.path.join(os.path.dirname(store.images.filename), "manifest.json")
    with open(manifest, "w") as file:
        file.write("{")
    assert open_folder(flowers).manifest == store.manifest


def test_a_picture_that_changes_while_it_is_read_is_named(flowers, monkeypatch, leftovers):
    def change(content):
        (flowers / "flower 0" / "0.png").write_bytes(picture(1, size=(3, 3)))
        return decode_picture(content)

    monkeypatch.setattr("onepass.data.folder.decode_picture", change)
    with pytest.raises(ValueError, match=r"0\.png or one beside it changed while it was read"):
        open_folder(flowers)


def test_too_few_of_ones_own_says_what_to_do(flowers):
    benchmark = BENCHMARKS.build("folder", path=str(flowers))
    rng = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=r"classes of 4 images.*benchmark\.fewest=10 does without"):
        benchmark.sample("train", EpisodeSpec(2, 5, 5), 1, rng)
    with pytest.raises(ValueError, match=r"2 classes, and tasks is 5; benchmark\.test is"):
        benchmark.sample("test", EpisodeSpec(5, 1, 1), 1, rng)


def test_every_file_has_its_own_checksum_in_the_manifest(flowers):
    each = open_folder(flowers).manifest.files["each"]
    assert len(each) == 40
    assert "flower 3/2.png" in each


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_a_path_must_be_named(kind):
    with pytest.raises(ValueError, match=f"{kind}: needs a path after it, such as {kind}:"):
        open_store(f"{kind}:")


@pytest.mark.parametrize("ending", [".jpe", ".jfif", ".pbm", ".pnm"])
def test_rarer_endings_of_common_pictures_are_read(ending, data_folder):
    kind = "JPEG" if ending.startswith(".j") else "PPM"
    for name in "ab":
        (data_folder / name).mkdir()
        Image.new("1" if ending == ".pbm" else "RGB", (9, 9)).save(
            data_folder / name / f"x{ending}", kind
        )
    assert len(open_folder(data_folder).images) == 2


def test_what_is_no_picture_is_said_without_an_address(flowers, capsys):
    (flowers / "flower 0" / "fake.png").write_bytes(b"not a picture")
    (reason,) = [skipped["first"] for skipped in open_folder(flowers).manifest.skipped.values()]
    assert reason.endswith("fake.png: it is none of BMP, GIF, JPEG, PNG, PPM, TIFF, WEBP")


@pytest.mark.parametrize("share", [5.0, 1.5, -0.2, float("nan")])
def test_a_share_of_classes_is_a_share(share):
    with pytest.raises(ValueError, match="it is a share of the classes, from 0 to 1"):
        Store.from_arrays(np.zeros((9, 8, 8), np.uint8), np.arange(9), test=share)


@pytest.mark.parametrize("view", ["classify", "rotation"])
def test_a_sheet_shows_as_many_as_there_are(view, flowers):
    benchmark = BENCHMARKS.build(f"folder:{flowers}", view=view, test=0.5)
    rows = rows_of_benchmark(benchmark, "test", classes=12, samples=10)
    store = open_folder(flowers).split_anew(0.5).manifest
    fewest = min(store.counts[number] for number in store.splits["test"])
    assert len(rows) == len(store.splits["test"])
    assert {len(images) for _, images in rows} == {fewest}


def test_a_sheet_shows_the_answers_too(flowers):
    build = partial(BENCHMARKS.build, f"folder:{flowers}")
    whole, halves, turned = (
        [images for _, images in rows_of_benchmark(build(view=view), "train", 3, 4)]
        for view in ("classify", "completion", "rotation")
    )
    assert whole[0].shape == (4, 1, 32, 32)
    # a line between the halves; a flower is one shade, so that the halves show whose they are
    assert halves[0].shape == (4, 1, 33, 32)
    assert all((image[:, :16] == image[:, 17:]).all() for row in halves for image in row)
    red = (turned[0] == np.array([220, 30, 30])[:, None, None]).all(1)
    assert (red.sum((1, 2)) == 4).all()


def test_a_dollar_sign_begins_no_formula(flowers, tmp_path):
    rows = rows_of_benchmark(BENCHMARKS.build(f"folder:{flowers}"), "train", 2, 2)
    save_sheet(rows, "folder:a$_$b", tmp_path / "sheet.png")
    assert (tmp_path / "sheet.png").stat().st_size > 1_000
