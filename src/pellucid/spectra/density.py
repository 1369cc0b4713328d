"""How the singular values are spread, by stochastic Lanczos quadrature: random vectors in place of the whole spectrum.

For a random vector v with independent signs, v'f(A'A)v has the trace of f(A'A) as its mean. A few Lanczos steps turn
each v into nodes (squared singular values) and weights that integrate any smooth f; the draws' spread gives the error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from pellucid.kernels.operator import AttentionOperator
from pellucid.spectra.krylov import Block, multiply, multiply_transposed

DECADES, BINS = 6, 24


@dataclass(frozen=True)
class Density:
    """Counts of singular values between edges, which run from the largest down by `DECADES` powers of ten.

    The last count takes all smaller ones too. error: of the entropy-based rank, that of the draws and that of the
    quadrature together; 0 where it is exact.
    """

    edges: tuple[float, ...]
    counts: tuple[float, ...]
    entropy_rank: float
    error: float

    def to_json(self) -> dict[str, Any]:
        return {
            "edges": list(self.edges),
            "counts": list(self.counts),
            "entropy_rank": self.entropy_rank,
            "error": self.error,
        }


def density_of_values(values: Float64[Tensor, " size"]) -> Density:
    from pellucid.spectra.rank import entropy_rank

    counts, edges = _histogram(values, torch.ones_like(values), float(values[0]))
    return Density(edges, counts, entropy_rank(values), 0.0)


def lanczos_density(
    operator: AttentionOperator, generator: torch.Generator, *, steps: int = 24, probes: int = 16
) -> Density:
    """Of the singular values of A, as many as it has columns or rows, whichever is less."""
    size = min(operator.view.queries, operator.view.keys)
    exact = torch.promote_types(operator.query.dtype, torch.float32)
    signs = torch.randint(0, 2, (size, probes), generator=generator, device=operator.query.device) * 2 - 1
    matrices = tridiagonals(_small_square(operator), signs.to(exact), min(steps, size))
    nodes, weights = quadrature(matrices)
    sigma = nodes.clamp(min=0).sqrt()
    counts, edges = _histogram(sigma.flatten(), (weights * size / probes).flatten(), float(sigma.max()))
    total, logs = _sums(nodes, weights, size)
    rank = _entropy_rank(total.mean(), logs.mean())
    left_out = [_entropy_rank(_without(total, i), _without(logs, i)) for i in range(probes)]
    jackknife = torch.tensor(left_out, dtype=torch.float64)
    drawn = (probes - 1) / probes * float((jackknife - jackknife.mean()).square().sum())
    # The root is steep at zero, where the nodes of few steps are sparse: half of them tell by how much.
    half = (matrices.shape[-1] + 1) // 2
    coarse = _entropy_rank(*(sums.mean() for sums in _sums(*quadrature(matrices[:, :half, :half]), size)))
    return Density(edges, counts, rank, math.hypot(math.sqrt(drawn), rank - coarse))


def _small_square(operator: AttentionOperator) -> Callable[[Block], Block]:
    """A A' or A'A, whichever is smaller: the other has zeros that are no singular values of A."""
    if operator.view.queries < operator.view.keys:
        return lambda y: multiply(operator, multiply_transposed(operator, y))
    return lambda x: multiply_transposed(operator, multiply(operator, x))


def _sums(nodes: Float64[Tensor, "probes nodes"], weights: Float64[Tensor, "probes nodes"], size: int) -> list[Tensor]:
    """Of the singular values, and of -s ln s, as each probe sees them."""
    sigma = nodes.clamp(min=0).sqrt()
    return [(weights * each).sum(-1) * size for each in (sigma, torch.special.entr(sigma))]


def _entropy_rank(total: Tensor, entropy: Tensor) -> float:
    """exp(H) of p = s / S, where H = ln S - sum s ln s / S."""
    return float((total.log() + entropy / total).exp())


def _without(values: Tensor, index: int) -> Tensor:
    return (values.sum() - values[index]) / (len(values) - 1)


def tridiagonals(square: Callable[[Block], Block], start: Block, steps: int) -> Float64[Tensor, "columns nodes nodes"]:
    """What Lanczos makes of a positive semidefinite `square`, from all columns at once.

    Each column is reorthogonalised against its own past.
    """
    basis = start.new_empty(steps, *start.shape)
    basis[0] = start / torch.linalg.vector_norm(start, dim=0)
    diagonal = torch.zeros(start.shape[1], steps, dtype=torch.float64)
    beside = torch.zeros(start.shape[1], steps - 1, dtype=torch.float64)
    for step in range(steps):
        image = square(basis[step])
        diagonal[:, step] = (basis[step] * image).double().sum(0).cpu()
        if step + 1 == steps:
            break
        image = _reorthogonalized(image, basis[: step + 1])
        norms = torch.linalg.vector_norm(image.double(), dim=0)
        # A column that has found its whole space goes on with zeros, which get no weight.
        found = norms <= 1e-6 * diagonal[:, 0].to(norms).abs()
        beside[:, step] = norms.masked_fill(found, 0).cpu()
        basis[step + 1] = image / norms.masked_fill(found, torch.inf).to(image)
    return torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)


def quadrature(
    matrices: Float64[Tensor, "probes nodes nodes"],
) -> tuple[Float64[Tensor, "probes nodes"], Float64[Tensor, "probes nodes"]]:
    """The nodes and weights of each tridiagonal matrix."""
    nodes, vectors = torch.linalg.eigh(matrices)
    return nodes, vectors[:, 0].square()


def _reorthogonalized(image: Block, basis: Tensor) -> Block:
    for _ in range(2):
        overlaps = torch.einsum("skp,kp->sp", basis, image)
        image = image - torch.einsum("skp,sp->kp", basis, overlaps)
    return image


def _histogram(values: Tensor, weights: Tensor, largest: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
    edges = [largest * 10 ** (-DECADES * step / BINS) for step in range(BINS + 1)]
    below = (values.clamp(min=largest * 10 ** (-DECADES)) / largest).log10() * (-BINS / DECADES)
    counts = torch.zeros(BINS, dtype=torch.float64)
    counts.index_add_(0, below.floor().long().clamp(0, BINS - 1), weights.double())
    return tuple(counts.tolist()), tuple(edges)
