"""A config as the command that trains it, and as the name of its run."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onepass.config import Config, flat, override, resolved, to_json
from onepass.recipes import make_config

LONGEST_NAME = 120
# these have flags or places of their own
APART = ("recipe", "seed", "tasks", "shots", "queries", "benchmark.name", "learner.name")


def settings_of(config: Config) -> list[str]:
    """`key=value` for whatever is not as the recipe has it, in the order of the config."""
    usual = make_config(config.recipe, config.benchmark.name, config.learner.name)
    before, after = (flat(_shallow(resolved(each))) for each in (usual, config))
    return [
        f"{key.replace('.options.', '.')}={_text(value)}"
        for key, value in after.items()
        if key not in APART and (key not in before or before[key] != value)
    ]


def command_of(config: Config, path: Path, device: str = "auto") -> list[str]:
    """What comes after `onepass` to train this config in this folder."""
    names = [config.benchmark.name, config.learner.name]
    shape = ["--tasks", config.tasks, "--shots", config.shots, "--queries", config.queries]
    recipe = ["--recipe", config.recipe, "--seed", config.seed]
    where = ["--device", device, "--out", path]
    return [str(part) for part in ("train", *names, *shape, *recipe, *where, *settings_of(config))]


def run_name(config: Config) -> str:
    """Says what the run is; the same for the same config, and another one for another."""
    # folder:/a/long/path/flowers is folder-flowers
    kind, _, rest = config.benchmark.name.partition(":")
    benchmark = "-".join(part for part in (kind, Path(rest).stem) if part)
    shape = f"{config.tasks}x{config.shots}-q{config.queries}"
    name = f"{benchmark}-{config.learner.name}-{shape}-{config.recipe}-seed{config.seed}"
    return file_name([name, *settings_of(config)])


def file_name(parts: Sequence[str]) -> str:
    """The parts in one word that any disk takes; another one for other parts."""
    text = "-".join(parts)
    plain = "".join(letter if letter.isalnum() or letter in "-_.=" else "_" for letter in text)
    if len(plain) <= LONGEST_NAME:
        return plain
    # what is cut off must still tell two apart
    mark = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{plain[: LONGEST_NAME - 9]}-{mark}"


def with_settings(config: Config, seed: int, settings: list[str]) -> Config:
    return override(config, [f"seed={seed}", *settings])


def _shallow(config: Config) -> dict[str, Any]:
    """As JSON, with options that are dicts themselves as text: they are set as a whole."""
    tree = to_json(config)
    for owner in ("benchmark", "learner"):
        options = tree[owner]["options"]
        for key, value in options.items():
            options[key] = json.dumps(value) if isinstance(value, dict) else value
    return tree


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
