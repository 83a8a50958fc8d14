"""Plots as SVG that takes the page's colours, and pictures as PNG; all inline."""

import base64
import io
import itertools
import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import matplotlib
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from onepass.plots import INK

# Okabe and Ito's colours, told apart by colour-blind people; marks and dashes say it again
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
MARKS, DASHES = "osD^vP", ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
PAGE_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    # a dollar sign in a name begins no formula
    "text.parse_math": False,
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


class Plot(NamedTuple):
    """A figure of the page: a title that says what to see, and words for who cannot see it."""

    title: str
    svg: str
    alt: str


def plot(
    title: str, alt: str, draw: Callable[[Axes], None], width: float = 4.7, height: float = 3.2
) -> Plot:
    """Whatever `draw` puts on the axes; a legend goes below them."""
    with matplotlib.rc_context(PAGE_STYLE):
        # two figures of a page share no ids
        matplotlib.rcParams["svg.hashsalt"] = title + alt
        figure = Figure(figsize=(width, height), layout="constrained")
        axis = figure.subplots()
        draw(axis)
        handles, names = axis.get_legend_handles_labels()
        if handles:
            longest = max(len(name) for name in names)
            columns = 3 if longest < 14 else 2 if longest < 26 else 1
            # it takes no room from the axes
            figure.set_figheight(height + 0.2 * math.ceil(len(names) / columns))
            figure.legend(handles, names, loc="outside lower center", ncols=columns, fontsize=9)
        content = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(content, format="svg", transparent=True, dpi=200, metadata=nothing)
    return Plot(title, _inline(content.getvalue()), alt)


def _inline(svg: str) -> str:
    """A part of the page: it scales with it, has its ink and letters, and no ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    svg = re.sub(r"^<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", r"<svg \1>", svg, flags=re.S)
    # parts are numbered anew in every figure; only what is referred to keeps its id
    used = set(re.findall(r"[\"(]#([^\")]+)[\")]", svg))
    svg = re.sub(r"(<\w+[^>]*?) id=\"([^\"]*)\"", lambda m: m[0] if m[2] in used else m[1], svg)
    svg = re.sub(r"style=\"font: ([\d.]+px) [^;\"]*", r'style="font-size: \1', svg)
    return svg.replace(INK, "currentColor")


class Look(NamedTuple):
    """How one run is drawn, the same in every figure."""

    colour: str
    mark: str
    dash: str | tuple


def look(number: int) -> Look:
    cycle = zip(
        itertools.cycle(COLOURS), itertools.cycle(MARKS), itertools.cycle(DASHES), strict=False
    )
    return Look(*next(itertools.islice(cycle, number, None)))


def png(image: Float[Tensor, "c h w"], seam: int | None = None) -> str:
    """A picture of values in [-1, 1] as a data URI; `seam` is a row to draw a line above."""
    values = ((image.detach().cpu().float() + 1) * 127.5).round().clamp(0, 255).byte()
    grey = values.shape[0] != 3
    pixels = values[0].numpy() if grey else values.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels).convert("RGB" if seam or not grey else "L")
    if seam:
        whole = Image.new("RGB", (picture.width, picture.height + 1), COLOURS[1])
        whole.paste(picture.crop((0, 0, picture.width, seam)), (0, 0))
        whole.paste(picture.crop((0, seam, picture.width, picture.height)), (0, seam + 1))
        picture = whole
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
