"""Pictures as a network takes them: resized, grey or coloured; Pillow decodes them."""

from __future__ import annotations

from io import BytesIO

import numpy as np

from firmware_sim.errors import SourceError
from firmware_sim.tensor_spec import Array, TensorSpec

SUFFIXES = frozenset((".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".webp", ".tiff"))
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "WEBP", "TIFF")
MOST_PIXELS = 64 * 10**6  # of a picture before it is resized
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class BadPicture(ValueError):
    """A picture that cannot be used; the text is one sentence."""


def read_picture(data: bytes, wanted: TensorSpec) -> Array:
    """Returns a picture with the wanted shape: uint8 as it is, numbers from 0 to 1 otherwise."""
    try:
        from PIL import Image
    except ImportError:
        raise SourceError(
            "pictures need Pillow, which is not installed: pip install 'stemshare[images]'."
        ) from None
    channels = wanted.shape[2] if len(wanted.shape) == 3 else 1
    if len(wanted.shape) not in (2, 3) or channels not in _MODES:
        raise BadPicture(f"the bundle takes {wanted}, which is no picture.")
    height, width = wanted.shape[:2]
    try:
        with Image.open(BytesIO(data), formats=FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadPicture(f"a picture has more than {MOST_PIXELS} pixels.")
            resized = image.convert(_MODES[channels]).resize((width, height), 2)  # bilinear
            pixels = np.asarray(resized, np.uint8).reshape(wanted.shape)
    except BadPicture:
        raise
    except Exception as error:  # decoders of damaged pictures fail in many ways
        raise BadPicture(f"a picture cannot be read ({type(error).__name__}).") from None
    if wanted.dtype.kind == "f":
        return (pixels / 255).astype(wanted.dtype)
    return pixels.astype(wanted.dtype)
