"""Reading KanjiVG: paths as SVG means them, points even along a stroke, mistakes named by file."""

import importlib.metadata
import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onepass.benchmarks import kanjivg
from onepass.benchmarks.kanjivg import (
    EDGE,
    FINEST,
    POINTS,
    allot,
    parse_path,
    prepare,
    read_kanji,
    read_svg,
    sample,
    wanted,
)

# what a circle of radius 1 is to cubic Bezier curves, within 3 in 10,000
ROUND = 4 / 3 * (math.sqrt(2) - 1)


def svg(*paths: str) -> str:
    drawn = "".join(f'<g><path id="kvg:s" kvg:type="x" d="{path}"/></g>' for path in paths)
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 109 109">{drawn}</svg>'


@pytest.fixture
def drawing(tmp_path):
    def write(content: str | bytes, name: str = "04e00.svg"):
        file = tmp_path / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    return write


def test_capital_letters_are_places_on_the_page():
    assert parse_path("M1,2C3,4,5,6,7,8") == [[[1 + 2j, 3 + 4j, 5 + 6j, 7 + 8j]]]


def test_small_letters_are_relative_to_the_pen():
    assert parse_path("m1 2 c3 4 5 6 7 8") == [[[1 + 2j, 4 + 6j, 6 + 8j, 8 + 10j]]]


def test_letters_may_be_left_out_when_they_repeat():
    first, second = parse_path("M0,0c1,0,2,0,3,0,1,1,2,2,3,3")[0]
    assert first == [0, 1, 2, 3]
    assert second == [3, 4 + 1j, 5 + 2j, 6 + 3j]


def test_s_goes_on_smoothly():
    _, second, third = parse_path("M0,0C1,1,2,3,4,4S8,8,9,9s1,0,2,0")[0]
    assert second == [4 + 4j, 6 + 5j, 8 + 8j, 9 + 9j]
    assert third == [9 + 9j, 10 + 10j, 10 + 9j, 11 + 9j]


def test_s_without_a_curve_before_it_starts_at_the_pen():
    assert parse_path("M1,1S2,2,3,3") == [[[1 + 1j, 1 + 1j, 2 + 2j, 3 + 3j]]]


def test_each_m_begins_a_stroke():
    strokes = parse_path("M0,0c1,0,2,0,3,0m1,1c0,1,0,2,0,3M9,9C8,8,7,7,6,6")
    assert [stroke[0][0] for stroke in strokes] == [0, 4 + 1j, 9 + 9j]


def test_numbers_need_no_separators():
    assert parse_path("M1.5-2c.3.4-.5,1e1+2-3") == [[[1.5 - 2j, 1.8 - 1.6j, 1 + 8j, 3.5 - 5j]]]


number = st.floats(-200, 200, allow_nan=False).map(lambda x: round(x, 2))


@settings(max_examples=100, deadline=None)
@given(
    numbers=st.lists(number, min_size=8, max_size=8), separator=st.sampled_from([",", " ", " , "])
)
def test_any_numbers_come_back(numbers, separator):
    path = f"M{separator.join(map(str, numbers[:2]))}C{separator.join(map(str, numbers[2:]))}"
    ((curve,),) = parse_path(path)
    assert [part for point in curve for part in (point.real, point.imag)] == numbers


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("M1,2L3,4", "'L' in 'M1,2L3,4'; M, C, S, m, c, s and numbers are read"),
        ("M1,2C3,4,5,6,7", "C with 5 numbers in .*; it takes 6"),
        ("M1,2C", "C with 0 numbers"),
        ("M1,2,3,4C1,2,3,4,5,6", "M with 4 numbers"),
        ("M1C1,2,3,4,5,6", "M with 1 numbers"),
        ("M1,2", "a stroke without a curve"),
        ("C1,2,3,4,5,6", "does not begin with M or m"),
        ("1,2M1,2C1,2,3,4,5,6", "does not begin with M or m"),
        ("", "does not begin with M or m"),
        ("M1,2C3,4,5,nan,7,8", "'n' in"),
        ("M1,1e999C1,2,3,4,5,6", "1e999 in .* is far off the page"),
    ],
)
def test_a_path_that_is_none_is_named_with_its_file(path, said, drawing):
    file = drawing(svg("M0,0c1,0,2,0,3,0", path))
    with pytest.raises(ValueError, match=said) as caught:
        read_svg(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\xff\xfe", "is not text in UTF-8"),
        (svg(), "has 0 paths"),
        ("<svg><path id='x'/></svg>", "has 1 paths, 0 of them drawn"),
        (svg(*["M0,0c1,0,2,0,3,0"] * 33), "has 33 strokes, and there is room for 32"),
    ],
    ids=["bytes", "empty", "no d", "too many"],
)
def test_a_file_that_is_no_drawing_is_named(content, said, drawing):
    file = drawing(content)
    with pytest.raises(ValueError, match=said) as caught:
        read_svg(file)
    assert str(caught.value).startswith(str(file))


texts = st.text("MmCcSsLz0123456789.,-+e \n", max_size=40) | st.text(max_size=20)


@settings(max_examples=300, deadline=None)
@given(path=texts)
def test_any_text_is_read_or_refused(path):
    read_or_refuse(path)


@pytest.mark.slow
@settings(max_examples=5_000, deadline=None)
@given(path=texts)
def test_thousands_of_texts_are_read_or_refused(path):
    read_or_refuse(path)


def read_or_refuse(path):
    with suppress(ValueError):
        strokes = parse_path(path)
        assert all(len(curve) == 4 for stroke in strokes for curve in stroke)


def test_points_are_even_along_a_straight_stroke_whatever_the_curve_parameter_does():
    # control points at one end: the curve parameter runs far from evenly
    stroke = [[0j, 0j, 0j, complex(EDGE, 0)]]
    points, _, count = sample([[stroke]])
    x = points[0, : count[0], 0]
    np.testing.assert_allclose(np.diff(x), 1 / (count[0] - 1), atol=1e-6)
    assert (x[0], x[-1]) == (0, 1)
    assert (points[0, : count[0], 1] == 0).all()


def test_points_are_even_along_a_circle():
    quarter = [1, 1 + ROUND * 1j, ROUND + 1j, 1j]
    circle = [[(point * 1j**k * 0.4 + 0.5 + 0.5j) * EDGE for point in quarter] for k in range(4)]
    points, _, count = sample([[circle]])
    at = points[0, : count[0]] - 0.5
    np.testing.assert_allclose(np.hypot(*at.T), 0.4, atol=2e-3)
    angle = np.unwrap(np.arctan2(at[:, 1], at[:, 0]))
    np.testing.assert_allclose(np.diff(angle), 2 * np.pi / (count[0] - 1), rtol=0.02)


def test_strokes_of_many_characters_stay_apart():
    line = [[0j, 10 + 0j, 20 + 0j, 30 + 0j]]
    other = [[50j, 10 + 50j, 20 + 50j, 60 + 50j], [60 + 50j, 70 + 50j, 80 + 50j, 90 + 50j]]
    points, stroke, count = sample([[line, other], [other]])
    first = points[0, : count[0]], stroke[0, : count[0]]
    assert set(first[1].tolist()) == {0, 1}
    assert (first[0][first[1] == 0, 1] == 0).all()
    np.testing.assert_allclose(first[0][first[1] == 1, 1], 50 / EDGE, atol=1e-6)
    np.testing.assert_allclose(first[0][first[1] == 1][[0, -1], 0], [0, 90 / EDGE], atol=1e-6)
    assert set(stroke[1, : count[1]].tolist()) == {0}
    np.testing.assert_allclose(points[1, : count[1], 1], 50 / EDGE, atol=1e-6)


def test_long_strokes_get_more_points_and_all_fit():
    length = np.array([0.9, 0.1, *[0.5] * 32, 0.0])
    owner = np.array([0, 0, *[1] * 32, 2])
    number = allot(length, owner, 3)
    assert number[0] == math.ceil(0.9 / FINEST) + 1
    assert number[:2].sum() <= POINTS
    assert number[2:34].tolist() == [3] * 32
    assert number[34] == 3


def test_the_package_is_asked_for_in_one_line(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(kanjivg, "distribution", missing)
    with pytest.raises(ValueError, match=r'pip install "onepass\[kanji\]"'):
        read_kanji()


def test_kanji_and_hiragana_are_read():
    # the last one is 冷 again, under the number that it has for other standards
    assert [name for name in "一龠あぁカA、\uf92e" if wanted(name)] == ["一", "龠", "あ"]


def test_only_the_plain_drawing_of_a_character_is_read(drawing, tmp_path):
    line = "M10,50c20,0,40,0,80,0"
    drawing(svg(line), "04e00.svg")
    drawing(svg(line, line), "04e00-Kaisho.svg")
    drawing(svg(line, line), "00041.svg")
    prepare(tmp_path, tmp_path / "kept" / "strokes.npz")
    with np.load(tmp_path / "kept" / "strokes.npz", allow_pickle=False) as file:
        assert file["names"].tolist() == ["一"]
        assert file["points"].shape == (1, POINTS, 2)
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["strokes.npz"]


def test_a_folder_without_drawings_is_named(tmp_path):
    with pytest.raises(ValueError, match="has no drawings of kanji"):
        prepare(tmp_path, tmp_path / "strokes.npz")


class Package:
    version = "1"

    def __init__(self, folder):
        self.folder = folder

    def locate_file(self, name):
        return self.folder


@pytest.fixture
def package(drawing, tmp_path, monkeypatch):
    """A package of two characters, and a cache of its own."""
    drawing(svg("M10,50c20,0,40,0,80,0"), "04e00.svg")
    drawing(svg("M10,30c20,0,40,0,80,0", "M5,80c30,0,60,0,95,0"), "04e8c.svg")
    monkeypatch.setenv("ONEPASS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kanjivg, "distribution", lambda name: Package(tmp_path))
    return tmp_path / "cache" / "strokes" / "kanjivg-1-1.npz"


def test_the_second_reading_is_of_the_kept_file(package, monkeypatch):
    names, strokes = read_kanji()
    assert names == ["一", "二"]
    assert [int(row[:n].max()) for row, n in zip(strokes.stroke, strokes.count, strict=True)] == [
        0,
        1,
    ]
    monkeypatch.setattr(kanjivg, "prepare", None)
    again, kept = read_kanji()
    assert again == names
    for first, second in zip(strokes, kept, strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("damage", [b"", b"PK nonsense", None], ids=["empty", "noise", "cut"])
def test_a_damaged_file_is_named(package, damage):
    read_kanji()
    package.write_bytes(package.read_bytes()[:-30] if damage is None else damage)
    with pytest.raises(ValueError, match="is damaged: remove it"):
        read_kanji()
