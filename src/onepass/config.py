"""What a run is, in full: frozen, validated, the same after a trip through JSON."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import asdict, field, fields, replace
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from onepass.benchmarks.base import Benchmark
from onepass.episodes import EpisodeSpec, Order
from onepass.learner import Learner
from onepass.objectives import Objective
from onepass.registry import (
    BENCHMARKS,
    LEARNERS,
    Natural,
    NonNegative,
    Positive,
    PositiveReal,
    Registry,
)

STRICT = ConfigDict(extra="forbid")


@dataclass(frozen=True, config=STRICT)
class Component:
    """A benchmark or learner by name (or `MODULE:CLASS`), and what to build it with."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, config=STRICT)
class Config:
    benchmark: Component
    learner: Component
    recipe: str = "paper"
    seed: Annotated[int, Field(ge=0, lt=2**63, strict=True)] = 0
    # episodes
    tasks: Positive = 20
    shots: Positive = 5
    queries: Positive = 5
    order: Order = "blocked"
    # meta-training
    steps: Positive = 50_000
    batch: Positive = 16
    accumulate: Positive = 1  # a step in this many parts, for a card it does not fit
    rate: PositiveReal = 1e-4
    halve_every: Positive | None = None  # steps after which the rate is halved; None: as below
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on a CUDA card alone
    # what is asked while meta-training
    objective: Objective = "final"
    # then `final`; guided: the stage in which attention is, by default; None: all steps
    objective_steps: Natural | Literal["guided"] | None = None
    guidance: NonNegative = 1.0  # weight of the attention loss
    guidance_steps: Natural | None = None  # None: a fifth of all steps, at most 10,000
    # how often
    log_every: Positive = 50
    checkpoint_every: Positive | None = None  # steps; None: every minute
    evaluate_every: Natural = 0  # 0: only at the end
    evaluation_episodes: Positive = 1_024
    evaluation_batch: Positive = 32

    @property
    def spec(self) -> EpisodeSpec:
        return EpisodeSpec(self.tasks, self.shots, self.queries, self.order)

    def guided(self, step: int) -> bool:
        """Whether attention is guided in this step (counted from 0)."""
        steps = self.stage if self.guidance_steps is None else self.guidance_steps
        return self.guidance > 0 and step < steps

    def objective_at(self, step: int) -> Objective:
        steps = self.stage if self.objective_steps == "guided" else self.objective_steps
        steps = self.steps if steps is None else steps
        return self.objective if step < steps else "final"

    def precision_on(self, kind: str) -> Literal["float32", "bf16"]:
        """What products are computed in on this kind of device; weights are float32 everywhere."""
        if self.precision != "auto":
            return self.precision
        return "bf16" if kind == "cuda" else "float32"

    def rate_at(self, step: int) -> float:
        return self.rate * 0.5 ** (step // (self.halve_every or self.stage))

    @property
    def stage(self) -> int:
        """A short run goes through the stages of a long one: guided attention diverges when it is
        let go at the full rate."""
        return min(-(-self.steps // 5), 10_000)


def build(config: Config) -> tuple[Benchmark, Learner]:
    """The benchmark and a freshly initialised learner; the seed decides its weights."""
    benchmark = BENCHMARKS.build(config.benchmark.name, **config.benchmark.options)
    torch.manual_seed(config.seed)
    return benchmark, build_learner(config.learner, benchmark, config.spec)


def build_learner(component: Component, benchmark: Benchmark, spec: EpisodeSpec) -> Learner:
    """A learner for what this benchmark shows and asks; one that cannot answer that is refused."""
    target = benchmark.target(spec)
    wanted = LEARNERS.given_types(component.name)[1]
    if inspect.isclass(wanted) and not isinstance(target, wanted):
        raise ValueError(
            f"{component.name} learns {wanted.__name__}, and this benchmark asks for {target}"
        )
    return LEARNERS.build(component.name, benchmark.x_shape, target, **component.options)


def resolved(config: Config) -> Config:
    """With every option said, so that a later version with other defaults builds the same."""

    def filled(component: Component, registry: Registry) -> Component:
        defaults = {
            name: parameter.default
            for name, parameter in registry.options(component.name).items()
            if parameter.default is not inspect.Parameter.empty
        }
        return replace(component, options=json.loads(json.dumps(defaults | component.options)))

    return replace(
        config,
        benchmark=filled(config.benchmark, BENCHMARKS),
        learner=_yardstick(config.learner)
        if config.learner.name == "offline"
        else filled(config.learner, LEARNERS),
    )


def _yardstick(component: Component) -> Component:
    """It is no learner, and has options of its own."""
    from onepass.offline import Offline

    return replace(component, options=asdict(Offline()) | component.options)


def to_json(config: Config) -> dict[str, Any]:
    return asdict(config)


def from_json(content: Any) -> Config:
    try:
        config = TypeAdapter(Config).validate_python(content)
    except ValidationError as error:
        raise ValueError(first_problem(error)) from error
    return replace(config, learner=_unsaid(config.learner))


def _unsaid(learner: Component) -> Component:
    """Without what its name says already, which runs of older versions wrote beside it."""
    said = LEARNERS.said(learner.name) if learner.name in LEARNERS else {}
    # another value stays, and is refused when it is built
    options = {
        key: value
        for key, value in learner.options.items()
        if key not in said or said[key] != value
    }
    return replace(learner, options=options)


def override(config: Config, assignments: Sequence[str]) -> Config:
    """`steps=1000`, `learner.layers=2`, `benchmark.noise=0`; a bare learner option will do too."""
    names = [setting.name for setting in fields(config)]
    for assignment in assignments:
        key, text = _assignment(assignment)
        if key == "recipe":
            raise ValueError(f"{assignment} is no setting: where there is a choice, it is --recipe")
        owner, dot, option = key.partition(".")
        if dot and owner == "mixer":
            options = config.learner.options.get("mixer_options", {}) | {option: _value(text)}
            config = _with_option(config, "learner", "mixer_options", options)
            continue
        if dot and owner in ("learner", "benchmark"):
            pass
        elif key in names and key not in ("learner", "benchmark"):
            config = from_json(to_json(config) | {key: _value(text)})
            continue
        elif key in _learner_options(config):
            owner, option = "learner", key
        else:
            raise ValueError(_unknown(config, key, names))
        config = _with_option(config, owner, option, _value(text))
    return config


def _with_option(config: Config, owner: str, option: str, value: Any) -> Config:
    component: Component = getattr(config, owner)
    return replace(
        config, **{owner: replace(component, options=component.options | {option: value})}
    )


def parse_options(assignments: Sequence[str]) -> dict[str, Any]:
    """`width=32 heads=2` as options of a component."""
    options = {}
    for assignment in assignments:
        key, text = _assignment(assignment)
        options[key] = _value(text)
    return options


def differences(old: Config, new: Config) -> list[str]:
    """`key: old, now new` for whatever two configs do not share."""
    before, after = flat(to_json(old)), flat(to_json(new))
    keys = [key for key in before | after if before.get(key) != after.get(key)]
    return [f"{key} was {before.get(key)}, now {after.get(key)}" for key in keys]


def flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`learner.options.width` and so on, each with its value."""
    leaves = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            leaves |= flat(value, f"{prefix}{key}.")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def _unknown(config: Config, key: str, names: list[str]) -> str:
    settings = ", ".join(name for name in names if name not in ("learner", "benchmark", "recipe"))
    learner = ", ".join(f"learner.{name}" for name in _learner_options(config)) or "learner.OPTION"
    data = ", ".join(f"benchmark.{name}" for name in BENCHMARKS.options(config.benchmark.name))
    return f"no setting {key!r}; there are: {settings}; {learner}; {data}"


def _learner_options(config: Config) -> list[str]:
    """Those of the yardstick, which is no learner, are looked at when it runs."""
    return [] if config.learner.name == "offline" else list(LEARNERS.options(config.learner.name))


def _assignment(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ValueError(f"{text!r} is not of the form key=value, such as steps=1000")
    return key, value


def _value(text: str) -> Any:
    """A number, true, false, null or a list where it reads as one; otherwise the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def first_problem(error: ValidationError) -> str:
    """The first of pydantic's complaints, in one line."""
    problem = error.errors()[0]
    where = ".".join(str(part) for part in problem["loc"])
    return f"{where}={problem['input']}: {problem['msg']}"
