"""The rank inequalities of note 000, evaluated on matrices: an interval from the operands, and what was measured.

product  max(0, rank A + rank B - n) <= rank(A B) <= min(rank A, rank B), where n is the inner dimension (Sylvester)
sum      |rank A - rank B| <= rank(A + B) <= min(rank A + rank B, rows, columns)

They are theorems about exact ranks. Numerical ranks can step outside where singular values run into the tolerance
without a gap, so each result also says what the same inequalities for singular values leave open:
  s_{i+j-1}(A B) <= s_i(A) s_j(B) and s_{i+j-n}(A B) >= s_i(A) s_j(B);
  s_{i+j-1}(A + B) <= s_i(A) + s_j(B), and the same for A = (A + B) - B.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Shaped
from torch import Tensor

from pellucid.errors import InputError
from pellucid.spectra.rank import (
    Values,
    arithmetic,
    check_matrix,
    numerical_rank,
    singular_values,
    singular_values_of_product,
    tolerance,
)


@dataclass(frozen=True)
class RankBound:
    """One inequality: the numerical ranks of both operands, the interval that they give, and the rank of the result.

    inner: Sylvester's n, for a product.
    least, most: the ranks that the result can be given by tolerances between those of the operands carried over to the
      result, and the smallest singular value that the operands guarantee.
    """

    law: Literal["product", "sum"]
    left: int
    right: int
    inner: int | None
    low: int
    high: int
    measured: int
    least: int
    most: int

    @property
    def holds(self) -> bool:
        """Whether the numerical rank lies in the interval."""
        return self.low <= self.measured <= self.high

    @property
    def consistent(self) -> bool:
        """Whether some tolerance puts it there. That is a theorem: False means a wrong number somewhere."""
        return self.least <= self.high and self.most >= self.low

    def to_json(self) -> dict[str, Any]:
        return {
            "law": self.law,
            "left": self.left,
            "right": self.right,
            "inner": self.inner,
            "interval": [self.low, self.high],
            "measured": self.measured,
            "between": [self.least, self.most],
            "holds": self.holds,
            "consistent": self.consistent,
        }


@dataclass(frozen=True)
class Operand:
    """A matrix as an inequality sees it: its singular values and, by a tolerance, its rank."""

    values: Values
    tolerance: float
    rank: int

    @staticmethod
    def of(matrix: Shaped[Tensor, "rows columns"], dtype: torch.dtype) -> Operand:
        values, shape = singular_values(matrix), (matrix.shape[0], matrix.shape[1])
        return Operand(values, tolerance(values, shape, dtype), numerical_rank(values, shape, dtype))

    @property
    def largest(self) -> float:
        return float(self.values[0])

    @property
    def smallest_counted(self) -> float:
        return float(self.values[self.rank - 1]) if self.rank else 0.0

    @property
    def largest_left_out(self) -> float:
        return float(self.values[self.rank]) if self.rank < len(self.values) else 0.0


def product_bound(a: Shaped[Tensor, "..."], b: Shaped[Tensor, "..."], *, dtype: torch.dtype | None = None) -> RankBound:
    """The interval for rank(A B), and the numerical rank of A B, multiplied in float64.

    dtype: the arithmetic that made the operands, whose rounding sets the tolerances; the coarser one unless given.
    """
    dtype = _coarser(check_matrix(a, "the left factor"), check_matrix(b, "the right factor"), dtype)
    values, rounding = singular_values_of_product(a, b)
    left, right, inner = Operand.of(a, dtype), Operand.of(b, dtype), a.shape[1]
    above = max(left.tolerance * right.largest, left.largest * right.tolerance) + rounding
    below = left.smallest_counted * right.smallest_counted - rounding
    shape = (a.shape[0], b.shape[1])
    return RankBound(
        "product",
        left.rank,
        right.rank,
        inner,
        max(0, left.rank + right.rank - inner),
        min(left.rank, right.rank),
        numerical_rank(values, shape, dtype, floor=rounding),
        int((values > above).sum()),
        _at_most(values, below, shape),
    )


def sum_bound(a: Shaped[Tensor, "..."], b: Shaped[Tensor, "..."], *, dtype: torch.dtype | None = None) -> RankBound:
    """The interval for rank(A + B), and the numerical rank of A + B, added in float64. dtype: as in `product_bound`."""
    dtype = _coarser(check_matrix(a, "the left term"), check_matrix(b, "the right term"), dtype)
    if a.shape != b.shape:
        raise InputError(f"the terms {list(a.shape)} and {list(b.shape)} have no sum: give two of the same shape")
    total = a.detach().double() + b.detach().double()
    rows, columns = total.shape
    left, right = Operand.of(a, dtype), Operand.of(b, dtype)
    values = singular_values(total)
    rounding = 4 * max(rows, columns) * torch.finfo(torch.float64).eps * float(left.values.norm() + right.values.norm())
    more, less = (left, right) if left.rank >= right.rank else (right, left)
    return RankBound(
        "sum",
        left.rank,
        right.rank,
        None,
        abs(left.rank - right.rank),
        min(left.rank + right.rank, rows, columns),
        numerical_rank(values, (rows, columns), dtype, floor=rounding),
        int((values > left.tolerance + right.tolerance + rounding).sum()),
        _at_most(values, more.smallest_counted - less.largest_left_out - rounding, (rows, columns)),
    )


def _at_most(values: Values, threshold: float, shape: tuple[int, int]) -> int:
    """A threshold at or under zero says nothing: the rank may be full."""
    return int((values > threshold).sum()) if threshold > 0 else min(shape)


def _coarser(a: Tensor, b: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return max((arithmetic(a, dtype), arithmetic(b, dtype)), key=lambda each: torch.finfo(each).eps)
