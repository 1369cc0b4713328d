"""Heat maps as small PNG images: 255 colours for the values and one for what the mask hides."""

from __future__ import annotations

import io
from base64 import b64encode
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from pellucid.lens.view import Hidden, Matrix, Slice

LEVELS = 255
MASKED = 255
_MARKUP = 700
# Shares span orders of magnitude: on a straight scale all but the largest would be one colour.
_ROOT = 3
_GREY = (140, 140, 140)
_ANCHORS = {
    # One colour path for shares and other values of one sign, and one with a light middle at zero for both signs.
    "one": [(250, 250, 245), (250, 210, 120), (225, 105, 80), (130, 30, 110), (25, 10, 55)],
    "two": [(10, 55, 130), (85, 155, 210), (248, 248, 248), (225, 130, 90), (135, 15, 35)],
}


@dataclass(frozen=True)
class Map:
    """An image of a slice. A pixel is the mean of rows_each x columns_each cells.

    least, most: the smallest and the largest of the pixels' values; low, high: the ends of the colours, which are as
    far from zero as each other where both signs occur. root: a colour's level is this root of its way from low to high.
    """

    name: str
    png: str
    least: float
    most: float
    low: float
    high: float
    rows_each: int
    columns_each: int
    palette: str
    root: int = 1
    not_numbers: int = 0

    @property
    def size(self) -> int:
        """The characters that it takes in a page, with the markup around it."""
        return len(self.png) + _MARKUP


def draw(part: Slice, most: int) -> Map:
    """An image with at most `most` pixels per side."""
    rows_each, columns_each = (-(-side // most) for side in part.values.shape)
    values, hidden = _pooled(part.values, part.hidden, rows_each, columns_each)
    shown = values[~hidden & np.isfinite(values)]
    wrong = int((~hidden & ~np.isfinite(values)).sum())
    least, largest = (float(shown.min()), float(shown.max())) if shown.size else (0.0, 0.0)
    palette = "two" if least < 0 < largest else "one"
    far = max(-least, largest)
    low, high = (-far, far) if palette == "two" else (least, largest)
    root = _ROOT if low >= 0 else 1
    spread = high - low if high > low else 1.0
    with np.errstate(invalid="ignore"):
        levels = np.rint(((values - low) / spread) ** (1 / root) * (LEVELS - 1))
    levels = np.where(hidden | ~np.isfinite(levels), MASKED, levels).astype(np.uint8)
    return Map(
        part.name, _png(levels, palette), least, largest, low, high, rows_each, columns_each, palette, root, wrong
    )


def _pooled(values: Matrix, hidden: Hidden, rows_each: int, columns_each: int) -> tuple[Matrix, Hidden]:
    """The mean of the visible cells of each rectangle; hidden where all of them are."""
    if rows_each == columns_each == 1:
        return values, hidden
    rows, columns = values.shape
    more = ((0, -rows % rows_each), (0, -columns % columns_each))
    unseen = np.pad(hidden, more, constant_values=True)
    kept = np.where(unseen, 0, np.pad(values, more))
    shape = (unseen.shape[0] // rows_each, rows_each, unseen.shape[1] // columns_each, columns_each)
    count = (~unseen).reshape(shape).sum((1, 3))
    return kept.reshape(shape).sum((1, 3)) / np.maximum(count, 1), count == 0


def _png(levels: NDArray[np.uint8], palette: str) -> str:
    rows, columns = levels.shape
    image = Image.frombytes("P", (columns, rows), levels.tobytes())
    image.putpalette([part for colour in colours(palette) for part in colour])
    file = io.BytesIO()
    image.save(file, "PNG", compress_level=6)
    return b64encode(file.getvalue()).decode()


@cache
def colours(palette: str) -> tuple[tuple[int, int, int], ...]:
    """All 256 colours, each of them once: the page reads a value back from its colour."""
    anchors = np.array(_ANCHORS[palette], dtype=float)
    where = np.linspace(0, len(anchors) - 1, LEVELS)
    mixed = [np.interp(where, range(len(anchors)), anchors[:, part]) for part in range(3)]
    red, green, blue = (np.rint(part).astype(int).tolist() for part in mixed)
    return (*zip(red, green, blue, strict=True), _GREY)
