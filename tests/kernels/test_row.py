"""One row times a matrix: the op everywhere, and its kernel through Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys

import torch
from torch.nn import functional

from pellucid.kernels.row import row_product

KERNEL = """
import torch
from pellucid.kernels import row_triton
from torch.nn import functional
for rows, width, biased in ((300, 200, True), (64, 2048, False), (37, 3000, True)):
    x, weight, bias = torch.randn(1, 1, width), torch.randn(rows, width), torch.randn(rows)
    wanted = functional.linear(x.double(), weight.double(), bias.double() if biased else None)
    for height, step, _ in row_triton.TILES:
        out = torch.full((1, 1, rows), torch.nan)
        grid = (-(-rows // height),)
        row_triton._row_kernel.fn[grid](x, weight, bias if biased else x, out, rows, width, biased, height, step)
        error = float((out - wanted).norm() / wanted.norm())
        assert error < 1e-6, (rows, width, height, step, error)
print("right")
"""


def test_the_op_equals_a_linear_map_of_any_number_of_rows():
    weight, bias = torch.randn(5, 7), torch.randn(5)
    for rows in (1, 3):
        x = torch.randn(rows, 1, 7)
        assert torch.equal(row_product(x, weight, bias), functional.linear(x, weight, bias))
    assert torch.equal(row_product(x, weight), functional.linear(x, weight))


def test_the_kernel_is_right_with_every_tile():
    """In a process of its own: Triton decides when it is imported whether it interprets."""
    ran = subprocess.run(
        [sys.executable, "-c", KERNEL], env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True
    )
    assert ran.stdout.strip() == "right", ran.stderr
