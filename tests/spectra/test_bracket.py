"""The bracket from arrays alone: whatever the basis, the truth lies inside."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pellucid.spectra.bracket import Captured, Coupling
from pellucid.spectra.rank import effective_rank

TAUS = (0.05, 0.5, 0.9, 0.95, 0.99)
# Cumulated float64 sums of up to forty energies.
SLACK = 1e-12


def power_law(size: int, draw: torch.Generator) -> Tensor:
    return torch.arange(1, size + 1, dtype=torch.float64) ** -(0.2 + 2 * random(draw))


def exponential(size: int, draw: torch.Generator) -> Tensor:
    return torch.exp(-torch.arange(size, dtype=torch.float64) * (0.02 + random(draw)))


def flat(size: int, draw: torch.Generator) -> Tensor:
    return torch.ones(size, dtype=torch.float64)


def clustered(size: int, draw: torch.Generator) -> Tensor:
    return 4.0 ** -torch.randint(0, 3, (size,), generator=draw).double()


def few_large(size: int, draw: torch.Generator) -> Tensor:
    values = torch.rand(size, generator=draw, dtype=torch.float64)
    values[: 1 + size // 8] *= 30
    return values


def zeros(size: int, draw: torch.Generator) -> Tensor:
    values = torch.rand(size, generator=draw, dtype=torch.float64)
    values[1 + int(random(draw) * size) :] = 0
    return values


SPECTRA = {each.__name__: each for each in (power_law, exponential, flat, clustered, few_large, zeros)}


def random(draw: torch.Generator) -> float:
    return float(torch.rand((), generator=draw, dtype=torch.float64))


def orthonormal(rows: int, columns: int, draw: torch.Generator) -> Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=draw, dtype=torch.float64)).Q


def basis_of(matrix: Tensor, left: Tensor, known: int, draw: torch.Generator) -> Tensor:
    """Random, or after one or more steps towards the top of the spectrum, or the top left vectors turned a little."""
    rows = matrix.shape[0]
    kind = int(random(draw) * 4)
    start = torch.randn(rows, known, generator=draw, dtype=torch.float64)
    for _ in range((0, 1, 3, 0)[kind]):
        start = torch.linalg.qr(matrix @ (matrix.T @ start) + 1e-9 * start).Q
    if kind == 3:
        start = left[:, :known] + 10 ** (-4 * random(draw)) * start / rows**0.5
    return torch.linalg.qr(start).Q


def capture(name: str, seed: int) -> tuple[Captured, Tensor]:
    """A matrix with a drawn spectrum, what some basis of some size knows of it, and its singular values."""
    draw = torch.Generator().manual_seed(seed)
    size = 1 + int(random(draw) * 24)
    rows, columns = size + int(random(draw) * 2) * 5, size + int(random(draw) * 2) * 7
    values = SPECTRA[name](size, draw).sort(descending=True).values
    left, right = orthonormal(rows, size, draw), orthonormal(columns, size, draw)
    matrix = left * values @ right.T
    basis = basis_of(matrix, left, 1 + int(random(draw) * size), draw)
    inside, outside = basis.T @ matrix, matrix - basis @ (basis.T @ matrix)
    ritz = torch.linalg.eigh(inside @ inside.T)
    reach = outside @ matrix.T @ basis @ ritz.eigenvectors.flip(1)
    singular = torch.linalg.svdvals(reach)
    coupling = Coupling(reach.norm(dim=0), float(singular[0]), int((singular > 1e-14 * values[0] ** 2).sum()))
    known = ritz.eigenvalues.clamp(min=0).sqrt().flip(0)
    mu = float(torch.linalg.matrix_norm(outside, 2)) ** 2
    # The sums here are good to 1e-15 of the energy: the two roundings let them differ in that.
    rounding = 1e-14
    whole = Captured(known, float(values.square().sum()), size, mu, coupling, rounding, rounding)
    return whole, values


def variants(whole: Captured) -> list[Captured]:
    """With and without the norm of the residual and the coupling; a norm that is far too large says nothing."""
    return [
        whole,
        replace(whole, mu=None),
        replace(whole, coupling=None),
        replace(whole, mu=None, coupling=None),
        replace(whole, mu=float("inf")),
        replace(whole, mu=3 * whole.energy, coupling=None),
    ]


@pytest.mark.parametrize("name", SPECTRA)
def test_the_truth_lies_inside(name):
    for seed in range(60):
        whole, values = capture(name, seed)
        top = torch.cat((torch.zeros(1, dtype=torch.float64), values.square().cumsum(0)))
        for known in variants(whole):
            for tau in TAUS:
                low, high = known.bracket(tau)
                assert 1 <= low <= effective_rank(values.square(), tau) <= high <= known.size, (name, seed, tau)
            for count in range(1, known.size + 1, 1 + known.size // 6):
                least, most, exact = known.least(count), known.most(count), float(top[count])
                assert least - SLACK * known.energy <= exact <= most + SLACK * known.energy, (name, seed, count)
                low_share, high_share = known.share_of_top(count)
                assert low_share - SLACK <= exact / known.energy <= high_share + SLACK


@pytest.mark.parametrize("name", SPECTRA)
def test_more_knowledge_never_widens(name):
    for seed in range(20):
        whole, _ = capture(name, seed)
        best, without_coupling, bare = whole, replace(whole, coupling=None), replace(whole, mu=None, coupling=None)
        for tau in TAUS:
            ends = [known.bracket(tau) for known in (best, without_coupling, bare)]
            assert ends[0][0] >= ends[1][0] >= ends[2][0]
            assert ends[0][1] == ends[1][1] == ends[2][1]


@pytest.mark.parametrize("rounding", [1e-3, 1e-2])
@pytest.mark.parametrize("name", SPECTRA)
def test_rounding_of_its_size_cannot_move_the_truth_out(name, rounding):
    """The values and the energy are disturbed by as much as is promised at most; the coupling and mu stay exact."""
    for seed in range(25):
        exact, values = capture(name, seed)
        draw = torch.Generator().manual_seed(seed + 1)
        noise = torch.randn(exact.values.shape, generator=draw, dtype=torch.float64)
        noise *= rounding * exact.captured**0.5 / noise.norm()
        moved = (exact.values + noise).abs().sort(descending=True).values
        energy = exact.energy * (1 + rounding * 1e-3 * (2 * random(draw) - 1))
        known = Captured(moved, energy, exact.size, exact.mu, exact.coupling, rounding, rounding * 1.1e-3)
        for each in variants(known):
            for tau in TAUS:
                low, high = each.bracket(tau)
                assert low <= effective_rank(values.square(), tau) <= high, (name, seed, tau)


def test_a_full_basis_knows_the_rank():
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        values = torch.rand(12, generator=draw, dtype=torch.float64).sort(descending=True).values
        known = Captured(values, float(values.square().sum()), 12, energy_rounding=1e-15)
        for tau in TAUS:
            rank = effective_rank(values.square(), tau)
            assert known.bracket(tau) == (rank, rank)


def test_one_value_of_one():
    one = torch.ones(1, dtype=torch.float64)
    for coupling in (None, Coupling(torch.zeros(1, dtype=torch.float64), 0.0, 0)):
        assert Captured(one, 1.0, 1, coupling=coupling).bracket(0.9) == (1, 1)
        # One of ten equal values: eight of at most one each may hold 0.85 with it, and nine surely do.
        assert Captured(one, 10.0, 10, mu=1.0, coupling=coupling).bracket(0.85) == (8, 9)


def test_no_coupling_tells_the_values_themselves():
    """Of a diagonal matrix whose first four values are the basis, all that is missing is how the rest is spread."""
    values = torch.tensor([8.0, 4, 2, 1, 0.5, 0.5, 0.5, 0.5], dtype=torch.float64)
    coupling = Coupling(torch.zeros(4, dtype=torch.float64), 0.0, 0)
    known = Captured(values[:4], float(values.square().sum()), 8, 0.25, coupling, energy_rounding=1e-15)
    for count in (1, 2, 3):
        assert known.most(count) == pytest.approx(float(values[:count].square().sum()), rel=1e-12)
    for tau in (0.5, 0.9, 0.95):
        rank = effective_rank(values.square(), tau)
        assert known.bracket(tau) == (rank, rank)


def test_nothing_captured_leaves_everything_open():
    known = Captured(torch.zeros(0, dtype=torch.float64), 5.0, 10)
    assert known.bracket(0.9) == (1, 9)
    assert known.captured == 0
