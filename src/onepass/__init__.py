"""onepass: learn from a stream of examples in one forward pass.

The public names, loaded when first used so that `import onepass` is instant.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "Benchmark": "onepass.benchmarks.base",
    "Classes": "onepass.targets",
    "Config": "onepass.config",
    "ContinualClassifier": "onepass.estimators.classifier",
    "ContinualRegressor": "onepass.estimators.regressor",
    "EpisodeSpec": "onepass.episodes",
    "Episodes": "onepass.episodes",
    "Examples": "onepass.episodes",
    "Learner": "onepass.learner",
    "Mixer": "onepass.mixers.base",
    "Store": "onepass.data.store",
    "Vector": "onepass.targets",
    "draw": "onepass.benchmarks.base",
    "evaluate": "onepass.evaluation",
    "load": "onepass.estimators.load",
    "load_run": "onepass.run",
    "make_config": "onepass.recipes",
    "probe": "onepass.learner",
    "train": "onepass.training",
}
__all__ = [
    "Benchmark",
    "Classes",
    "Config",
    "ContinualClassifier",
    "ContinualRegressor",
    "EpisodeSpec",
    "Episodes",
    "Examples",
    "Learner",
    "Mixer",
    "Store",
    "Vector",
    "__version__",
    "draw",
    "evaluate",
    "load",
    "load_run",
    "make_config",
    "probe",
    "train",
]

if TYPE_CHECKING:
    from onepass.benchmarks.base import Benchmark, draw
    from onepass.config import Config
    from onepass.data.store import Store
    from onepass.episodes import Episodes, EpisodeSpec, Examples
    from onepass.estimators.classifier import ContinualClassifier
    from onepass.estimators.load import load
    from onepass.estimators.regressor import ContinualRegressor
    from onepass.evaluation import evaluate
    from onepass.learner import Learner, probe
    from onepass.mixers.base import Mixer
    from onepass.recipes import make_config
    from onepass.run import load_run
    from onepass.targets import Classes, Vector
    from onepass.training import train


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"onepass has no {name!r}; it has: {', '.join(__all__)}")
    return getattr(importlib.import_module(_HOMES[name]), name)
