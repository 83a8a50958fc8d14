"""How long a model takes to learn one example and to answer one query, as a table for the README.

python tools/latency.py MODEL...  (names of shipped models, or folders)
"""

import copy
import sys
import time
from itertools import pairwise
from statistics import median

import numpy as np
import torch

import onepass

SEEN, CLASSES, REPEATS = (1, 100, 1_000), 50, 15


def measured(model: str) -> list[str]:
    """Milliseconds to learn and to answer, medians, after each number of examples."""
    learner, rng = onepass.load(model), np.random.default_rng(0)
    cells: list[str] = []
    for before, seen in pairwise((0, *SEEN)):
        for number in range(before, seen):
            learner.learn_one(drawing(rng), f"class {number % CLASSES}")
        # a lesson that is not kept: what is learned is one value, and a copy shares it
        known = [copy.copy(learner) for _ in range(REPEATS)]
        copy.copy(learner).learn_one(drawing(rng), "class 0")  # the first time takes longer
        learn = [timed(lambda one=one: one.learn_one(drawing(rng), "class 0")) for one in known]
        answer = [timed(lambda: learner.predict_one(drawing(rng))) for _ in range(REPEATS)]
        cells.append(f"{median(learn):.0f} / {median(answer):.0f}")
    return cells


def drawing(rng: np.random.Generator) -> np.ndarray:
    return rng.integers(256, size=(105, 105), dtype=np.uint8)


def timed(act) -> float:
    begun = time.perf_counter()
    act()
    return 1e3 * (time.perf_counter() - begun)


if __name__ == "__main__":
    print(f"Learn / answer, ms, on {torch.get_num_threads()} CPU cores, examples seen before:\n")
    print("| model |" + "".join(f" after {seen:,} |" for seen in SEEN))
    print("|---|" + "---|" * len(SEEN))
    for name in sys.argv[1:]:
        print(f"| `{name}` | " + " | ".join(measured(name)) + " |", flush=True)
