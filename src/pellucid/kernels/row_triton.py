"""The kernel of `row_product`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Rows of the matrix per program, numbers of a row per step, warps: the fastest is measured once for each shape.
TILES = [(1, 2048, 4), (2, 1024, 4), (2, 2048, 4), (4, 1024, 4), (4, 2048, 8), (8, 512, 4), (8, 1024, 8), (16, 512, 8)]


def launch(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    rows, width = weight.shape
    product = torch.empty(*x.shape[:-1], rows, dtype=x.dtype, device=x.device)

    def grid(tile: dict[str, int]) -> tuple[int]:
        return (triton.cdiv(rows, tile["ROWS"]),)

    _row_kernel[grid](x.contiguous(), weight, x if bias is None else bias, product, rows, width, bias is not None)
    return product


@triton.autotune(
    configs=[triton.Config({"ROWS": rows, "STEP": step}, num_warps=warps) for rows, step, warps in TILES],
    key=["rows", "width"],
)
@triton.jit
def _row_kernel(x, weight, bias, out, rows, width, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, STEP: tl.constexpr):
    """out[r] = sum over k of weight[r, k] x[k] + bias[r], in float32, for ROWS rows."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = row < rows
    sums = tl.zeros((ROWS, STEP), tl.float32)
    for start in range(0, width, STEP):
        place = start + tl.arange(0, STEP)
        values = tl.load(x + place, mask=place < width, other=0.0).to(tl.float32)
        known = inside[:, None] & (place < width)[None, :]
        tile = tl.load(weight + row[:, None].to(tl.int64) * width + place[None, :], mask=known, other=0.0)
        sums += tile.to(tl.float32) * values[None, :]
    product = tl.sum(sums, 1)
    if HAS_BIAS:
        product += tl.load(bias + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row, product, mask=inside)
