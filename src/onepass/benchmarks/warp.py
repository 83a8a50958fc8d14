"""Affine maps of many images at once, each by its own."""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor


def warp(
    images: UInt8[Tensor, "N C H W"],
    maps: Float[Tensor, "N 2 3"],
    between: Literal["bilinear", "nearest"] = "bilinear",
) -> UInt8[Tensor, "N C H W"]:
    """Every pixel becomes what the map leads to from it; outside an image all is white.

    Maps are in coordinates from -1 to 1, x before y.
    """
    height, width = images.shape[-2:]
    x, y = (
        (2 * torch.arange(edge, device=images.device) + 1) / edge - 1 for edge in (width, height)
    )
    # sums of products, since a matrix product may round to fewer bits on a card
    by_x, by_y, constant = maps[:, None, None].unbind(-1)
    places = by_x * x[:, None] + by_y * y[:, None, None] + constant
    ink = F.grid_sample(255 - images.float(), places, between, align_corners=False)
    return (255 - ink).round().to(torch.uint8)
