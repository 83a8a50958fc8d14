"""A model is a folder to hand on: weights, config and card, laid out as model hubs expect.

Nothing else of the run comes along, least of all the data: a model says itself what it reads and
what it answers.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as read_tensors
from safetensors.torch import save as tensor_bytes

from onepass import __version__
from onepass.card import card
from onepass.config import Component
from onepass.files import write_bytes, write_json
from onepass.learner import Learner
from onepass.registry import LEARNERS
from onepass.run import Run, load_run
from onepass.targets import Classes, Target, Vector, angle, pixels

VERSION = 1
SHIPPED = Path(__file__).parent / "weights"
WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
PROGRAMS = "encode.pt2", "observe.pt2", "predict.pt2"
# a vector target by the word it is described with
VECTORS = {"numbers": Vector, "pixels": pixels, angle().kind: lambda outputs: angle()}


@dataclass(frozen=True)
class Description:
    """What builds the learner again."""

    learner: Component
    x_shape: tuple[int, ...]
    target: Target


def export(run: Path, out: Path, half: bool = False) -> None:
    """The model of a finished run; `half` keeps its weights in 16 bits."""
    config, benchmark, learner = load_run(run)
    if out.exists() and (not out.is_dir() or ({p.name for p in out.iterdir()} - _own_files())):
        raise ValueError(f"{out} holds other files: name a new folder")
    result, evaluations = Run(run).read("result.json"), Run(run).evaluations()
    out.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        # of other weights, perhaps
        (out / program).unlink(missing_ok=True)
    content = {"library": "onepass", "version": VERSION, "onepass": __version__}
    trained = {key: result[key] for key in ("command", "commit", "date", "device")}
    content |= {"learner": asdict(config.learner), "x_shape": benchmark.x_shape}
    content |= {"target": _target_to_json(benchmark.target(config.spec)), "trained": trained}
    write_json(out / CONFIG, content)
    weights = {name: _kept(tensor, half) for name, tensor in learner.state_dict().items()}
    write_bytes(out / WEIGHTS, tensor_bytes(weights))
    write_bytes(out / CARD, card(out.name, result, benchmark, learner, evaluations).encode())


def open_folder(path: Path) -> tuple[Learner, tuple[int, ...]]:
    """A model's learner, ready to answer, and the shape of what it reads."""
    described = _read_description(path)
    target, name, options = described.target, described.learner.name, described.learner.options
    # a model that someone hands on is no reason to run what it names
    if ":" in name or ":" in str(options.get("mixer", "")):
        raise ValueError(f"{path} needs a component of its author's own, {name}: build it yourself")
    try:
        weights = read_tensors((path / WEIGHTS).read_bytes())
        # first without any memory: a config that lies must not fill the machine
        with torch.device("meta"):
            planned = LEARNERS.build(name, described.x_shape, target, **options).state_dict()
        if {key: part.shape for key, part in planned.items()} != {
            key: part.shape for key, part in weights.items()
        }:
            raise RuntimeError("its tensors are not those that the config describes")
        learner = LEARNERS.build(name, described.x_shape, target, **options)
        learner.load_state_dict(weights)
    except FileNotFoundError as error:
        raise ValueError(f"{path} has no {WEIGHTS}") from error
    except (SafetensorError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path / WEIGHTS} is damaged or of another model: {reason}") from error
    return learner.eval(), described.x_shape


def is_model(path: Path) -> bool:
    """Whether a folder is a model and not a run."""
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()


def shipped() -> dict[str, Path]:
    """The models that come with onepass, by name."""
    return {path.name: path for path in sorted(SHIPPED.glob("*")) if is_model(path)}


def folder_of(name: str | os.PathLike[str]) -> Path:
    """Of a model that comes with onepass, by its name; a path is a folder as it is."""
    own = shipped().get(name) if isinstance(name, str) else None
    return own or Path(name)


def with_more_codes(codes: int, x_shape: tuple[int, ...]) -> list[str]:
    """Those that hold more classes than so many, and read the same kind of thing."""
    opened = {name: open_folder(path) for name, path in shipped().items()}
    return [
        f"{name!r} ({learner.target.codes:,} classes)"
        for name, (learner, shape) in opened.items()
        if len(shape) == len(x_shape)
        and isinstance(learner.target, Classes)
        and learner.target.codes > codes
    ]


def _read_description(path: Path) -> Description:
    try:
        content = json.loads((path / CONFIG).read_text())
        if content["version"] != VERSION:
            raise ValueError(f"it has version {content['version']}, and this onepass reads 1")
        learner = Component(**content["learner"])
        target = _target_from_json(content["target"])
        return Description(learner, tuple(content["x_shape"]), target)
    except FileNotFoundError as error:
        raise ValueError(f"{path} is no model: it has no {CONFIG}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / CONFIG} describes no model of onepass: {error}") from error


def _own_files() -> set[str]:
    return {WEIGHTS, CONFIG, CARD, *PROGRAMS, ".gitattributes", ".git"}


def _kept(tensor: torch.Tensor, half: bool) -> torch.Tensor:
    kind = torch.float16 if half and tensor.is_floating_point() else tensor.dtype
    return tensor.detach().cpu().to(kind).contiguous()


def _target_to_json(target: Target) -> dict[str, Any]:
    if isinstance(target, Classes):
        return {"kind": "classes", "classes": target.classes}
    return {"kind": target.kind, "outputs": target.outputs}


def _target_from_json(content: dict[str, Any]) -> Target:
    if content["kind"] == "classes":
        return Classes(content["classes"])
    return VECTORS[content["kind"]](content["outputs"])
