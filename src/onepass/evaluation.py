"""How well a learner answers after the stream, and at stops along it, with standard errors."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from onepass.benchmarks.base import Benchmark, draw
from onepass.episodes import Episodes, EpisodeSpec, Split
from onepass.files import write_json
from onepass.learner import Learner, encode_episodes, states
from onepass.progress import progress
from onepass.registry import BENCHMARKS
from onepass.run import command_line, commit, device_name, load_run, now
from onepass.seeds import generator
from onepass.targets import Classes

Tick = Callable[[int, int], None]


@dataclass(frozen=True)
class Evaluation:
    """Errors of classes are fractions. The headline is the last stop, over all tasks."""

    error: float
    stderr: float  # over episodes
    loss: float
    loss_stderr: float
    episodes: int
    stops: list[int]  # examples seen
    task_error: list[list[float]]  # [stop][task]
    task_stderr: list[list[float]]
    task_loss: list[list[float]]
    task_loss_stderr: list[list[float]]
    episode_error: list[float]  # at the last stop, over all tasks: what pairs are made of


def evaluate(
    learner: Learner,
    benchmark: Benchmark,
    spec: EpisodeSpec,
    *,
    split: Split = "test",
    episodes: int = 1_024,
    batch: int = 32,
    seed: int = 0,
    at: Sequence[int] | None = None,
    tick: Tick = lambda done, total: None,
) -> Evaluation:
    """Fresh episodes of one split; the same ones for every learner at one seed."""
    stops = [spec.length] if at is None else list(at)
    outcomes = measure(learner, benchmark, spec, split, episodes, batch, seed, stops, tick)
    return summarise(outcomes, stops)


def measure(
    learner: Learner,
    benchmark: Benchmark,
    spec: EpisodeSpec,
    split: Split,
    episodes: int,
    batch: int,
    seed: int,
    stops: list[int],
    tick: Tick,
) -> Float[Tensor, "E S K two"]:
    """Error and loss of every episode, at every stop, of every task."""
    if split not in benchmark.splits:
        raise ValueError(f"there is no {split} split; there are: {', '.join(benchmark.splits)}")
    device = next(learner.parameters()).device
    was_training = learner.training
    learner.eval()
    parts = []
    for done in range(0, episodes, batch):
        rng = generator(device, seed, "evaluate", split, done)
        drawn = draw(benchmark, learner.target, split, spec, min(batch, episodes - done), rng)
        parts.append(_outcomes(learner, drawn, stops, spec.tasks))
        tick(done + len(drawn.train.x), episodes)
    learner.train(was_training)
    outcomes = torch.cat(parts)
    if not torch.isfinite(outcomes).all():
        raise FloatingPointError(
            f"the learner's answers are not finite in {split} episodes of {spec.tasks} tasks x "
            f"{spec.shots} shots{learner.hint()}"
        )
    return outcomes


@torch.no_grad()
def _outcomes(
    learner: Learner, episodes: Episodes, stops: list[int], tasks: int
) -> Float[Tensor, "B S K two"]:
    """Error and loss of each episode at each stop, averaged over the queries of each task."""
    encoded = encode_episodes(learner, episodes)
    batch = episodes.train.x.shape[0]
    rows = []
    for stop, state in zip(stops, states(learner, encoded, batch, stops), strict=True):
        prediction = learner.spell(state, encoded.queries, encoded.answers)
        loss = learner.target.loss(prediction, episodes.test.y)
        error = loss
        if episodes.codes is not None:
            scores = _scores(learner, state, prediction, encoded.queries, episodes.codes)
            seen = _seen(episodes, stop, tasks)
            # what was never shown is no answer, unless nothing was shown at all
            scores = scores.masked_fill(~(seen | ~seen.any(-1, keepdim=True))[:, None], -torch.inf)
            error = (scores.argmax(-1) != episodes.test.task).to(loss.dtype)
        both = torch.stack([error, loss], -1)
        # queries come task after task, equally many of each
        rows.append(both.unflatten(1, (tasks, -1)).mean(2))
    return torch.stack(rows, 1).cpu()


def _scores(learner: Learner, state, prediction: Tensor, queries, codes: Tensor) -> Tensor:
    target = learner.target
    assert isinstance(target, Classes)
    if target.tokens == 1:
        return target.rank(prediction, codes)
    return learner.score(state, queries, codes)


def _seen(episodes: Episodes, stop: int, tasks: int) -> Tensor:
    """[B, K]: which classes were among the first `stop` examples."""
    shown = episodes.train.task[:, :stop]
    return torch.zeros(len(shown), tasks, dtype=torch.bool, device=shown.device).scatter(
        1, shown, True
    )


def summarise(outcomes: Float[Tensor, "E S K two"], stops: list[int]) -> Evaluation:
    """Means over episodes, and how far they would move with other episodes."""
    outcomes = outcomes.double()
    count = len(outcomes)
    whole = outcomes[:, -1].mean(1)
    stderr, task_stderr, mean = stderr_of(whole), stderr_of(outcomes), outcomes.mean(0)
    return Evaluation(
        error=whole[:, 0].mean().item(),
        stderr=stderr[0].item(),
        loss=whole[:, 1].mean().item(),
        loss_stderr=stderr[1].item(),
        episodes=count,
        stops=stops,
        task_error=mean[..., 0].tolist(),
        task_stderr=task_stderr[..., 0].tolist(),
        task_loss=mean[..., 1].tolist(),
        task_loss_stderr=task_stderr[..., 1].tolist(),
        # four digits are far below the spread between episodes
        episode_error=[float(f"{error:.4g}") for error in whole[:, 0].tolist()],
    )


def stderr_of(values: Float[Tensor, "E *rest"]) -> Float[Tensor, "*rest"]:
    """Of the mean over axis 0; 0 where there is one value, and so no spread to see."""
    if len(values) == 1:
        return torch.zeros_like(values[0])
    return values.std(0) / len(values) ** 0.5


def evaluate_run(
    path: Path,
    on: str | None,
    shape: dict[str, int],
    split: Split,
    episodes: int,
    stops: bool,
    seed: int | None,
    device: torch.device,
) -> tuple[dict, Path, bool]:
    """Score a finished run, on its own benchmark or another; kept as JSON in its folder.

    The meta-train score comes beside it, and by default the episodes are those of its result.
    """
    config, benchmark, learner = load_run(path, str(device))
    spec, seed = replace(config.spec, **shape), config.seed if seed is None else seed
    if stops and spec.order != "blocked":
        raise ValueError(
            "--stops are the ends of tasks, and with order=shuffled no task ends early"
        )
    if on is not None:
        benchmark = _other(on, config.benchmark.options, benchmark, learner, spec)
    at = range(spec.shots, spec.length + 1, spec.shots) if stops else None
    name = on or config.benchmark.name
    scores = {}
    for part in dict.fromkeys((split, "train")):
        with progress(f"evaluating meta-{part}", episodes) as show:
            found = evaluate(
                learner,
                benchmark,
                spec,
                split=part,
                episodes=episodes,
                seed=seed,
                at=at,
                tick=lambda done, total, show=show: show(done),
            )
        scores[part] = asdict(found)
    facts = {"benchmark": name, "split": split, **asdict(spec), "seed": seed, **scores[split]}
    facts["meta_train"] = scores["train"]
    facts |= {"command": command_line(), "commit": commit(), "date": now()}
    facts["device"] = device_name(device)
    shape_name = f"{spec.tasks}x{spec.shots}-q{spec.queries}-{episodes}episodes-seed{seed}"
    file = f"{name}-{split}-{shape_name}{'-stops' if stops else ''}.json"
    kept = path / "evaluations" / file.replace(":", "_").replace("/", "_")
    write_json(kept, facts)
    return facts, kept, isinstance(learner.target, Classes)


def _other(
    name: str, options: dict[str, Any], own: Benchmark, learner: Learner, spec: EpisodeSpec
) -> Benchmark:
    """Another benchmark, if what it shows and asks for looks the same to the learner."""
    takes = BENCHMARKS.options(name)
    # images of another source are asked about in the same way
    view = {key: options[key] for key in ("view", "label_shift") if key in options and key in takes}
    other = BENCHMARKS.build(name, **view)
    if other.x_shape != own.x_shape or not learner.target.fits(other.target(spec)):
        raise ValueError(
            f"the learner reads {own.x_shape} and answers {learner.target}; "
            f"{name} shows {other.x_shape} and asks for {other.target(spec)}"
        )
    return other
