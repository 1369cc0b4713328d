"""Singular values from products alone: a block Krylov space with full reorthogonalisation.

Starting from random columns V, the left basis is built from A V, A A' A V, ... and the right one from A' of the left.
The left basis U is orthonormal and A'U is known, which is all that `bracket` asks for; the singular values of U'A are
the best that this space can give. A step costs one product with A and one with A'.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from pellucid.kernels.operator import AttentionOperator
from pellucid.spectra.bracket import Coupling

Block = Float[Tensor, "rows columns"]
Basis = Float[Tensor, "rows basis"]


class Krylov:
    """Grows by one block of columns at a time, up to `budget` columns."""

    def __init__(self, operator: AttentionOperator, *, block: int, budget: int, generator: torch.Generator) -> None:
        self.operator, self.generator = operator, generator
        queries, keys = operator.view.queries, operator.view.keys
        self.budget = min(budget, queries, keys)
        self.block = min(block, self.budget)
        exact = torch.promote_types(operator.query.dtype, torch.float32)
        self._left = torch.empty(queries, self.budget, dtype=exact, device=operator.query.device)
        self._right = torch.empty(keys, min(self.budget + self.block, keys), dtype=exact, device=operator.query.device)
        self._small = torch.zeros(self.budget, self._right.shape[1], dtype=torch.float64)
        self.size = self._right_size = self._multiplied = 0
        self._append(self._right[:, :0], self.block)

    @property
    def exhausted(self) -> bool:
        """Whether the basis is full, or holds all that A can reach, or has no room for the images of more."""
        return self._room == 0 or self._multiplied == self._right_size

    def extend(self) -> None:
        """One step."""
        last = self._waiting[:, : self._room]
        self._multiplied += last.shape[1]
        new = orthonormal(multiply(self.operator, last), self.left)
        image = multiply_transposed(self.operator, new) if new.shape[1] else self._right[:, :0]
        self._append(image, min(self.block, self._right.shape[1] - self._right_size))
        rows = slice(self.size, self.size + new.shape[1])
        self._left[:, rows] = new
        self._small[rows, : self._right_size] = (self.right.T @ image).T.double().cpu()
        self.size += new.shape[1]

    def coupling(self) -> tuple[Float64[Tensor, " captured"], Coupling]:
        """The singular values of U'A, and by how much A A' couples the vector of each to what is outside of the basis.

        Only the columns that still wait to be multiplied reach outside, so one product tells.
        """
        small = self._small[: self.size, : self._right_size]
        energies, vectors = torch.linalg.eigh(small @ small.T)
        outside = project_out(project_out(multiply(self.operator, self._waiting), self.left), self.left)
        gram, waiting = _gram(outside), small[:, self._multiplied :].T
        shares = waiting @ vectors.flip(1)
        norms = (shares * (gram @ shares)).sum(0).clamp(min=0).sqrt()
        scales, directions = torch.linalg.eigh(gram)
        largest = float(torch.linalg.matrix_norm(scales.clamp(min=0).sqrt()[:, None] * (directions.T @ waiting), 2))
        return energies.clamp(min=0).sqrt().flip(0), Coupling(norms, largest, len(gram))

    @property
    def left(self) -> Block:
        return self._left[:, : self.size]

    @property
    def right(self) -> Block:
        return self._right[:, : self._right_size]

    def values(self) -> Float64[Tensor, " captured"]:
        """The singular values of U'A, the largest first: never above those of A."""
        small = self._small[: self.size, : self._right_size]
        return torch.linalg.eigvalsh(small @ small.T).clamp(min=0).sqrt().flip(0)

    def triples(
        self,
    ) -> tuple[Float[Tensor, "query captured"], Float64[Tensor, " captured"], Float[Tensor, "key captured"]]:
        """The singular triples of UU'A: left vectors, values and right vectors, the largest first."""
        left, values, right = torch.linalg.svd(self._small[: self.size, : self._right_size], full_matrices=False)
        return self.left @ left.to(self.left), values, self.right @ right.T.to(self.right)

    @property
    def _room(self) -> int:
        """How many columns may be multiplied now. The right basis takes all of their images: none may be cut off."""
        left, right = self.budget - self.size, self._right.shape[1] - self._right_size
        return left if self._right.shape[1] == self._right.shape[0] else min(left, right)

    @property
    def _waiting(self) -> Block:
        return self._right[:, self._multiplied : self._right_size]

    def _append(self, image: Block, wanted: int) -> None:
        """Append the directions of `image` to the right basis, and random ones where there are fewer than wanted.

        Without the random ones, a Krylov space holds an eigenvalue at most once per column that it started from.
        """
        new = orthonormal(image, self.right)[:, :wanted] if image.shape[1] else image
        while new.shape[1] < wanted:
            shape = (self._right.shape[0], wanted - new.shape[1])
            draw = torch.randn(shape, generator=self.generator, device=self._right.device).to(self._right)
            new = torch.cat((new, orthonormal(draw, torch.cat((self.right, new), 1))), 1)
        self._right[:, self._right_size : self._right_size + wanted] = new
        self._right_size += wanted


def multiply(operator: AttentionOperator, x: Float[Tensor, "key columns"]) -> Float[Tensor, "query columns"]:
    return operator.apply(x[None, None])[0, 0]


def multiply_transposed(operator: AttentionOperator, y: Float[Tensor, "query columns"]) -> Float[Tensor, "key columns"]:
    return operator.apply_transposed(y[None, None])[0, 0]


def orthonormal(block: Block, basis: Basis) -> Float[Tensor, "rows added"]:
    """An orthonormal basis of what a block adds to a basis: projected twice, then whitened twice by its Gram matrix.

    Directions that rounding could have made are left out, so there may be fewer columns.
    """
    least = 50 * torch.finfo(block.dtype).eps * float(torch.linalg.vector_norm(block, dim=0).max())
    block = project_out(project_out(block, basis), basis)
    for smallest in (least, 0.5):
        energies, directions = torch.linalg.eigh(_gram(block))
        kept = energies > smallest**2
        block = block @ (directions[:, kept] * energies[kept].rsqrt()).to(block)
        if smallest == least:
            block = project_out(block, basis)
    return block


def project_out(block: Block, basis: Basis) -> Block:
    return block if basis.shape[1] == 0 else block - basis @ (basis.T @ block)


def _gram(block: Block, rows: int = 2**16) -> Float64[Tensor, "columns columns"]:
    """In float64, some rows at a time, on the CPU, where small eigenproblems are fastest."""
    parts = (block[start : start + rows].double() for start in range(0, block.shape[0], rows))
    return sum((part.T @ part for part in parts), start=block.new_zeros(1, dtype=torch.float64)).cpu()
