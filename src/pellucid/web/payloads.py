"""Answers with many numbers: a small JSON head, then the numbers as float16 or float32, little-endian.

    4 bytes   the length of the head, n, a multiple of 8 less 4
    n bytes   JSON: the view's own keys, and "arrays": {name: {"dtype", "shape", "offset"}}, padded with spaces
    ...       the arrays, each beginning at a multiple of 8 after the head

What the mask hides is NaN.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from fastapi import Response
from numpy.typing import NDArray

from pellucid.lens.trace import Step
from pellucid.lens.view import slices

Array = NDArray[Any]

LARGEST = 2_000_000
# So many numbers are sent with all their digits.
EXACT = 1 << 13
POINTS = 256  # of a curve
FLOOR = 1e-5  # of a curve's first value: what is smaller holds no energy that an axis could show
_HALF = float(np.finfo(np.float16).max)


class Packed(Response):
    media_type = "application/octet-stream"

    # FastAPI reads the status from this signature when it describes the interface.
    def __init__(self, head: dict[str, Any], arrays: dict[str, Array], status_code: int = 200) -> None:
        super().__init__(pack(head, arrays), status_code)


def pack(head: dict[str, Any], arrays: dict[str, Array]) -> bytes:
    parts, places, offset = [], {}, 0
    for name, array in arrays.items():
        data = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        places[name] = {"dtype": array.dtype.name, "shape": list(array.shape), "offset": offset}
        parts.append(data.tobytes() + bytes(-data.nbytes % 8))
        offset += len(parts[-1])
    said = json.dumps(head | {"arrays": places}, separators=(",", ":"), allow_nan=False).encode()
    said += b" " * ((4 - len(said)) % 8)
    packed = b"".join([len(said).to_bytes(4, "little"), said, *parts])
    assert len(packed) <= LARGEST, f"{len(packed)} bytes are more than a page should wait for"
    return packed


def compact(values: Array) -> Array:
    """Half precision for what is only looked at: many numbers, none of them too large for it."""
    seen = np.abs(values[np.isfinite(values)])
    if values.size <= EXACT or (seen.size and float(seen.max()) > _HALF):
        return values.astype(np.float32)
    return values.astype(np.float16)


def step_values(step: Step, budget: int) -> tuple[Array, int, int]:
    """The slices of a step [slices, rows, columns] within so many bytes; a number may be the mean of a rectangle."""
    found = [np.where(part.hidden, np.nan, part.values) for part in slices(step)]
    rows, columns = found[0].shape
    rows_each = columns_each = 1
    while len(found) * -(-rows // rows_each) * -(-columns // columns_each) * 2 > budget:
        if rows // rows_each >= columns // columns_each:
            rows_each *= 2
        else:
            columns_each *= 2
    return compact(np.stack([pooled(part, rows_each, columns_each) for part in found])), rows_each, columns_each


def head_values(step: Step, head: int) -> Array:
    """The weights of one head; NaN where the mask hides."""
    values: Array = step.value[0, head].float().cpu().numpy()
    scores = [name for name in step.inputs if name.endswith(".scores")]
    if not scores:
        return values
    hidden = (step.recorded[scores[0]][0, head] == -torch.inf).cpu().numpy()
    return np.where(hidden, np.nan, values)


def pooled(values: Array, rows_each: int, columns_each: int) -> Array:
    """The mean of the visible numbers of each rectangle; NaN where none is."""
    if rows_each == columns_each == 1:
        return values
    rows, columns = values.shape
    padded = np.pad(values, ((0, -rows % rows_each), (0, -columns % columns_each)), constant_values=np.nan)
    cells = padded.reshape(padded.shape[0] // rows_each, rows_each, padded.shape[1] // columns_each, columns_each)
    hidden = np.isnan(cells)
    count = (~hidden).sum((1, 3))
    total: Array = np.where(hidden, 0, cells).sum((1, 3))
    return np.where(count == 0, np.nan, total / np.maximum(count, 1))


def points(longest: int) -> Array:
    """The places of a curve that are drawn: all of a short one, fewer and fewer along a long one."""
    return np.unique(np.geomspace(1, longest, POINTS).round().astype(int)) - 1


def thinned(values: tuple[float, ...], index: Array) -> Array:
    whole = np.full(int(index[-1]) + 1, np.nan, np.float32)
    whole[: len(values)] = values
    whole[whole < FLOOR * values[0]] = np.nan
    return np.asarray(whole[index])
