"""Teach a learner symbols of your own, one by one, and ask. `python teach.py [MODEL]`

MODEL is one that comes with onepass (`symbols`, `symbols-linear`), or the folder of a run or of a
model that `onepass export` wrote.
"""

import sys

import numpy as np
from PIL import Image, ImageDraw

import onepass

rng = np.random.default_rng(0)
SYMBOLS = {
    "cross": lambda pen, a, b: (pen.line([a, a, b, b], 0, 4), pen.line([a, b, b, a], 0, 4)),
    "ring": lambda pen, a, b: pen.ellipse([a, a, b, b], outline=0, width=4),
    "hat": lambda pen, a, b: pen.line([a, b, (a + b) / 2, a, b, b], 0, 4),
}


def drawing(name: str) -> Image.Image:
    """A symbol somewhere on a white page, dark ink, never twice the same."""
    page = Image.new("L", (64, 64), "white")
    SYMBOLS[name](ImageDraw.Draw(page), *(rng.uniform(8, 20), rng.uniform(44, 56)))
    return page


learner = onepass.load(sys.argv[1] if len(sys.argv) > 1 else "symbols")
for name in SYMBOLS:
    for _ in range(3):
        learner.learn_one(drawing(name), name)  # no gradient step: one forward pass
right = [learner.predict_one(drawing(name)) == name for name in SYMBOLS for _ in range(20)]
print(f"{learner.n_samples_seen_} drawings shown, {100 * np.mean(right):.0f} % of new ones known")
