"""How much of the past is lost: every task's error after every later task, from one pass."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from onepass.episodes import EpisodeSpec
from onepass.evaluation import measure, stderr_of
from onepass.files import write_json
from onepass.plots import forgetting_curves, heat_map, save_figure
from onepass.progress import progress
from onepass.run import load_run
from onepass.targets import Classes

FIVES_FROM = 15  # tasks from which on the curves average five


@dataclass(frozen=True)
class Forgetting:
    """Errors of classes are fractions; row n is after n + 1 tasks, column k is task k."""

    tasks: int
    shots: int
    episodes: int
    error: list[list[float]]
    stderr: list[list[float]]
    # error of a task when n more tasks were learned, minus its error right after it was learned
    curve: list[float]
    curve_stderr: list[float]
    # the same for each task, or each five consecutive ones, against the number of tasks seen
    groups: list[dict[str, Any]]
    # mean error right after learning minus mean error at the end: below 0 is forgetting
    backward_transfer: float
    backward_transfer_stderr: float


def analyse(errors: Float[Tensor, "E S K"], shots: int) -> Forgetting:
    """From the error of every episode, at every stop, of every task."""
    errors = errors.double()
    episodes, tasks, _ = errors.shape
    own = errors.diagonal(dim1=1, dim2=2)
    lost = errors - own[:, None]
    # differences within an episode, so that what episodes differ in anyway drops out
    curve = [lost.diagonal(-lag, 1, 2).mean(-1) for lag in range(tasks)]
    size = 5 if tasks >= FIVES_FROM else 1
    transfer = -lost[:, -1, :-1].mean(-1) if tasks > 1 else torch.zeros(episodes)
    return Forgetting(
        tasks=tasks,
        shots=shots,
        episodes=episodes,
        error=errors.mean(0).tolist(),
        stderr=stderr_of(errors).tolist(),
        curve=[values.mean().item() for values in curve],
        curve_stderr=[stderr_of(values).item() for values in curve],
        groups=[_group(lost, first, min(first + size, tasks)) for first in range(0, tasks, size)],
        backward_transfer=transfer.mean().item(),
        backward_transfer_stderr=stderr_of(transfer).item(),
    )


def _group(lost: Float[Tensor, "E S K"], first: int, last: int) -> dict[str, Any]:
    """What a few consecutive tasks lost, from when the last of them was learned."""
    rows = lost[:, last - 1 :, first:last].mean(-1)
    return {
        "first": first + 1,
        "last": last,
        "seen": list(range(last, lost.shape[1] + 1)),
        "lost": rows.mean(0).tolist(),
        "stderr": stderr_of(rows).tolist(),
    }


def together(runs: Sequence[Forgetting]) -> Forgetting:
    """Of runs that differ in their seed alone: means over seeds, and how far those would move."""
    first = runs[0]
    if len(runs) == 1:
        return first

    def over(values: Sequence[Any]) -> tuple[Any, Any]:
        table = torch.tensor(values, dtype=torch.float64)
        return table.mean(0).tolist(), stderr_of(table).tolist()

    error, stderr = over([run.error for run in runs])
    curve, curve_stderr = over([run.curve for run in runs])
    transfer, transfer_stderr = over([run.backward_transfer for run in runs])
    groups = []
    for same in zip(*(run.groups for run in runs), strict=True):
        lost, spread = over([group["lost"] for group in same])
        groups.append(same[0] | {"lost": lost, "stderr": spread})
    episodes = sum(run.episodes for run in runs)
    return Forgetting(
        *(first.tasks, first.shots, episodes, error, stderr, curve, curve_stderr, groups),
        *(transfer, transfer_stderr),
    )


def forgetting_of_run(
    path: Path, shape: dict[str, int], episodes: int, seed: int, device: torch.device
) -> tuple[Forgetting, bool]:
    """Analyse a finished run; `forgetting.json` and `forgetting.png` go into its folder."""
    config, benchmark, learner = load_run(path, str(device))
    # a task must be over to be lost
    spec: EpisodeSpec = replace(config.spec, order="blocked", **shape)
    stops = list(range(spec.shots, spec.length + 1, spec.shots))
    with progress("streaming episodes", episodes) as show:
        outcomes = measure(
            learner,
            benchmark,
            spec,
            "test",
            episodes,
            min(32, episodes),
            seed,
            stops,
            lambda done, total: show(done, ""),
        )
    found = analyse(outcomes[..., 0], spec.shots)
    is_class = isinstance(learner.target, Classes)
    write_json(path / "forgetting.json", asdict(found))
    what = f"{config.learner.name} on {config.benchmark.name}"
    save_figure(_picture(found, what, is_class), path / "forgetting.png")
    return found, is_class


def _picture(found: Forgetting, what: str, is_class: bool) -> Figure:
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    scale, unit = (100.0, " in %") if is_class else (1.0, "")
    heat_map(left, [[scale * value for value in row] for row in found.error], f"error{unit}")
    forgetting_curves(right, found.groups, scale, f"error{unit} gained since learning it")
    lost = -scale * found.backward_transfer
    figure.suptitle(
        f"{what}: after {found.tasks} tasks, a task has lost {lost:.2f}{'%' if is_class else ''}"
    )
    return figure
