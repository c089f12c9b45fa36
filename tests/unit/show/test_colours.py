"""Stored pictures: a colour that means something is the same in all of them."""

import numpy as np
from matplotlib.colors import to_rgb
from PIL import Image

from docs.colours import FIXED, reduced
from perfkit.show import style


def test_the_colours_of_bars_stay_what_they_are_however_few_pixels_they_have():
    noise = np.random.default_rng(0).integers(0, 256, (90, 90, 3)).astype(np.uint8)
    exact = [tuple(round(255 * part) for part in to_rgb(colour)) for colour in FIXED]
    noise[0, : len(exact)] = exact
    picture = Image.fromarray(noise)
    small = reduced(picture, 64)
    kept = [small.convert("RGB").getpixel((at, 0)) for at in range(len(exact))]
    moved = [picture.quantize(64).convert("RGB").getpixel((at, 0)) for at in range(len(exact))]
    assert small.mode == "P" and kept == exact != moved
    assert style.BLUE in FIXED and len(small.getcolors()) <= 64
