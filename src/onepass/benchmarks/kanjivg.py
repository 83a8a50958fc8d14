"""Characters as strokes, read once from the drawings of KanjiVG (Ulrich Apel, CC BY-SA 3.0).

A drawing is an SVG file named by its code point; each stroke is a path of cubic Bezier curves. It
becomes a list of points for the hand, evenly spaced along each stroke, long strokes with more.
"""

import io
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np
import torch

from onepass.benchmarks.hand import Strokes
from onepass.files import cache_dir, write_bytes

CREDIT = "KanjiVG, Ulrich Apel, CC BY-SA 3.0, https://kanjivg.tagaini.net"
VERSION = 1
EDGE = 109  # of the square that the files draw on
FAR = 10 * EDGE
POINTS = 96  # of a character
FEWEST = 3  # of a stroke: two segments can bend
FINEST = 0.04  # no two points of a stroke need to be nearer than this part of the page
FINE = 16  # pieces of a curve when its length is measured

# the plain drawing of a character; 05e7a-Kaisho.svg is the same one in another style
PLAIN = re.compile(r"[0-9a-f]{5}\.svg")
PATH = re.compile(r"<path\b[^>]*?\sd=\"([^\"]*)\"")
TOKEN = re.compile(r"([MmCcSs])|([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)|[\s,]+")

Stroke = list[list[complex]]  # curves, each of four control points


def read_kanji() -> tuple[list[str], Strokes]:
    """The characters in order and the strokes of each; read from the package once, then kept."""
    try:
        package = distribution("kanjivg")
    except PackageNotFoundError as error:
        raise ValueError(
            'the strokes of kanji come with a package: pip install "onepass[kanji]"'
        ) from error
    path = cache_dir() / "strokes" / f"kanjivg-{package.version}-{VERSION}.npz"
    if not path.exists():
        prepare(Path(str(package.locate_file("kanji"))), path)
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            names, points, stroke, count = (file[key] for key in KEPT)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path} is damaged: remove it, and it is made again") from error
    parts = (torch.from_numpy(part) for part in (points, stroke.astype(np.int64), count))
    return names.tolist(), Strokes.of(*parts)


KEPT = ("names", "points", "stroke", "count")


def prepare(folder: Path, path: Path) -> None:
    """Read every character that is one of ours from a folder of SVG files; keep one file."""
    files = sorted(file for file in folder.glob("*.svg") if PLAIN.fullmatch(file.name))
    files = [file for file in files if wanted(character(file))]
    if not files:
        raise ValueError(f"{folder} has no drawings of kanji, such as 04e00.svg")
    points, stroke, count = sample([read_svg(file) for file in files])
    content = io.BytesIO()
    parts = ([character(file) for file in files], points, stroke, count)
    np.savez_compressed(content, **dict(zip(KEPT, map(np.asarray, parts), strict=True)))
    write_bytes(path, content.getvalue())


def character(file: Path) -> str:
    return chr(int(file.stem, 16))


def wanted(name: str) -> bool:
    """Kanji and hiragana: shapes that no other character here has.

    Small kana differ from large ones in size alone, katakana are often kanji or hiragana too.
    """
    kind = unicodedata.name(name, "")
    return kind.startswith(("CJK UNIFIED IDEOGRAPH", "HIRAGANA LETTER")) and "SMALL" not in kind


def read_svg(file: Path) -> list[Stroke]:
    """Every stroke of a drawing, in the order of writing."""
    try:
        content = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} is not text in UTF-8") from error
    paths = PATH.findall(content)
    if not paths or len(paths) != content.count("<path"):
        raise ValueError(f"{file} has {content.count('<path')} paths, {len(paths)} of them drawn")
    try:
        strokes = [stroke for path in paths for stroke in parse_path(path)]
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    if len(strokes) * FEWEST > POINTS:
        raise ValueError(f"{file} has {len(strokes)} strokes, and there is room for {POINTS // 3}")
    return strokes


def parse_path(path: str) -> list[Stroke]:
    """The strokes of one path; a point of the plane is a complex number.

    M begins a stroke, C adds a curve by three points, S by two: its first mirrors the last of the
    curve before. Small letters are relative to where the pen is.
    """
    strokes: list[Stroke] = []
    pen = 0j
    for command, numbers in commands(path):
        kind, size = command.upper(), {"M": 2, "C": 6, "S": 4}[command.upper()]
        if not numbers or len(numbers) % size or (kind == "M" and len(numbers) > 2):
            raise ValueError(f"{command} with {len(numbers)} numbers in {path!r}; it takes {size}")
        if kind == "M":
            pen = (pen if command == "m" else 0) + complex(*numbers)
            strokes.append([])
            continue
        for i in range(0, len(numbers), size):
            origin = pen if command.islower() else 0
            given = [origin + complex(*numbers[j : j + 2]) for j in range(i, i + size, 2)]
            if kind == "S":
                given.insert(0, 2 * pen - strokes[-1][-1][2] if strokes[-1] else pen)
            strokes[-1].append([pen, *given])
            pen = given[-1]
    if not all(strokes):
        raise ValueError(f"a stroke without a curve in {path!r}")
    return strokes


def commands(path: str) -> Iterable[tuple[str, list[float]]]:
    """Each letter and the numbers behind it."""
    found: list[tuple[str, list[float]]] = []
    place = 0
    while place < len(path):
        match = TOKEN.match(path, place)
        if match is None:
            raise ValueError(f"{path[place]!r} in {path!r}; M, C, S, m, c, s and numbers are read")
        letter, number = match.groups()
        if letter:
            found.append((letter, []))
        elif number and abs(float(number)) > FAR:
            raise ValueError(f"{number} in {path!r} is far off the page of {EDGE} x {EDGE}")
        elif number and found:
            found[-1][1].append(float(number))
        elif number:
            raise ValueError(f"{path!r} does not begin with M or m")
        place = match.end()
    if not found or found[0][0] not in "Mm":
        raise ValueError(f"{path!r} does not begin with M or m")
    return found


def sample(characters: Sequence[list[Stroke]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Points [C, POINTS, 2] in the unit square, the stroke of each, and how many points count."""
    strokes = [stroke for strokes in characters for stroke in strokes]
    of_character = np.repeat(np.arange(len(characters)), [len(one) for one in characters])
    curves = np.array([len(stroke) for stroke in strokes])
    way = polyline(np.array([curve for stroke in strokes for curve in stroke]) / EDGE)
    # one long way through all strokes, each a step of 1 after the one before
    step = np.abs(np.diff(way, axis=1, prepend=way[:, :1]))
    first = np.cumsum(curves) - curves
    step[first, 0] = 1
    walked = np.cumsum(step).reshape(step.shape)
    begin, end = walked[first, 0], walked[first + curves - 1, -1]
    length = end - begin

    number = allot(length, of_character, len(characters))
    stroke = np.repeat(np.arange(len(strokes)), number)
    place = np.arange(len(stroke)) - np.repeat(np.cumsum(number) - number, number)
    at = begin[stroke] + length[stroke] * place / (number[stroke] - 1)
    drawn = [np.interp(at, walked.ravel(), part.ravel()) for part in (np.real(way), np.imag(way))]

    count = np.bincount(of_character, number, len(characters)).astype(np.int64)
    row = of_character[stroke]
    column = np.arange(len(row)) - (np.cumsum(count) - count)[row]
    points = np.zeros((len(characters), POINTS, 2), np.float32)
    points[row, column] = np.stack(drawn, -1)
    within = np.zeros((len(characters), POINTS), np.uint8)
    within[row, column] = stroke - np.searchsorted(of_character, row)
    return points, within, count


def polyline(curves: np.ndarray) -> np.ndarray:
    """[T, 4] control points to [T, FINE + 1] points of the Bezier curves."""
    t = np.linspace(0, 1, FINE + 1)
    return curves @ np.stack([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3])


def allot(length: np.ndarray, owner: np.ndarray, owners: int) -> np.ndarray:
    """How many points each stroke gets: a few, and its part by length of those that are left."""
    left = POINTS - FEWEST * np.bincount(owner, minlength=owners)
    total = np.bincount(owner, length, owners)
    share = np.floor(left[owner] * length / np.maximum(total[owner], 1e-9)).astype(int)
    needed = np.ceil(length / FINEST).astype(int) + 1
    return np.minimum(FEWEST + share, np.maximum(needed, FEWEST))
