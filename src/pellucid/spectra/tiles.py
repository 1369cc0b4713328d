"""A zoomable map of one head at any length: tiles on demand, from queries, keys and log-sum-exps.

Level 0 is one image of the whole matrix; each level has four times the tiles of the one above; the last shows every
weight. A pixel is the mean of the weights that it covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Float
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.operator import AttentionOperator


@dataclass(frozen=True, eq=False)
class TileMap:
    """The tiles of an operator of one head, each `side` pixels high and wide, or less at the edges."""

    operator: AttentionOperator
    side: int = 256

    @cached_property
    def levels(self) -> int:
        """How many levels there are."""
        longest = max(self.operator.view.queries, self.operator.view.keys)
        return max((longest - 1) // self.side, 0).bit_length() + 1

    def cell(self, level: int) -> int:
        """How many weights a pixel of a level covers, along one side."""
        if not 0 <= level < self.levels:
            raise InputError(f"this map has the levels 0 to {self.levels - 1}, not {level}")
        return 2 ** (self.levels - 1 - level)

    def shape(self, level: int) -> tuple[int, int]:
        """How many rows and columns of tiles a level has."""
        covered = self.cell(level) * self.side
        return -(-self.operator.view.queries // covered), -(-self.operator.view.keys // covered)

    def tile(self, level: int, row: int, column: int) -> Float[Tensor, "rows columns"]:
        cell, (rows, columns) = self.cell(level), self.shape(level)
        if not (0 <= row < rows and 0 <= column < columns):
            raise InputError(f"level {level} has {rows} x {columns} tiles, and none at row {row}, column {column}")
        own_rows, own_columns = (
            slice(place * self.side * cell, min((place + 1) * self.side * cell, length))
            for place, length in ((row, self.operator.view.queries), (column, self.operator.view.keys))
        )
        return self.operator.pooled(own_rows, own_columns, cell)[0, 0]
