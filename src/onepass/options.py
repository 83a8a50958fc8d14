"""Arguments and options that several commands share."""

import os
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
Recipe = Annotated[
    str, Option(help="Where the other settings come from: paper, quickstart, symbols, tiny.")
]
Seed = Annotated[int | None, Option(help="Decides every random number.")]
Data = Annotated[Path | None, Option(help="Folder of downloaded files, instead of ONEPASS_DATA.")]
Device = Annotated[str, Option(help="auto, cpu, cuda or mps.")]
AsJson = Annotated[bool, Option("--json", help="Print JSON, for scripts.")]
JsonFile = Annotated[Path | None, Option("--json", help="Also write the rows to this file.")]


def use_data(folder: Path | None) -> None:
    """Look for downloaded files there, this process and those it starts."""
    if folder is not None:
        if not folder.is_dir():
            raise ValueError(f"--data {folder}: there is no such folder")
        os.environ["ONEPASS_DATA"] = str(folder)


def whole_numbers(option: str, text: str) -> list[int]:
    """`20,100` as numbers, in order and each once."""
    parts = [part.strip() for part in text.split(",")]
    # no count that any machine could meet has more digits
    if not all(part.isascii() and part.isdigit() and int(part[:12]) > 0 for part in parts):
        raise ValueError(f"{option} is {text!r}, and takes numbers from 1 on, such as 20,100")
    return sorted({int(part) for part in parts})


def names_and_settings(arguments: list[str] | None) -> tuple[list[str], list[str]]:
    """Names, each once, and what is of the form key=value."""
    given = arguments or []
    names = dict.fromkeys(argument for argument in given if "=" not in argument)
    return list(names), [argument for argument in given if "=" in argument]
