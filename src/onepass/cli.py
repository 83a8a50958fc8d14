"""The command line. Heavy imports happen inside the commands, so that help is instant."""

import json
from pathlib import Path
from typing import Annotated, Literal, get_args

import typer
from typer import Argument, Option

from onepass.cli_data import data_app
from onepass.cli_demo import demo
from onepass.cli_export import export
from onepass.cli_report import report
from onepass.cli_speed import bench, cost
from onepass.cli_sweep import add_sweep_commands
from onepass.options import (
    AsJson,
    Benchmark,
    Data,
    Device,
    LearnerName,
    Queries,
    Recipe,
    RunPath,
    Seed,
    Settings,
    Shots,
    Tasks,
    use_data,
)
from onepass.progress import tell

app = typer.Typer(
    name="onepass",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Learn from a stream in one forward pass, and meta-train the models that can.\n\n"
    "Example: onepass quickstart",
    epilog="--debug anywhere on the line shows the traceback of an error.",
)
app.add_typer(data_app, name="data")
app.command()(bench)
app.command()(cost)
add_sweep_commands(app)


def _version(wanted: bool) -> None:
    if wanted:
        from onepass import __version__

        print(f"onepass {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, Option("--version", callback=_version, is_eager=True, help="Print it and leave.")
    ] = False,
) -> None: ...


@app.command()
def quickstart(
    out: Annotated[Path, Option(help="Where the run goes.")] = Path("runs/quickstart"),
    device: Device = "auto",
) -> None:
    """Meta-train a small transformer on drawn glyphs, and see it learn new ones. 2 to 4 minutes.

    Example: onepass quickstart --out runs/quickstart
    """
    from onepass.quickstart import quickstart

    quickstart(out, device)


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """What there is: benchmarks, views of their images, learners, mixers, recipes.

    Example: onepass list --json
    """
    from onepass.benchmarks.views import ViewName
    from onepass.recipes import RECIPES
    from onepass.registry import BENCHMARKS, LEARNERS, MIXERS

    there = {
        "benchmarks": list(BENCHMARKS),
        "views": list(get_args(ViewName)),
        "learners": sorted([*LEARNERS, "offline"]),
        "mixers": list(MIXERS),
        "recipes": list(RECIPES),
    }
    if as_json:
        print(json.dumps(there, indent=2))
        return
    for kind, names in there.items():
        print(f"{kind:<12}{', '.join(names)}")
    images = [name for name in BENCHMARKS if "view" in BENCHMARKS.options(name)]
    print(f"\nA view says what is asked of {', '.join(images)}: benchmark.view=rotation")
    print("Your own pictures are folder:PATH or npz:PATH wherever a benchmark is named;")
    print("your own benchmark, learner or mixer is MODULE:CLASS wherever a name is taken.")


@app.command()
def describe(
    benchmark: Benchmark,
    learner: LearnerName,
    settings: Settings = None,
    tasks: Tasks = None,
    shots: Shots = None,
    queries: Queries = None,
    recipe: Recipe = "paper",
    as_json: AsJson = False,
) -> None:
    """Parameters, tokens and state of a learner on a benchmark; nothing is trained.

    Example: onepass describe omniglot transformer --tasks 20
    """
    from onepass.describe import describe
    from onepass.tables import print_facts

    config = _config(benchmark, learner, recipe, settings, tasks, shots, queries, None)
    facts = describe(config)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    print_facts(facts)


@app.command()
def train(
    benchmark: Benchmark,
    learner: LearnerName,
    settings: Settings = None,
    tasks: Tasks = None,
    shots: Shots = None,
    queries: Queries = None,
    recipe: Recipe = "paper",
    seed: Seed = None,
    out: Annotated[Path | None, Option(help="Where the run goes; default: under runs/.")] = None,
    device: Device = "auto",
    data: Data = None,
) -> None:
    """Meta-train a learner; run it again to go on after a stop.

    Example: onepass train omniglot transformer --tasks 20 --recipe paper
    """
    use_data(data)
    from onepass.commands import run_name
    from onepass.describe import asks_for_classes
    from onepass.ranks import is_first
    from onepass.run import Run
    from onepass.tables import print_result
    from onepass.training import train

    config = _config(benchmark, learner, recipe, settings, tasks, shots, queries, seed)
    path = out or Path("runs") / run_name(config)
    if learner == "offline":
        from onepass.offline import offline

        offline(config, path, device, tell=tell)
    else:
        train(config, path, device, tell=tell)
    if is_first():
        print_result(Run(path).read("result.json"), asks_for_classes(config))
        print(f"run: {path}")


@app.command()
def evaluate(
    run: RunPath,
    on: Annotated[str | None, Option(help="Another benchmark than the one trained on.")] = None,
    tasks: Tasks = None,
    shots: Shots = None,
    queries: Queries = None,
    split: Annotated[
        Literal["train", "validation", "test"], Option(help="Which classes.")
    ] = "test",
    episodes: Annotated[int, Option(min=1, help="How many fresh episodes.")] = 1_024,
    stops: Annotated[
        bool, Option("--stops", help="Ask after every task, not only at the end.")
    ] = False,
    seed: Annotated[int | None, Option(help="Decides the episodes; default: the run's.")] = None,
    device: Device = "auto",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Score a trained learner on fresh episodes; the result is kept in the run's folder.

    Example: onepass evaluate runs/quickstart --tasks 5 --shots 1
    """
    use_data(data)
    from onepass.devices import pick_device
    from onepass.evaluation import evaluate_run
    from onepass.tables import print_evaluation

    score, path, is_class = evaluate_run(
        run,
        on,
        _given(tasks=tasks, shots=shots, queries=queries),
        split,
        episodes,
        stops,
        seed,
        pick_device(device),
    )
    if as_json:
        print(json.dumps(score, indent=2))
        return
    print_evaluation(score, is_class)
    print(f"kept in {path}")


@app.command()
def forgetting(
    run: RunPath,
    tasks: Tasks = None,
    shots: Shots = None,
    queries: Queries = None,
    episodes: Annotated[int, Option(min=1, help="How many fresh episodes.")] = 256,
    seed: Annotated[int, Option(help="Decides the episodes.")] = 0,
    device: Device = "auto",
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Every task's error after every later task, from one pass over each stream; with a plot.

    Example: onepass forgetting runs/quickstart
    """
    use_data(data)
    from dataclasses import asdict

    from onepass.devices import pick_device
    from onepass.forgetting import forgetting_of_run
    from onepass.tables import print_forgetting

    shape = _given(tasks=tasks, shots=shots, queries=queries)
    found, is_class = forgetting_of_run(run, shape, episodes, seed, pick_device(device))
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return
    print_forgetting(found, is_class)
    print(f"kept in {run / 'forgetting.json'}, picture in {run / 'forgetting.png'}")


app.command()(report)
app.command()(export)
app.command()(demo)


@app.command()
def check(
    component: Annotated[str, Argument(help="A registered name, or MODULE:CLASS.")],
    settings: Settings = None,
) -> None:
    """Hold a mixer, learner or benchmark to the laws that all of them obey.

    Example: onepass check mymodule:MyMixer
    """
    from onepass.checks import laws_of
    from onepass.config import parse_options

    failed = 0
    for name, law in laws_of(component, parse_options(settings or [])):
        try:
            law()
        except Exception as error:  # noqa: BLE001
            failed += 1
            print(f"FAILS  {name}\n       {type(error).__name__}: {_first_lines(error)}")
        else:
            print(f"holds  {name}")
    if failed:
        raise ValueError(f"{component} breaks {failed} law(s)")


def _config(benchmark, learner, recipe, settings, tasks, shots, queries, seed):
    from onepass.config import override
    from onepass.recipes import make_config

    flags = _given(tasks=tasks, shots=shots, queries=queries, seed=seed)
    given = [f"{name}={value}" for name, value in flags.items()]
    return override(make_config(recipe, benchmark, learner), [*given, *(settings or [])])


def _given(**flags: int | None) -> dict[str, int]:
    return {name: value for name, value in flags.items() if value is not None}


def _first_lines(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
