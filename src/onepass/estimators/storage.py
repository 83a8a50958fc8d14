"""What an estimator has learned, in one safetensors file with a versioned header; no weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from onepass import __version__
from onepass.estimators.labels import Book, from_json, to_json
from onepass.estimators.memory import Chunk, Memory, joined
from onepass.estimators.model import Model
from onepass.estimators.stream import Learned, blank
from onepass.files import write_bytes
from onepass.sealed import sealed, unsealed
from onepass.tree import State

VERSION = 1


def write_learned(path: Path, learned: Learned, kind: str, names: list[str]) -> None:
    """`names` are those of the features, if they have any."""
    header = {
        "version": VERSION,
        "onepass": __version__,
        "kind": kind,
        "model": str(learned.model),
        "weights": learned.model.fingerprint(),
        "x_shape": list(learned.model.x_shape),
        "outputs": learned.model.learner.target.outputs,
        "seen": learned.seen,
        "complete": learned.complete,
        "keys": None if learned.keys is None else [to_json(key) for key in learned.keys],
        "names": names,
        "book": None if learned.book is None else _book_to_json(learned.book),
        "flat": learned.flat,
    }
    tensors = _named("state", learned.state)
    if learned.memory:
        tensors |= _named("memory", tuple(joined(learned.memory)))
    write_bytes(path, sealed(tensors, {"learned": json.dumps(header)}))


def read_learned(
    path: Path, kind: str, open_model: Callable[[int, int], Model]
) -> tuple[Learned, list[str]]:
    """And the names of the features; `open_model` is given how many of them, and of outputs."""
    try:
        tensors, marks = unsealed(path.read_bytes())
        header = json.loads(marks["learned"])
        version = header["version"]
    except FileNotFoundError as error:
        raise ValueError(f"there is no file {path}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged, or no estimator saved it: {error}") from error
    if version != VERSION:
        raise ValueError(f"{path} has version {version}, and this onepass reads {VERSION}")
    if header["kind"] != kind:
        raise ValueError(f"{path} was saved by a {header['kind']}, and this is a {kind}")
    model = open_model(header["x_shape"][0], header["outputs"])
    if header["weights"] != model.fingerprint():
        this = "one with other weights" if header["model"] == str(model) else f"a {model}"
        raise ValueError(f"{path} was learned by a {header['model']}; this is {this}")
    try:
        return _learned(header, tensors, model), header["names"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def _learned(header: dict[str, Any], tensors: dict[str, Tensor], model: Model) -> Learned:
    book = None if header["book"] is None else _book_from_json(header["book"])
    keys = header["keys"]
    return Learned(
        model,
        _nest("state", tensors, blank(model.learner, book)),
        header["seen"],
        _memory(tensors, model),
        header["complete"],
        None if keys is None else tuple(from_json(key) for key in keys),
        book,
        header["flat"],
    )


@torch.no_grad()
def _memory(tensors: dict[str, Tensor], model: Model) -> Memory:
    if "memory/0" not in tensors:
        return ()
    nothing = np.zeros((1, *model.x_shape), np.uint8 if len(model.x_shape) == 3 else np.float64)
    z, y = model.encode(nothing), model.learner.target.blank(1).to(model.like.device)
    y = y.to(model.like.dtype) if y.is_floating_point() else y
    return (Chunk(*_nest("memory", tensors, (z, y))),)


def _named(name: str, nest: State) -> dict[str, Tensor]:
    """Copied: two leaves may be parts of one tensor, and a file has each of its own."""
    return {
        f"{name}/{n}": leaf.detach().cpu().clone(memory_format=torch.contiguous_format)
        for n, leaf in enumerate(tree_leaves(nest))
    }


def _nest(name: str, tensors: dict[str, Tensor], like: State) -> State:
    leaves, form = tree_flatten(like)
    found = [tensors[f"{name}/{n}"].to(leaf.device) for n, leaf in enumerate(leaves)]
    if [leaf.dtype for leaf in found] != [leaf.dtype for leaf in leaves]:
        raise ValueError(f"the {name} is of other kinds of numbers")
    return tree_unflatten(found, form)


def _book_to_json(book: Book) -> dict[str, Any]:
    codes = [(to_json(label), book.codes.get(label)) for label in book.labels]
    return {"room": book.room, "seed": book.seed, "codes": codes, "held": [*book.held.items()]}


def _book_from_json(content: dict[str, Any]) -> Book:
    codes = {from_json(label): code for label, code in content["codes"]}
    return Book(
        content["room"],
        content["seed"],
        tuple(codes),
        {label: code for label, code in codes.items() if code is not None},
        {code: count for code, count in content["held"]},
    )
