"""The zoomable map: every tile is that part of the pooled matrix."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.mask import Mask
from pellucid.spectra.tiles import TileMap
from tests.spectra.heads import head


def means(matrix: Tensor, cell: int) -> Tensor:
    bands = [band.mean(-2, keepdim=True) for band in matrix.split(cell, -2)]
    return torch.cat([part.mean(-1, keepdim=True) for part in torch.cat(bands, -2).split(cell, -1)], -1)


@pytest.mark.parametrize(("length", "levels"), [(1, 1), (256, 1), (257, 2), (512, 2), (513, 3), (1000, 3), (1025, 4)])
def test_how_many_levels(length, levels):
    assert TileMap(head(length, 3)).levels == levels
    assert TileMap(head(3, length)).levels == levels


@pytest.mark.parametrize("shape", [(70, 70), (70, 33), (9, 130), (1, 1), (16, 16), (17, 16)])
def test_tiles_are_the_pooled_matrix_at_every_level(shape):
    operator = head(*shape, mask=Mask.causal(), scale=2.0, dtype=torch.float64)
    matrix = operator.tile(slice(None), slice(None))[0, 0]
    tiles = TileMap(operator, side=16)
    for level in range(tiles.levels):
        rows, columns = tiles.shape(level)
        picture = torch.cat(
            [torch.cat([tiles.tile(level, row, column) for column in range(columns)], 1) for row in range(rows)]
        )
        torch.testing.assert_close(picture, means(matrix, tiles.cell(level)), rtol=1e-12, atol=1e-15)
        assert all(tiles.tile(level, 0, column).shape[1] <= 16 for column in range(columns))
    assert tiles.shape(0) == (1, 1)
    assert tiles.cell(tiles.levels - 1) == 1


def test_each_level_is_four_times_finer():
    tiles = TileMap(head(1024), side=64)
    assert [tiles.shape(level) for level in range(tiles.levels)] == [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16)]
    assert [tiles.cell(level) for level in range(tiles.levels)] == [16, 8, 4, 2, 1]


def test_the_first_image_of_a_long_head_is_made_of_small_tiles(monkeypatch):
    operator = head(3000, width=4)
    made = []
    tile = type(operator).tile

    def counted(self, rows, columns):
        made.append((rows.stop - rows.start) * (columns.stop - columns.start))
        return tile(self, rows, columns)

    monkeypatch.setattr(type(operator), "tile", counted)
    image = TileMap(operator).tile(0, 0, 0)
    assert image.shape == (188, 188)
    assert max(made) <= 2**22
    assert float(image.mean()) == pytest.approx(1 / 3000, rel=2e-2)


@pytest.mark.parametrize("level", [-1, 3])
def test_refuses_a_level_that_is_not_there(level):
    with pytest.raises(InputError, match="levels 0 to 2"):
        TileMap(head(50), side=16).tile(level, 0, 0)


@pytest.mark.parametrize(("row", "column"), [(-1, 0), (0, -1), (2, 0), (0, 2)])
def test_refuses_a_tile_that_is_not_there(row, column):
    with pytest.raises(InputError, match="level 1 has 2 x 2 tiles"):
        TileMap(head(50), side=16).tile(1, row, column)
