"""Images of any kind as a learner was meta-trained on them: bytes of one size and colour."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageOps

from onepass.data.pictures import on_white

CHANNELS = (1, 3, 4)
PIXELS = "whole numbers from 0 to 255, or floats in [0, 1]"
SLACK = 1e-3  # by which floats may leave [0, 1]: what interpolation does


def to_images(X: Any, x_shape: tuple[int, ...]) -> UInt8[np.ndarray, "N C H W"]:
    """A batch: an array [N H W], [N H W C] or [N C H W], or a list of images of any kind."""
    images = [_fitted(_picture(image), x_shape) for image in _singles(X, x_shape)]
    return np.stack(images) if images else np.zeros((0, *x_shape), np.uint8)


def _singles(X: Any, x_shape: tuple[int, ...]) -> list[Any]:
    if isinstance(X, Image.Image):
        return [X]
    if isinstance(X, list | tuple) and all(_is_image(each) for each in X):
        return list(X)
    array = _as_array(X)
    flat = array.ndim == 2 and (1 in array.shape or array.shape[1] == math.prod(x_shape))
    # nothing is 3 pixels wide, so this is one image and not a batch
    if not flat and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in CHANNELS)):
        return [array]
    if array.ndim not in (3, 4):
        raise ValueError(
            f"X has shape {array.shape}; this learner reads images: "
            "give [N H W], [N H W C] or [N C H W], or a list of images"
        )
    return list(array)


def _is_image(x: Any) -> bool:
    return isinstance(x, Image.Image) or getattr(x, "ndim", 0) in (2, 3)


def _as_array(x: Any) -> np.ndarray:
    if isinstance(x, torch.Tensor):
        x = x.detach().cpu()
        return x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    try:
        return np.asarray(x)
    except ValueError as error:
        raise ValueError(f"X cannot be made an array of images: {error}") from error


def _picture(x: Any) -> Image.Image:
    """One image: [H W], [H W C], [C H W] or PIL's own."""
    if isinstance(x, Image.Image):
        if 0 in x.size:
            raise ValueError(f"an image has {x.size[0]} x {x.size[1]} pixels")
        return on_white(ImageOps.exif_transpose(x))
    array = _as_array(x)
    if 0 in array.shape or array.ndim not in (2, 3):
        raise ValueError(f"an image has shape {array.shape}; give [H W], [H W C] or [C H W]")
    return on_white(Image.fromarray(_to_bytes(_channels_last(array))))


def _channels_last(array: np.ndarray) -> np.ndarray:
    if array.ndim == 2:
        return array
    first, last = array.shape[0] in CHANNELS, array.shape[2] in CHANNELS
    if first == last:
        raise ValueError(
            f"an image has shape {array.shape}: which axis has the channels? one of the first "
            "and the last must be 1, 3 or 4, and the other must not"
        )
    array = array.transpose(1, 2, 0) if first else array
    return array[:, :, 0] if array.shape[2] == 1 else np.ascontiguousarray(array)


def _to_bytes(pixels: np.ndarray) -> np.ndarray:
    kind = pixels.dtype.kind
    if kind == "b":
        return pixels.astype(np.uint8) * 255
    if kind not in "iuf":
        raise ValueError(f"pixels are {pixels.dtype}; give {PIXELS}")
    if not np.isfinite(pixels).all():
        raise ValueError("an image has pixels that are NaN or infinite")
    most, slack = (1, SLACK) if kind == "f" else (255, 0)
    low, high = pixels.min(), pixels.max()
    if low < -slack or high > most + slack:
        raise ValueError(f"pixels are {pixels.dtype} from {low:.6g} to {high:.6g}; give {PIXELS}")
    whole = np.rint(pixels.clip(0, 1) * 255.0) if kind == "f" else pixels
    return whole.astype(np.uint8)


def _fitted(image: Image.Image, x_shape: tuple[int, ...]) -> np.ndarray:
    """Coloured and resized as pictures are when a store is made of them."""
    channels, height, width = x_shape
    image = image.convert("L" if channels == 1 else "RGB")
    pixels = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
