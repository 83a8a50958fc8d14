"""Kernels of our own for CUDA cards: whether they can be compiled, and how."""

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

# not every build of torch brings it
HAS_KERNEL = importlib.util.find_spec("triton") is not None


def compiled(function: Callable[..., Any]) -> Any:
    """By Triton, from the source: tests wrap every function to check its types."""
    import triton  # pyright: ignore[reportMissingImports]

    return triton.jit(inspect.unwrap(function))


def apart(x: Tensor) -> Tensor:
    """What comes of x is computed by another kernel than x.

    Triton 3.6 compiles no kernel that has a maximum and a sum of the same rows and keeps both
    ("PassManager::run failed").
    """
    is_compiled = torch.compiler.is_compiling() and not torch.compiler.is_exporting()
    return _copied(x) if is_compiled else x


@torch.library.custom_op("onepass::copied", mutates_args=())
def _copied(x: Tensor) -> Tensor:
    return x.clone()


_copied.register_fake(torch.empty_like)
