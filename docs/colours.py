"""Pictures with few colours, so that they are small: those of the palette stay exactly as they are."""

import re

import numpy as np
from PIL import Image

from perfkit.show import style

_HEX = re.compile("#[0-9a-f]{6}")
FIXED = sorted({value for value in vars(style).values() if isinstance(value, str) and _HEX.fullmatch(value)})
"""The palette of all figures, in which a colour means something."""


def reduced(picture: Image.Image, count: int) -> Image.Image:
    """The picture in `count` colours: the palette, and others that suit it.

    A quantiser alone merges colours that have few pixels with others, and moves all of them.
    """
    others = picture.quantize(count - len(FIXED)).getpalette() or []
    fixed = [int(text[at : at + 2], 16) for text in FIXED for at in (1, 3, 5)]
    palette = np.array([*fixed, *others[: 3 * (count - len(FIXED))]], dtype=np.int32).reshape(-1, 3)
    pixels = np.asarray(picture, dtype=np.int32)
    codes, places = np.unique(pixels @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True)
    colours = np.stack([codes >> 16, codes >> 8 & 255, codes & 255], axis=1)
    distances = ((colours[:, None, :] - palette[None, :, :]) ** 2).sum(axis=2)
    nearest = distances.argmin(axis=1).astype(np.uint8)
    small = Image.frombytes("P", picture.size, nearest[places].tobytes())
    small.putpalette(palette.astype(np.uint8).tobytes())
    return small
