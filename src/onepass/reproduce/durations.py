"""How long a run will take, from what was measured."""

from collections.abc import Sequence

from onepass.config import Config
from onepass.reproduce.rows import essence
from onepass.run import Run
from onepass.sweep import Job

# milliseconds a step: recipe paper, 20 tasks, bf16, recorded on one H200; docs/log.md has the runs
CARD = {
    "pn": 2.9,
    "gemcl": 3.1,
    "transformer": 6.3,
    "linear_transformer": 15.4,
    "performer": 22.8,
    "oml": 39.9,
    "anml": 138.0,
}


def expected_seconds(config: Config, jobs: Sequence[Job]) -> tuple[float | None, str]:
    """From a finished run of the same kind, else from the table; and what that was measured on."""
    wanted = essence(config)
    for job in jobs:
        if job.is_finished and essence(job.config) == wanted:
            result = Run(job.path).read("result.json")
            if result["steps"]:
                return config.steps * result["seconds"] / result["steps"], f" ({result['device']})"
    step = CARD.get(config.learner.name)
    if config.recipe != "paper" or step is None:
        return None, ""
    # everything but the softmax of attention grows with the examples
    longer = config.tasks * (config.shots + config.queries) / 200
    return config.steps * step * longer / 1_000, " (one H200, bf16)"


def in_words(seconds: float | None) -> str:
    if seconds is None:
        return "not measured"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"
