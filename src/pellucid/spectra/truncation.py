"""A head's matrix at a smaller rank: the nearest matrix of that rank, and what is no longer like attention in it.

Eckart and Young: of all matrices of rank r, the sum of the r largest singular triples is nearest to A, and what it
misses is the energy of the others. Weights of such a matrix may be negative, lie under the mask, or not sum to one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.operator import AttentionOperator
from pellucid.spectra.krylov import Krylov

# Columns of the basis, and how many singular triples of it are given: the last of a Krylov space have not settled.
BASIS, GIVEN = 256, 128
_CELLS = 2**22  # weights that exist at once
# What rounding can make of a weight, and of the share of energy that is missed.
_EXACT, _FREE = (1e-12, 1e-12), (1e-6, 1e-5)

Rows = Callable[[slice], Float[Tensor, "rows key"]]


@dataclass(frozen=True, eq=False)
class Factors:
    """Singular triples of a matrix of this energy, the largest first.

    exact: all of the matrix's own. Else they are those of its projection on a basis: no truncation is nearer to the
      matrix among those whose columns lie in that basis, and what one misses is still known exactly.
    """

    left: Float64[Tensor, "query rank"]
    values: Float64[Tensor, " rank"]
    right: Float64[Tensor, "key rank"]
    energy: float
    exact: bool

    @property
    def ranks(self) -> int:
        return len(self.values)

    def error(self, rank: int) -> float:
        """||A - A_r|| / ||A||, from the energy that is left out."""
        if self.exact:
            # Summed by itself: 1 - what is kept would lose everything below 1e-8.
            missed = float(self.values[rank:].square().sum())
        else:
            missed = self.energy - float(self.values[:rank].square().sum())
        return math.sqrt(max(missed, 0.0) / self.energy)

    def rows(self, rank: int, part: slice = slice(None)) -> Float64[Tensor, "rows key"]:
        """Some rows of the matrix of this rank."""
        return (self.left[part, :rank] * self.values[:rank]) @ self.right[:, :rank].T

    def apply(self, rank: int, value: Float[Tensor, "key width"]) -> Float64[Tensor, "query width"]:
        """The product with the matrix of this rank, which is never written down."""
        return (self.left[:, :rank] * self.values[:rank]) @ (self.right[:, :rank].T @ value.double().cpu())


@torch.no_grad()
def factors(weights: Float[Tensor, "query key"]) -> Factors:
    """All singular triples of a matrix, in float64."""
    left, values, right = torch.linalg.svd(weights.double().cpu(), full_matrices=False)
    return _made(left, values, right.T, float(values.square().sum()), exact=True)


@torch.no_grad()
def free_factors(
    operator: AttentionOperator, *, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> Factors:
    """The largest singular triples of one head from products with it alone."""
    generator = torch.Generator(operator.query.device).manual_seed(seed)
    krylov = Krylov(operator, block=32, budget=BASIS, generator=generator)
    while not krylov.exhausted:
        progress(krylov.size, krylov.budget)
        krylov.extend()
    left, values, right = (part[..., :GIVEN].double().cpu() for part in krylov.triples())
    return _made(left, values, right, float(operator.energy()), exact=False)


def _made(left: Tensor, values: Tensor, right: Tensor, energy: float, *, exact: bool) -> Factors:
    if energy == 0:
        raise InputError("every query of this head may look at nothing, so it has no spectrum: check the mask")
    return Factors(left, values, right, energy, exact)


@dataclass(frozen=True)
class Truncation:
    """What became of a matrix at a rank.

    error: ||A - A_r|| / ||A|| from the energy left out; again: the same from the two matrices, cell by cell.
    negative: how many weights are below zero; lowest: the lowest of all.
    appeared: how many weights are not zero where the matrix has exactly zero, as under its mask; appeared_share: their
      share of the absolute sum. row_sum: the largest change of a row's sum.
    """

    rank: int
    error: float
    again: float
    verified: bool
    negative: int
    lowest: float
    appeared: int
    appeared_share: float
    row_sum: float


@torch.no_grad()
def truncate(found: Factors, rank: int, rows: Rows) -> Truncation:
    """rows: some rows of the whole matrix, which is compared a band at a time."""
    if not 1 <= rank <= found.ranks:
        raise InputError(f"rank {rank} was asked for, but 1 to {found.ranks} are known here")
    floor, blur = _EXACT if found.exact else _FREE
    queries, keys = found.left.shape[0], found.right.shape[0]
    missed = total = within = row_sum = 0.0
    negative = appeared = 0
    lowest = math.inf
    for start in range(0, queries, step := max(_CELLS // keys, 1)):
        part = slice(start, min(start + step, queries))
        whole, near = rows(part).double().cpu(), found.rows(rank, part)
        new = (whole == 0) & (near.abs() > floor)
        missed += float((whole - near).square().sum())
        total += float(near.abs().sum())
        within += float(near[new].abs().sum())
        negative += int((near < -floor).sum())
        appeared += int(new.sum())
        lowest = min(lowest, float(near.min()))
        row_sum = max(row_sum, float((near - whole).sum(-1).abs().max()))
    error, again = found.error(rank), math.sqrt(missed / found.energy)
    verified = abs(error**2 - again**2) <= blur
    return Truncation(
        rank, error, again, verified, negative, lowest, appeared, within / total if total else 0.0, row_sum
    )
