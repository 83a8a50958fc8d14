"""The whole idea in a few minutes: meta-train, meet new classes, stream them one by one, look."""

import shutil
import sys
from pathlib import Path

import torch
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from onepass.benchmarks.base import draw
from onepass.config import Config, build
from onepass.devices import pick_device
from onepass.episodes import Episodes
from onepass.evaluation import evaluate
from onepass.learner import Learner, probe
from onepass.plots import contact_sheet, learning_curve, letter, save_figure
from onepass.recipes import make_config
from onepass.run import Run, load_run
from onepass.seeds import generator
from onepass.training import train
from onepass.tree import state_bytes


def quickstart(path: Path, device: str = "auto") -> None:
    """Says what happens as it happens; leaves a run with a picture in `path`."""
    config = make_config("quickstart", "glyphs", "transformer")
    print(
        f"Meta-training a small transformer on {config.benchmark.options['bank']:,} drawn glyphs:\n"
        f"{config.steps:,} steps of {config.batch} streams, each of {config.tasks} classes shown "
        f"{config.shots} times.\nStop and start it again as you like: it goes on where it was.\n",
        flush=True,
    )
    train(config, path, device)
    run = Run(path)
    where = pick_device(device)
    errors = {
        "chance": 1 - 1 / config.tasks,
        "untrained": _untrained_error(config, where),
        "trained": run.read("result.json")["meta_test"]["error"],
    }
    print(f"\nError on {config.tasks} classes it never saw, {config.shots} examples of each:")
    for name, error in errors.items():
        print(f"  {name:<10}{100 * error:6.1f} %  {'#' * round(40 * error)}")
    config, benchmark, learner = load_run(path, str(where))
    episodes = draw(
        benchmark,
        learner.target,
        "test",
        config.spec,
        1,
        generator(where, config.seed, "quickstart"),
    )
    answers = _stream(learner, episodes, config)
    figure = _picture(config, run, episodes, answers, errors)
    save_figure(figure, path / "quickstart.png")
    print(f"\nLook at {path / 'quickstart.png'}; the run is in {path}.")
    onepass = "onepass" if shutil.which("onepass") else sys.argv[0]
    print(f"Then ask harder: {onepass} evaluate {path} --shots 1")


def _untrained_error(config: Config, device: torch.device) -> float:
    benchmark, learner = build(config)
    found = evaluate(
        learner.to(device), benchmark, config.spec, episodes=config.evaluation_episodes
    )
    return found.error


@torch.no_grad()
def _stream(learner: Learner, episodes: Episodes, config: Config) -> Int[Tensor, " Q"]:
    """One example at a time, then all in one parallel pass: the same answers. Returns them."""
    train, test, codes = episodes
    assert codes is not None
    print("\nOne new episode, taught one example at a time, no gradient step:")
    queries = learner.encode(test.x)
    state = learner.init_state(1)
    prediction: Float[Tensor, "1 Q V"] = learner.predict(state, queries)
    for n in range(config.spec.length):
        example = slice(n, n + 1)
        z, y = learner.encode(train.x[:, example]), learner.encode_y(train.y[:, example])
        state = learner.observe(state, z, y)
        prediction = learner.predict(state, queries)
        if (n + 1) % config.shots == 0:
            known = int(train.task[0, n]) + 1
            right = (_classes(prediction, codes) == test.task[0])[test.task[0] < known]
            print(
                f"  {n + 1:>3} examples, classes {letter(0)} to {letter(known - 1)}: "
                f"{int(right.sum())} of {len(right)} queries right, "
                f"state {state_bytes(state) / 1024:.0f} KiB"
            )
    (parallel,) = probe(learner, episodes, at=[config.spec.length])
    streamed, at_once = _classes(prediction, codes), _classes(parallel, codes)
    print(
        f"The same stream in one parallel pass: {int((streamed == at_once).sum())} of "
        f"{len(streamed)} answers the same, "
        f"largest difference {(prediction - parallel).abs().max():.0e}."
    )
    return streamed


def _classes(prediction: Float[Tensor, "1 Q V"], codes: Int[Tensor, "1 K 1"]) -> Tensor:
    """The class whose code scores best, for each query of the one episode."""
    return prediction[0][:, codes[0, :, 0]].argmax(-1)


def _picture(
    config: Config, run: Run, episodes: Episodes, answers: Tensor, errors: dict[str, float]
) -> Figure:
    figure = Figure(figsize=(11, 5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[3, 2], squeeze=False)[0]
    correct = int((answers == episodes.test.task[0]).sum())
    title = f"New symbols, learned in one pass: {correct} of {len(answers)} queries right"
    contact_sheet(left, episodes, answers.tolist(), title)
    right.suptitle("Meta-training teaches it how to learn")
    learning_curve(right.subplots(), run.read_metrics(), errors)
    return figure
