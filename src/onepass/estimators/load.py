"""A learner that is ready to be taught, by name or folder."""

from pathlib import Path
from typing import Any

from onepass.estimators.classifier import ContinualClassifier
from onepass.estimators.model import open_model
from onepass.estimators.regressor import ContinualRegressor
from onepass.models import folder_of, is_model, shipped
from onepass.run import Run
from onepass.targets import Classes


def load(name: str | Path, **options: Any) -> ContinualClassifier | ContinualRegressor:
    """Taught nothing yet. Options are those of the estimator, such as `max_examples=1000`.

    `name` is one of the models that come with onepass, or the folder of a model or of a run.
    """
    learner, x_shape, _ = open_model(_folder(name), None)
    estimator = ContinualClassifier if isinstance(learner.target, Classes) else ContinualRegressor
    return estimator(learner, x_shape=x_shape, **options)


def _folder(name: str | Path) -> Path:
    path = folder_of(name)
    if is_model(path) or Run(path).has("config.json"):
        return path
    choices = ", ".join(shipped()) or "none that come with onepass"
    raise ValueError(f"no model {str(name)!r}; there are: {choices}, or the folder of one or a run")
