"""A contact sheet: a row for each class, so that a person sees that names and images agree."""

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from torch import Tensor

from onepass.benchmarks.base import Benchmark
from onepass.benchmarks.images import Images, Source
from onepass.data.store import Store
from onepass.episodes import EpisodeSpec, Split
from onepass.plots import INK, letter, save_figure

Row = tuple[str, np.ndarray]  # a name, and uint8 images [S C H W]
# where a name needs more letters than the default font has
WIDE_FONTS = (
    "Noto Sans CJK",
    "Source Han Sans",
    "WenQuanYi",
    "SimHei",
    "PingFang",
    "IPA",
    "Hiragino",
)
INCHES = 0.62  # of an image on the sheet


def save_sheet(rows: list[Row], title: str, path: Path) -> None:
    """All rows as one picture, with a name and a thin white gap for each."""
    samples = max(len(images) for _, images in rows)
    height, width = (edge + 2 for edge in rows[0][1].shape[2:])
    page = np.full((len(rows) * height, samples * width, 3), 255, np.uint8)
    for k, (_, images) in enumerate(rows):
        for n, image in enumerate(images):
            top, left = k * height + 1, n * width + 1
            page[top : top + height - 2, left : left + width - 2] = image.transpose(1, 2, 0)
    figure = Figure(
        figsize=(2.8 + INCHES * samples, 0.6 + INCHES * len(rows)), layout="constrained"
    )
    axis = figure.subplots()
    axis.imshow(page, interpolation="nearest")
    axis.set(xticks=[], yticks=[(k + 0.5) * height for k in range(len(rows))])
    names = [_written(name) for name, _ in rows]
    labels = axis.set_yticklabels([name for name, _ in names], color=INK, fontsize=8)
    for label, (_, font) in zip(labels, names, strict=True):
        label.set_fontfamily(font)
    axis.tick_params(length=0)
    axis.spines[:].set_visible(False)
    figure.suptitle(_plain(title), color=INK, fontsize=10)
    save_figure(figure, path)


def rows_of_store(store: Store, classes: int, samples: int) -> list[Row]:
    """Classes and images spread evenly over all there are."""
    manifest = store.manifest
    split = {number: name for name, ids in manifest.splits.items() for number in ids}
    rows = []
    for number in _spread(len(manifest.classes), classes):
        images = store.of_class(number)
        chosen = np.array(images[_spread(len(images), samples)])
        rows.append((f"{_shortened(manifest.classes[number])}  ({split[number]})", chosen))
    return rows


def rows_of_benchmark(benchmark: Benchmark, split: Split, classes: int, samples: int) -> list[Row]:
    """What a learner is shown of one split; named where it is the images as they are."""
    if len(benchmark.x_shape) != 3:
        raise ValueError("this benchmark has no images to show")
    if split not in benchmark.splits:
        choices = ", ".join(benchmark.splits)
        raise ValueError(f"this benchmark has no split {split!r}; there are: {choices}")
    if isinstance(benchmark, Images):
        # as many as there are
        classes = min(classes, benchmark.source.classes(split))
        samples = min(samples, benchmark.source.fewest(split))
        if benchmark.as_they_are(split):
            return _rows_of_source(benchmark.source, split, classes, samples)
    spec, rng = EpisodeSpec(classes, max(1, samples - 1), 1), torch.Generator().manual_seed(0)
    train, test, *_ = benchmark.sample(split, spec, 1, rng)
    x, y = (
        torch.cat([part[0].unflatten(0, (classes, -1)) for part in parts], 1)[:, :samples]
        for parts in ((train.x, test.x), (train.y, test.y))
    )
    images = _with_answers(_bytes(x), y)
    return [(letter(k), images[k]) for k in range(classes)]


def _bytes(x: Tensor) -> np.ndarray:
    return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy()


def _with_answers(images: np.ndarray, y: Tensor) -> np.ndarray:
    """The half that is asked for below the one shown; an angle as a red dot, from the right on."""
    if not y.is_floating_point():
        return images
    if y[0, 0].numel() == images[0, 0].size:
        gap = np.full_like(images[..., :1, :], 160)
        return np.concatenate([images, gap, _bytes(y).reshape(images.shape)], -2)
    dotted = np.broadcast_to(images, (*images.shape[:2], 3, *images.shape[3:])).copy()
    height, width = images.shape[3:]
    across, up = y.numpy().transpose(2, 0, 1)
    row = np.rint((height - 2) / 2 * (1 - up)).astype(int)
    column = np.rint((width - 2) / 2 * (1 + across)).astype(int)
    for place in np.ndindex(*images.shape[:2]):
        top, left = row[place], column[place]
        dotted[place][:, top : top + 2, left : left + 2] = [[[220]], [[30]], [[30]]]
    return dotted


def _rows_of_source(source: Source, split: Split, classes: int, samples: int) -> list[Row]:
    chosen = _spread(source.classes(split), classes)
    rng = torch.Generator().manual_seed(0)
    images = source.draw(split, torch.tensor([chosen]), samples, rng)[0].numpy()
    names = [_shortened(source.class_name(split, number)) for number in chosen]
    return list(zip(names, images, strict=True))


def _spread(among: int, count: int) -> list[int]:
    return sorted({int(place) for place in np.linspace(0, among - 1, min(count, among))})


def _written(name: str) -> tuple[str, str]:
    """The name and a font that has its letters; code points where there is none."""
    for family in ("DejaVu Sans", *_wide_fonts()):
        font = get_font(findfont(FontProperties(family=family)))
        if all(font.get_char_index(ord(sign)) for sign in name):
            return _plain(name), family
    plain = "".join(sign if ord(sign) < 128 else f"U+{ord(sign):04X}" for sign in name)
    return _plain(plain), "DejaVu Sans"


def _wide_fonts() -> list[str]:
    return sorted({font.name for font in fontManager.ttflist if font.name.startswith(WIDE_FONTS)})


def _shortened(name: str) -> str:
    return name if len(name) <= 30 else f"{name[:13]} ... {name[-12:]}"


def _plain(text: str) -> str:
    # a dollar sign would begin a formula
    return text.replace("$", r"\$")
