"""Four meanings of rank, and the distance to rank one, of a matrix or of its singular values.

numerical  singular values that rounding cannot have made: those above max(shape) eps s1
stable     energy / s1^2, where energy = sum s^2 is the squared Frobenius norm
entropy    exp of the Shannon entropy of s / sum s (Roy and Vetterli 2007)
effective  at tau: the fewest singular values that hold the share tau of the energy

All of them lie between 1 and min(shape), except that a matrix of zeros has rank 0 in every meaning and is at distance 0
from rank one. Everything is computed in float64. A numerical rank is not the algebraic one: a triangular matrix without
zeros on its diagonal is invertible, however small its last singular values are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Shaped
from torch import Tensor

from pellucid.errors import InputError

TAUS = (0.9, 0.95)
Values = Float64[Tensor, " values"]


@dataclass(frozen=True)
class Ranks:
    """The ranks of one matrix. `dtype` is the arithmetic that the numerical rank allows for."""

    shape: tuple[int, int]
    dtype: str
    energy: float
    numerical: int
    stable: float
    entropy: float
    effective: tuple[tuple[float, int], ...]
    distance_to_rank_one: float

    def at(self, tau: float) -> int:
        """The effective rank at one of the shares that were asked for."""
        found = dict(self.effective)
        if tau not in found:
            raise InputError(f"the effective rank at {tau} was not measured, only at {list(found)}: pass it as tau")
        return found[tau]

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "dtype": self.dtype,
            "energy": self.energy,
            "numerical_rank": self.numerical,
            "stable_rank": self.stable,
            "entropy_rank": self.entropy,
            "effective_rank": {str(tau): rank for tau, rank in self.effective},
            "distance_to_rank_one": self.distance_to_rank_one,
        }


def ranks(
    matrix: Shaped[Tensor, "..."], tau: Sequence[float] = TAUS, *, dtype: torch.dtype | None = None, floor: float = 0.0
) -> Ranks:
    """All ranks of a matrix.

    dtype: the arithmetic that the matrix was computed in; the matrix's own unless given.
    floor: see `numerical_rank`.
    """
    values = singular_values(matrix)
    return ranks_of(values, (matrix.shape[0], matrix.shape[1]), arithmetic(matrix, dtype), tau, floor=floor)


def ranks_of(
    values: Shaped[Tensor, "..."],
    shape: tuple[int, int],
    dtype: torch.dtype,
    tau: Sequence[float] = TAUS,
    *,
    floor: float = 0.0,
) -> Ranks:
    """All ranks of the matrix of this shape that has these singular values (those left out are zero)."""
    s = _descending(values, "singular values")
    return Ranks(
        shape,
        str(dtype).removeprefix("torch."),
        float(s.square().sum()),
        numerical_rank(s, shape, dtype, floor=floor),
        stable_rank(s),
        entropy_rank(s),
        tuple((share, effective_rank(_relative(s).square(), share)) for share in tau),
        distance_to_rank_one(s),
    )


def singular_values(matrix: Shaped[Tensor, "..."]) -> Values:
    """In float64, the largest first."""
    whole = check_matrix(matrix).double()
    # LAPACK takes several times as long for a wide matrix as for its transpose.
    return torch.linalg.svdvals(whole.T if whole.shape[0] < whole.shape[1] else whole)


def singular_values_of_product(a: Shaped[Tensor, "..."], b: Shaped[Tensor, "..."]) -> tuple[Values, float]:
    """Those of A B in float64, and how large rounding alone can make one of them.

    A tall A or a wide B is replaced by the small factor of its QR decomposition, so that a product of two thin matrices
    is never written down: for width x head_width factors the core is head_width x head_width.
    """
    left, right = check_matrix(a, "the left factor").double(), check_matrix(b, "the right factor").double()
    if left.shape[1] != right.shape[0]:
        raise InputError(
            f"the factors {list(left.shape)} and {list(right.shape)} have no product: the columns of the first are the "
            "rows of the second. Transpose one of them?"
        )
    rounding = 4 * max(*left.shape, *right.shape) * torch.finfo(torch.float64).eps * float(left.norm() * right.norm())
    if left.shape[0] > left.shape[1]:
        left = torch.linalg.qr(left, mode="r").R
    if right.shape[1] > right.shape[0]:
        right = torch.linalg.qr(right.T, mode="r").R.T
    return torch.linalg.svdvals(left @ right), rounding


def effective_rank(energies: Shaped[Tensor, "..."], tau: float) -> int:
    """The smallest j whose top-j share of the energy is at least tau; 0 where there is no energy.

    energies: squared singular values, the largest first.
    A share that misses tau by no more than the rounding of the sums counts as reaching it: ten equal energies have the
    effective rank 9 at 0.9 on every machine.
    """
    if not 0 < tau < 1:
        raise InputError(f"tau is a share of the energy strictly between 0 and 1, not {tau}: try 0.9")
    e = _relative(_descending(energies, "energies"))
    held = e.cumsum(0)
    slack = 4 * len(e) * torch.finfo(torch.float64).eps
    # The last sum is the total, so it always reaches.
    return int((held < tau * held[-1] * (1 - slack)).sum()) + 1 if held[-1] > 0 else 0


def stable_rank(values: Shaped[Tensor, "..."]) -> float:
    """The energy over that of the largest singular value: how many of that size would hold it all."""
    return float(_relative(_descending(values, "singular values")).square().sum())


def entropy_rank(values: Shaped[Tensor, "..."]) -> float:
    """exp(- sum p ln p) of p = s / sum s: how many equal singular values would have that entropy."""
    s = _relative(_descending(values, "singular values"))
    return float(torch.special.entr(s / s.sum()).sum().exp()) if s[0] > 0 else 0.0


def numerical_rank(
    values: Shaped[Tensor, "..."], shape: tuple[int, int], dtype: torch.dtype, *, floor: float = 0.0
) -> int:
    """How many singular values are above max(shape) eps s1, the usual bound on what rounding makes of a zero.

    floor: how large rounding alone can make a singular value where that is more, as in a product that cancelled.
    """
    s = _descending(values, "singular values")
    return int((s > max(floor, tolerance(s, shape, dtype))).sum())


def tolerance(values: Values, shape: tuple[int, int], dtype: torch.dtype) -> float:
    """max(shape) eps s1. Refused where it would hide every singular value, as in bfloat16 beyond 127 rows."""
    relative = max(shape) * torch.finfo(dtype).eps
    if relative >= 1:
        raise InputError(
            f"a {shape[0]} x {shape[1]} matrix of {dtype} has no numerical rank: rounding may reach {relative:.3g} "
            "times its largest singular value. Compute it in float32, or pass the dtype of the arithmetic that made it"
        )
    return relative * float(values[0])


def distance_to_rank_one(values: Shaped[Tensor, "..."]) -> float:
    """||X - s1 u1 v1'||_F / ||X||_F: 0 for rank one (and for zeros), close to 1 for many equal directions."""
    s = _relative(_descending(values, "singular values"))
    # The rest is summed by itself: 1 - s1^2 / energy would lose everything below 1e-8.
    return float((s[1:].square().sum() / s.square().sum()).sqrt()) if s[0] > 0 else 0.0


def distance_to_mean_row(matrix: Shaped[Tensor, "..."]) -> float:
    """||X - 1 mean'||_F / ||X||_F, the measure of Dong, Cordonnier and Loukas 2021: 0 where all rows are the same."""
    x = check_matrix(matrix).double()
    x = x / x.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    norm = float(x.norm())
    return float((x - x.mean(0)).norm()) / norm if norm > 0 else 0.0


def arithmetic(matrix: Tensor, dtype: torch.dtype | None = None) -> torch.dtype:
    """The dtype whose rounding counts: integers are exact, so theirs is that of the decomposition."""
    if dtype is not None and not dtype.is_floating_point:
        raise InputError(f"rounding has a floating-point dtype, not {dtype}: pass torch.float32 or torch.float64")
    return dtype or (matrix.dtype if matrix.is_floating_point() else torch.float64)


def check_matrix(matrix: Tensor, name: str = "the matrix") -> Tensor:
    """Itself, without its gradient, where it is a matrix of finite real numbers with at least one of them."""
    if matrix.dim() != 2 or matrix.is_complex():
        raise InputError(
            f"{name} must have two axes of real numbers, not {matrix.dtype} of shape {list(matrix.shape)}: "
            "for singular values use ranks_of, for a batch take one matrix at a time"
        )
    return _check_finite(matrix, name)


def _check_finite(x: Tensor, name: str) -> Tensor:
    if x.numel() == 0:
        raise InputError(f"{name} of shape {list(x.shape)} is empty: give at least one number")
    wrong = int((~x.isfinite()).sum())
    if wrong:
        raise InputError(
            f"{wrong} of the {x.numel()} numbers of {name} are NaN or infinite, so it has no rank: "
            "look where they come from, or take scores before their mask"
        )
    return x.detach()


def _descending(values: Tensor, name: str) -> Values:
    if values.dim() != 1 or values.is_complex():
        raise InputError(
            f"{name} must be real numbers along one axis, not {values.dtype} of shape {list(values.shape)}: "
            "for a matrix use ranks"
        )
    s = _check_finite(values, name).double()
    if float(s.min()) < 0 or bool((s[1:] > s[:-1]).any()):
        raise InputError(
            f"{name} must be at least 0, the largest first, but start {s[:4].tolist()} and end with {float(s[-1])}: "
            "clamp what rounding made negative, and sort"
        )
    return s


def _relative(values: Values) -> Values:
    """Over the largest, so that no square overflows or vanishes."""
    return values / values[0] if values[0] > 0 else values
