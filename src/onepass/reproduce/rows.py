"""The rows of the paper's tables and figures: what was run, and what it came to there."""

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

from onepass.commands import settings_of
from onepass.config import Component, Config, from_json, resolved, to_json
from onepass.recipes import make_config
from onepass.registry import BENCHMARKS, LEARNERS
from onepass.reproduce import paper
from onepass.reproduce.paper import Cost, Published
from onepass.statistics import Result

# views of CASIA that have a column of their own
VIEWS = ("rotation", "completion")
VECTORS = ("sine", *VIEWS)  # what is asked for is no class
SIZES = ("transformer_s", "transformer_m", "transformer", "transformer_xl")
# where OML's inner rate starts, if not at its default
INNER_RATES = {("msceleb", 100): 0.003, ("rotation", 100): 0.0001}
STAGE = 10_000  # steps, a fifth of all


@dataclass(frozen=True)
class Row:
    """One line of a table: a config, whatever its seed, and the published numbers for it."""

    column: str  # the benchmark as the paper calls it
    name: str
    config: Config
    test: Published | None = None
    train: Published | None = None
    cost: Cost | None = None

    @property
    def is_class(self) -> bool:
        return self.column not in VECTORS

    @property
    def benchmark(self) -> str:
        """The column; and what stands in for its data, wherever something does."""
        if not self.is_stand_in:
            return self.column
        return f"{self.column} ({self.config.benchmark.name} in its place)"

    @property
    def is_stand_in(self) -> bool:
        return self.config.benchmark.name != source_of(self.column)


@dataclass(frozen=True)
class Scale:
    """How big the runs are, and what takes the place of data that is not there."""

    recipe: str = "paper"
    instead: tuple[tuple[str, str], ...] = ()

    def config(self, column: str, learner: str, tasks: int, **options: Any) -> Config:
        benchmark = dict(self.instead).get(source_of(column), source_of(column))
        config = make_config(self.recipe, benchmark, learner)
        data = {"view": column} if column in VIEWS else {}
        if learner == "oml" and (column, tasks) in INNER_RATES:
            options["inner_rate"] = INNER_RATES[column, tasks]
        return replace(
            config,
            benchmark=_with(config.benchmark, data),
            learner=_with(config.learner, options),
            # other recipes have a number of their own
            tasks=tasks if self.recipe == "paper" else config.tasks,
        )


def source_of(column: str) -> str:
    return "casia" if column in VIEWS else column


def _with(component: Component, options: dict[str, Any]) -> Component:
    return replace(component, options=component.options | options)


def table1(scale: Scale) -> list[Row]:
    return [
        Row(
            column,
            learner,
            scale.config(column, learner, 20),
            test,
            paper.TABLE1_TRAIN[column].get(learner),
        )
        for column, cells in paper.TABLE1_TEST.items()
        for learner, test in cells.items()
    ]


def table2(scale: Scale) -> list[Row]:
    rows = [
        Row(column, learner, scale.config(column, learner, 100), test)
        for column, cells in paper.TABLE2.items()
        for learner, test in cells.items()
    ]
    # the task that the paper's text describes; its figures are for the easier one above
    for learner in ("transformer", "linear_transformer"):
        config = scale.config("rotation", learner, 100)
        shifted = replace(config, benchmark=_with(config.benchmark, {"label_shift": True}))
        rows.append(Row("rotation", f"{learner} (labels shifted)", shifted))
    return rows


def resnet(scale: Scale) -> list[Row]:
    rows = []
    for column, cells in paper.RESNET.items():
        for learner in ("oml", "transformer", "linear_transformer"):
            plain = cells.get(learner) or paper.TABLE1_TEST[column][learner]
            rows.append(Row(column, learner, scale.config(column, learner, 20), plain))
            config = scale.config(column, learner, 20, encoder="resnet")
            rows.append(Row(column, f"{learner} (ResNet)", config, cells[f"{learner}_resnet"]))
    return rows


def codes(scale: Scale) -> list[Row]:
    return [
        Row(
            "casia",
            f"transformer (V = {vocabulary}, C = {length})",
            # as many tokens as classes are the default, and the run is that of table 1
            scale.config("casia", "transformer", 20)
            if length == 1
            else scale.config(
                "casia", "transformer", 20, vocabulary=vocabulary, code_length=length
            ),
            test,
        )
        for (vocabulary, length), test in paper.CODES.items()
    ]


def scaling(scale: Scale) -> list[Row]:
    def published(column: str, learner: str) -> Published | None:
        if column == "casia":
            return paper.COST[100][learner].error
        return paper.TABLE2[column].get(learner)

    return [
        Row(column, learner, scale.config(column, learner, 100), published(column, learner))
        for column in paper.TABLE2
        for learner in SIZES
    ]


def forgetting(scale: Scale) -> list[Row]:
    return [
        Row(
            column,
            learner,
            replace(
                scale.config(column, learner, 100),
                objective="final" if learner == "oml" else "midstream",
            ),
        )
        for column in ("casia", "sine")
        for learner in ("oml", "linear_transformer", "transformer")
    ]


def cost(scale: Scale) -> list[Row]:
    rows: dict[str, Row] = {}
    for tasks, cells in paper.COST.items():
        for learner, found in cells.items():
            config = scale.config("casia", learner, tasks)
            name = f"{learner} ({config.tasks} tasks)"
            # at tiny sizes all are of the same tasks
            rows.setdefault(name, Row("casia", name, config, found.error, cost=found))
    return list(rows.values())


TABLES: dict[str, Callable[[Scale], list[Row]]] = {
    "table1": table1,
    "table2": table2,
    "resnet": resnet,
    "codes": codes,
    "scaling": scaling,
    "forgetting": forgetting,
    "cost": cost,
}
TITLES = {
    "table1": "20-task classification, error in %",
    "table2": "100 tasks: classification in %, Sine and Completion squared error, Rotation 1 - cos",
    "resnet": "A ResNet for an encoder, 20 tasks",
    "codes": "Class codes of C tokens over V, CASIA, 20 tasks, error in %",
    "scaling": "Sizes of the Transformer, 100 tasks",
    "forgetting": "Forgetting, 100 tasks",
    "cost": "Cost of meta-training, CASIA, 16 episodes a step",
}


def rows_of(table: str, scale: Scale) -> list[Row]:
    if table not in TABLES:
        raise ValueError(f"no table {table!r} to reproduce; there are: {', '.join(TABLES)}")
    return TABLES[table](scale)


# how long, how exactly and how closely watched: not what was run
INCIDENTAL = (
    "seed",
    "steps",
    "precision",
    "accumulate",
    "log_every",
    "checkpoint_every",
    "evaluate_every",
    "evaluation_episodes",
    "evaluation_batch",
)


def essence(config: Config) -> str:
    """The same for two configs that are one row of a table, at any seed and length."""
    full = to_json(resolved(config))
    # ANML's segments trade time for memory and change no number
    full["learner"]["options"].pop("segment", None)
    kept = {key: value for key, value in full.items() if key not in INCIDENTAL}
    return json.dumps(kept, sort_keys=True)


def recorded(result: Result) -> Config:
    """The config of a result, as it would be said today."""
    # the beginning of a full run, too
    return said_today(from_json(result["config"]), STAGE)


def said_today(config: Config, *stages: int) -> Config:
    """Options newer than it, and stages of its own length or of these, are as its recipe has them.

    Options that are gone are dropped.
    """
    usual = make_config(config.recipe, config.benchmark.name, config.learner.name)

    def renewed(old: Component, new: Component, takes: Collection[str]) -> Component:
        known = {
            # what was a share of the classes is yes or no
            key: bool(value) if key == "validation" else value
            for key, value in old.options.items()
            if key in takes
        }
        return Component(new.name, new.options | known)

    name = config.learner.name
    takes = config.learner.options if name == "offline" else LEARNERS.options(name)
    same = {
        key: getattr(usual, key)
        for key in ("halve_every", "guidance_steps", "objective_steps")
        if getattr(config, key) in (config.stage, *stages)
    }
    return replace(
        config,
        **same,
        benchmark=renewed(
            config.benchmark, usual.benchmark, BENCHMARKS.options(config.benchmark.name)
        ),
        learner=renewed(config.learner, usual.learner, takes),
    )


def departures(config: Config) -> list[str]:
    """What a run does that the published one did not, as it would be typed."""
    ignored = (*INCIDENTAL, "learner.segment")
    return [text for text in settings_of(config) if text.partition("=")[0] not in ignored]
