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

    The last count takes all smaller ones too. error: the standard error of the entropy-based rank; 0 where it is exact.
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
    signs = torch.randint(0, 2, (operator.view.keys, probes), generator=generator) * 2 - 1
    nodes, weights = quadrature(
        lambda x: multiply_transposed(operator, multiply(operator, x)),
        signs.to(operator.query.device, exact),
        min(steps, size),
    )
    sigma = nodes.clamp(min=0).sqrt()
    # A'A of a wide A has keys - queries zeros too many: they add nothing to the sums, and are taken off the counts.
    counts, edges = _histogram(sigma.flatten(), (weights * operator.view.keys / probes).flatten(), float(sigma.max()))
    surplus = operator.view.keys - size
    counts = (*counts[:-1], max(counts[-1] - surplus, 0.0))
    total = (weights * sigma).sum(-1) * operator.view.keys
    logs = (weights * torch.special.entr(sigma)).sum(-1) * operator.view.keys
    rank = _entropy_rank(total.mean(), logs.mean())
    left_out = [_entropy_rank(_without(total, i), _without(logs, i)) for i in range(probes)]
    jackknife = torch.tensor(left_out, dtype=torch.float64)
    error = math.sqrt((probes - 1) / probes * float((jackknife - jackknife.mean()).square().sum()))
    return Density(edges, counts, rank, error)


def _entropy_rank(total: Tensor, entropy: Tensor) -> float:
    """exp(H) of p = s / S, where H = ln S - sum s ln s / S."""
    return float((total.log() + entropy / total).exp())


def _without(values: Tensor, index: int) -> Tensor:
    return (values.sum() - values[index]) / (len(values) - 1)


def quadrature(
    square: Callable[[Block], Block], start: Block, steps: int
) -> tuple[Float64[Tensor, "probes nodes"], Float64[Tensor, "probes nodes"]]:
    """Nodes and weights of each column: Lanczos on a positive semidefinite `square` for all columns at once.

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
    matrices = torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)
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
