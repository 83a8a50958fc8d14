"""Tensors and a few words about them as one safetensors file, with a checksum over both."""

import json
import zlib

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor


def sealed(tensors: dict[str, Tensor], marks: dict[str, str]) -> bytes:
    return save(tensors, metadata=marks | {"checksum": _checksum(tensors, marks)})


def unsealed(content: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What was sealed; one line on what is wrong otherwise."""
    try:
        tensors = load(content)
        length = int.from_bytes(content[:8], "little")
        marks = json.loads(content[8 : 8 + length])["__metadata__"]
        checksum = marks.pop("checksum")
    except (SafetensorError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except KeyError as error:
        raise ValueError(f"no {error.args[0].strip('_')}") from error
    if checksum != _checksum(tensors, marks):
        raise ValueError("wrong checksum")
    return tensors, marks


def _checksum(tensors: dict[str, Tensor], marks: dict[str, str]) -> str:
    code = zlib.crc32(json.dumps(marks, sort_keys=True).encode())
    for name in sorted(tensors):
        code = zlib.crc32(name.encode(), code)
        code = zlib.crc32(tensors[name].flatten().view(torch.uint8).numpy().data, code)
    return f"{code:08x}"
