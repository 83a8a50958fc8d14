"""How fast meta-training is: real steps of real learners, each in a process of its own.

A row is one learner at one number of tasks, under the recipe `paper`. The steps are those of
`onepass train` (recorded and compiled on a CUDA card), of the phase that lasts: guidance and
mid-stream queries of the first steps are over.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from onepass.benchmarks.bank import ByClass, Stored
from onepass.benchmarks.images import Images
from onepass.config import Config, from_json, override, to_json
from onepass.data import omniglot, open_store
from onepass.data.store import store_path
from onepass.devices import pick_device
from onepass.fast import Tell
from onepass.files import check_target, write_json
from onepass.recipes import make_config
from onepass.registry import LEARNERS
from onepass.run import commit, now
from onepass.speed import REPEATS, check_room, measure
from onepass.tables import digits
from onepass.timing import card_name, ceilings

# episodes/s of the published code on one H200 with a fixed batch on the card; drawing its episodes,
# which every figure here includes, it comes to 335 and 101 for the transformer
PUBLISHED = {
    ("transformer", 20): 480.0,
    ("transformer", 100): 124.0,
    ("linear_transformer", 20): 385.0,
    ("linear_transformer", 100): 71.0,
    ("performer", 20): 394.0,
    ("oml", 20): 60.5,
    ("oml", 100): 11.8,
    ("anml", 20): 7.9,
    ("pn", 20): 1_003.0,
    ("gemcl", 20): 938.0,
}
STAND_IN = "onepass.bench:stand_in"
SMALL = ["tasks=5", "batch=2"]  # for a CPU


@dataclass(frozen=True)
class Row:
    """One learner at one number of tasks; a row that failed has nothing but its reason."""

    learner: str
    tasks: int
    episodes_per_s: float | None = None
    ms_per_step: float | None = None  # the median of the repeats
    peak_gb: float | None = None  # in use on the card; on a CPU, held by the whole process
    published_episodes_per_s: float | None = None
    ratio: float | None = None
    card: str = ""
    failed: str | None = None
    notes: tuple[str, ...] = ()
    reserved_gb: float | None = None  # with the gaps between what is in use
    device: str = ""
    data: str = ""
    batch: int | None = None
    shots: int | None = None
    queries: int | None = None
    precision: str = ""
    settings: tuple[str, ...] = ()
    parameters: int | None = None
    ms_per_step_least: float | None = None
    ms_per_step_most: float | None = None
    repeats: int = REPEATS
    steps: int | None = None  # in a repeat
    first_step: int | None = None
    warm_up_s: float | None = None  # building, compiling and recording; not in any other figure
    # of one plain step: products, convolutions and attention; kernels of our own are not seen
    flops_per_step: int | None = None
    flops_per_s: float | None = None
    flops_ceiling: float | None = None
    # weights, slopes, moments and what is kept for the way back, each written and read once
    least_bytes_per_step: int | None = None
    least_bytes_per_s: float | None = None
    bytes_ceiling: float | None = None
    profile: tuple[dict[str, Any], ...] = ()
    torch: str = torch.__version__
    threads: int | None = None
    commit: str | None = None
    date: str = ""


def bench(
    learners: Sequence[str],
    tasks: Sequence[int],
    settings: Sequence[str],
    device: str,
    steps: int | None,
    profile: bool,
    out: Path | None,
    tell: Tell,
) -> list[Row]:
    """All rows, one process after the other; the file has those that are done at any moment."""
    if out:
        check_target(out)
    where = pick_device(device)
    data = "omniglot" if omniglot_is_there() else STAND_IN
    planned = plan(learners, tasks, settings, where.type == "cuda", data)
    for _, config, _ in planned:
        check_room(config, steps)
    if data == "omniglot":
        open_store("omniglot")
    top = in_own_process({"device": str(where)})
    if "failed" in top:
        raise ValueError(f"{where} cannot be measured: {top['failed']}")
    common = {"device": where.type, "settings": tuple(settings), "data": data, "date": now()}
    common |= {"commit": commit(), "threads": torch.get_num_threads()} | top
    rows = []
    for name, config, published in planned:
        job = {"config": to_json(config), "device": str(where), "steps": steps, "profile": profile}
        found = in_own_process(job)
        speed = found.get("episodes_per_s")
        shape = {key: getattr(config, key) for key in ("batch", "shots", "queries")}
        shape["precision"] = config.precision_on(where.type)
        shape["published_episodes_per_s"] = published
        shape["ratio"] = speed / published if speed and published else None
        rows.append(Row(name, config.tasks, **(common | shape | found)))
        tell(f"{name}, {config.tasks} tasks: {_in_short(rows[-1])}")
        if out:
            write_json(out, [asdict(row) for row in rows])
    return rows


def _in_short(row: Row) -> str:
    return f"failed, {row.failed}" if row.failed else f"{digits(row.episodes_per_s)} episodes/s"


def plan(
    learners: Sequence[str],
    tasks: Sequence[int],
    settings: Sequence[str],
    on_card: bool,
    data: str,
) -> list[tuple[str, Config, float | None]]:
    """Each row's learner and config, and the published figure where the work is the same."""
    if asked := [text for text in settings if text.partition("=")[0] == "tasks"]:
        raise ValueError(f"{asked[0]}: how many tasks a row has is said by --tasks")
    rows = []
    for name in learners or dict.fromkeys(name for name, _ in PUBLISHED):
        # an unknown name is told at once, not after the others were measured
        assert LEARNERS[name]
        usual = [count for learner, count in PUBLISHED if learner == name] or [20]
        for count in tasks or (usual if on_card else [None]):
            sizes = [] if on_card else SMALL
            sizes = [*sizes, f"tasks={count}"] if count else sizes
            standard = override(make_config("paper", data, name), sizes)
            config = override(standard, settings)
            same = on_card and replace(config, precision=standard.precision) == standard
            rows.append((name, config, PUBLISHED.get((name, config.tasks)) if same else None))
    return rows


def omniglot_is_there() -> bool:
    return store_path("omniglot").is_dir() or not omniglot.missing()


def stand_in() -> Images:
    """As many images of noise as Omniglot has to meta-train and meta-test."""

    def read() -> ByClass:
        background, evaluation = omniglot.PARTS.values()
        total, drawings = background + evaluation, omniglot.DRAWINGS
        shape = total * drawings, 1, omniglot.SIZE, omniglot.SIZE
        images = np.random.default_rng(0).integers(256, size=shape, dtype=np.uint8)
        splits = {"train": range(background), "test": range(background, total)}
        return ByClass(images, [drawings] * total, splits)

    return Images(Stored("noise", (1, omniglot.SIZE, omniglot.SIZE), ("train", "test"), read))


def in_own_process(job: dict[str, Any]) -> dict[str, Any]:
    """So that memory and failures stay apart; what came of it, or why it failed in one line."""
    command = [sys.executable, "-m", "onepass", "bench", "--job", json.dumps(job)]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    if ended.returncode < 0:
        return {"failed": f"ended by {signal.Signals(-ended.returncode).name}"}
    lines = ended.stderr.strip().splitlines() or ["it said nothing"]
    said = [line for line in lines if line.startswith("onepass: ")] or lines
    return {"failed": said[-1].removeprefix("onepass: ")}


def do_job(text: str) -> dict[str, Any]:
    """What a process of its own is there for: a row, or the ceilings of the machine."""
    job = json.loads(text)
    device = pick_device(job["device"])
    if "config" not in job:
        top = ceilings(device)
        return {
            "card": card_name(device),
            "flops_ceiling": top.flops_per_s,
            "bytes_ceiling": top.bytes_per_s,
        }
    return measure(from_json(job["config"]), device, job["steps"], job["profile"])
