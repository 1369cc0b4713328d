"""A head of a text as an operator, and the upper levels of its map from one pass over its weights.

A tile near the top of a map covers most of the matrix, and four of them cover it as often as one does. One pass pools
the whole matrix finely enough for the first levels; their tiles are then means of its means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.operator import AttentionOperator, one_head
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.spectra.operator import open_operator
from pellucid.spectra.tiles import TileMap
from pellucid.spectra.watch import Place, places, watch

# The levels that the one pass serves: 8 x 8 tiles of the finest of them, which is 16 MB. Those below are small.
SERVED = 4


def head_operator(model: Model, texts: tuple[Tensor, ...], place: Place, head: int) -> AttentionOperator:
    """Run the model as far as one attention, and take one of its heads."""
    config = model.config
    if not isinstance(config.attention, c.Softmax | c.Linformer):
        raise InputError(f"a map at any length needs softmax attention, but this model's is {config.attention.kind}")
    if place not in places(model.network) or not 0 <= head < config.heads:
        raise InputError(f"this model has no head {head} in {place.stack} block {place.block} ({place.kind})")
    found: list[AttentionOperator] = []

    def seen(at: Place, query: Query, key: Key, scale: float, view: View) -> None:
        if at == place:
            own_query, own_key, own_view = one_head(query, key, view, 0, head)
            found.append(open_operator(own_query.clone(), own_key.clone(), scale=scale, view=own_view))

    watch(model.network, texts, seen, last=place)
    return found[0]


@dataclass(frozen=True, eq=False)
class Overview:
    """A map whose first levels come from `top`, the sums of the weights under each pixel of the level `finest`."""

    tiles: TileMap
    finest: int
    top: Float[Tensor, "rows columns"]

    def tile(self, level: int, row: int, column: int) -> Float[Tensor, "rows columns"]:
        """The same as the map's own tile."""
        if level > self.finest:
            return self.tiles.tile(level, row, column)
        rows, columns = self.tiles.shape(level)
        if not (0 <= row < rows and 0 <= column < columns):
            raise InputError(f"level {level} has {rows} x {columns} tiles, and none at row {row}, column {column}")
        factor, side = self.tiles.cell(level) // self.tiles.cell(self.finest), self.tiles.side
        part = self.top[_part(row, side * factor), _part(column, side * factor)]
        sums = torch.nn.functional.avg_pool2d(part[None], factor, ceil_mode=True, divisor_override=1)[0]
        view, cell = self.tiles.operator.view, self.tiles.cell(level)
        high, wide = (
            _covered(length, cell)[_part(at, side)] for length, at in ((view.queries, row), (view.keys, column))
        )
        return sums / (high[:, None] * wide)

    def received(self) -> Float[Tensor, " columns"]:
        """What a key receives from all queries together, the mean over the keys of each column of `top`."""
        return self.top.sum(0) / _covered(self.tiles.operator.view.keys, self.tiles.cell(self.finest))


def overview(tiles: TileMap, progress: Callable[[int, int], None] = lambda done, total: None) -> Overview:
    """One pass over the weights, band by band."""
    finest = min(SERVED, tiles.levels) - 1
    cell, view = tiles.cell(finest), tiles.operator.view
    rows, columns = (_covered(length, cell) for length in (view.queries, view.keys))
    step = cell * max(1, 2**22 // max(view.keys * cell, 1))
    starts = range(0, view.queries, step)
    bands = []
    for done, start in enumerate(starts):
        progress(done, len(starts))
        stop = min(start + step, view.queries)
        bands.append(tiles.operator.pooled(slice(start, stop), slice(0, view.keys), cell)[0, 0])
    return Overview(tiles, finest, torch.cat(bands) * rows[:, None] * columns)


def _covered(length: int, cell: int) -> Float[Tensor, " cells"]:
    """How many places each cell holds: the last may hold fewer."""
    counts = torch.full((-(-length // cell),), float(cell))
    counts[-1] = length - cell * (len(counts) - 1)
    return counts


def _part(place: int, size: int) -> slice:
    return slice(place * size, (place + 1) * size)
