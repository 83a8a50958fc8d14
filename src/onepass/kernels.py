"""Kernels of our own for CUDA cards: whether they can be compiled, and how."""

import importlib.util
import inspect
from collections.abc import Callable
from typing import Any

# not every build of torch brings it
HAS_KERNEL = importlib.util.find_spec("triton") is not None


def compiled(function: Callable[..., Any]) -> Any:
    """By Triton, from the source: tests wrap every function to check its types."""
    import triton  # pyright: ignore[reportMissingImports]

    return triton.jit(inspect.unwrap(function))
