"""Class augmentation: quarter turns and mirror images are new classes, and no two samples alike.

Both together are one affine map of each image, so that every pixel is interpolated once.
"""

import math

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from onepass.benchmarks.warp import warp

SYMMETRIES = 8  # of the square
# the most that a sample is turned, stretched, sheared, and shifted (in halves of the image)
TURN, STRETCH, SHEAR, SHIFT = math.radians(10), 0.1, 0.1, 1 / 8


def augmented(
    images: UInt8[Tensor, "B K S C H W"], symmetry: Int[Tensor, "B K"], rng: torch.Generator
) -> UInt8[Tensor, "B K S C H W"]:
    """Every task under its own symmetry, every sample under a small affine map of its own."""
    flat = images.flatten(0, 2)
    symmetry = symmetry[..., None].expand(images.shape[:3]).flatten()
    return warp(flat, symmetry_maps(symmetry, small_maps(len(flat), rng))).view_as(images)


def small_maps(count: int, rng: torch.Generator) -> Float[Tensor, "N 2 3"]:
    """Affine maps near the identity."""
    uniform = 2 * torch.rand(6, count, generator=rng, device=rng.device) - 1
    turn, shear = TURN * uniform[0], SHEAR * uniform[1]
    across, down = (STRETCH * uniform[2:4]).exp()
    right, low = SHIFT * uniform[4:]
    cos, sin = turn.cos(), turn.sin()
    x = torch.stack([across * cos, down * (shear * cos - sin), right], -1)
    y = torch.stack([across * sin, down * (shear * sin + cos), low], -1)
    return torch.stack([x, y], 1)


def symmetry_maps(
    symmetry: Int[Tensor, " N"], maps: Float[Tensor, "N 2 3"]
) -> Float[Tensor, "N 2 3"]:
    """The maps after one of the 8 symmetries: quarter turns, from 4 on of the mirror image."""
    quarter = (math.pi / 2) * (symmetry % 4)
    cos, sin = quarter.cos().round()[:, None], quarter.sin().round()[:, None]
    mirror = 1 - 2 * (symmetry // 4)[:, None]
    x, y = maps.unbind(1)
    return torch.stack([mirror * (cos * x - sin * y), sin * x + cos * y], 1)


def check_square(shape: tuple[int, int, int]) -> None:
    _, height, width = shape
    if height != width:
        raise ValueError(f"augment turns images by 90 degrees, and these are {height}x{width}")
