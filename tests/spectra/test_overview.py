"""The upper levels of a map from one pass are those of the map itself."""

from __future__ import annotations

import pytest
import torch

from pellucid.errors import InputError
from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import DenseOperator
from pellucid.kernels.view import View
from pellucid.spectra.overview import Overview, overview
from pellucid.spectra.tiles import TileMap


def made(queries: int, keys: int, side: int) -> tuple[TileMap, Overview]:
    draw = torch.Generator().manual_seed(queries)
    query, key = (torch.randn(1, 1, length, 4, generator=draw) for length in (queries, keys))
    mask = Mask(prefix=0) if queries == keys else Mask()
    tiles = TileMap(DenseOperator(query, key, scale=0.5, view=View(queries, keys, query.device, mask=mask)), side)
    seen: list[tuple[int, int]] = []
    found = overview(tiles, lambda done, total: seen.append((done, total)))
    assert seen[0][0] == 0
    return tiles, found


@pytest.mark.parametrize(("queries", "keys"), [(64, 64), (67, 67), (130, 41), (8, 8), (1, 1)])
def test_every_tile_is_the_maps_own(queries: int, keys: int) -> None:
    tiles, found = made(queries, keys, 8)
    for level in range(tiles.levels):
        rows, columns = tiles.shape(level)
        for row in range(rows):
            for column in range(columns):
                own = tiles.tile(level, row, column).float()
                torch.testing.assert_close(found.tile(level, row, column).float(), own)


def test_what_keys_receive_adds_up_to_the_queries() -> None:
    tiles, found = made(67, 67, 8)
    cell = tiles.cell(found.finest)
    counts = torch.tensor([min(cell, 67 - start) for start in range(0, 67, cell)])
    assert float((found.received() * counts).sum()) == pytest.approx(67, rel=1e-5)


def test_a_tile_that_is_not_there() -> None:
    _, found = made(64, 64, 8)
    with pytest.raises(InputError, match="none at row 4"):
        found.tile(2, 4, 0)
