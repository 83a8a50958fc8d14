"""Pictures of any origin to pixels; whatever is wrong with one is a ValueError."""

import io
import warnings

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# those whose decoders run no other program
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MOST_PIXELS = 1 << 26


def decode_picture(content: bytes, formats: tuple[str, ...] = FORMATS) -> Image.Image:
    """Upright, RGB or grey, on white where it is transparent."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(content), formats=formats) as image:
                # only the header is read so far: a small file can claim a huge picture
                if image.width * image.height > MOST_PIXELS:
                    raise ValueError(f"{image.width}x{image.height} pixels are too many")
                image.load()
                return on_white(ImageOps.exif_transpose(image))
    except UnidentifiedImageError as error:
        # its own words have the address of what was read in them
        raise ValueError(f"it is none of {', '.join(formats)}") from error
    except Exception as error:
        # Pillow's decoders raise whatever they stumble over
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def on_white(image: Image.Image) -> Image.Image:
    """RGB or grey."""
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of kind {image.mode} have no known range")
    if image.mode in ("1", "L"):
        return image.convert("L")
    if image.mode in ("LA", "PA", "RGBA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")
