"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

Benchmark = Annotated[str, Argument(help="A benchmark, folder:PATH, npz:PATH or MODULE:CLASS.")]
LearnerName = Annotated[str, Argument(help="A learner, or MODULE:CLASS for your own.")]
RunPath = Annotated[Path, Argument(help="The folder of a finished run.")]
Settings = Annotated[
    list[str] | None,
    Argument(
        metavar="[KEY=VALUE]...",
        help="Any setting, such as steps=1000; `onepass describe` lists them.",
    ),
]
Tasks = Annotated[int | None, Option(help="Tasks in an episode.")]
Shots = Annotated[int | None, Option(help="Examples of each task to learn from.")]
Queries = Annotated[int | None, Option(help="Queries about each task.")]
Recipe = Annotated[str, Option(help="Where the other settings come from: paper, quickstart, tiny.")]
Seed = Annotated[int | None, Option(help="Decides every random number.")]
Data = Annotated[Path | None, Option(help="Folder of downloaded files, instead of ONEPASS_DATA.")]
Device = Annotated[str, Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]
