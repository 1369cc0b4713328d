"""Spectra without the matrix against the matrix: brackets, values, the whole spread, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

from pellucid.errors import InputError
from pellucid.kernels.mask import Mask
from pellucid.kernels.operator_tiled import TiledOperator
from pellucid.spectra.density import density_of_values, lanczos_density
from pellucid.spectra.krylov import Krylov, orthonormal
from pellucid.spectra.rank import effective_rank, entropy_rank
from pellucid.spectra.spectrum import (
    FAILURE,
    Effort,
    decay,
    dense_spectrum,
    free_spectrum,
    head_spectrum,
    residual_energy_bound,
    spectrum_of_matrix,
)
from pellucid.spectra.statistics import statistics, statistics_of_matrix
from tests.spectra.heads import TAUS, exact_values, head, random_case

ENERGY = {torch.float32: 1e-6, torch.float64: 1e-12}


@pytest.mark.parametrize("part", range(20))
def test_the_bracket_contains_the_effective_rank(part):
    """Thirty random heads each: six hundred in all."""
    for seed in range(30 * part, 30 * part + 30):
        case = random_case(seed)
        values = exact_values(case.operator)
        exact = values.square()
        if exact.sum() == 0:
            with pytest.raises(InputError, match="may look at nothing"):
                free_spectrum(case.operator, case.effort)
            continue
        found = free_spectrum(case.operator, case.effort, seed=seed)
        assert found.energy == pytest.approx(float(exact.sum()), rel=ENERGY[case.operator.query.dtype]), case.described
        for tau in TAUS:
            low, high = found.effective[tau]
            assert 1 <= low <= effective_rank(exact, tau) <= high <= len(values), (tau, case.described)
        # Values come from a small Gram matrix: it is their squares that are off by rounding times the largest.
        captured = torch.tensor(found.values, dtype=torch.float64).square()
        excess = captured - exact[: len(captured)]
        assert excess.max() <= 2 * case.operator.rounding * exact[0] + 1e-13 * exact[0], case.described
        share = float(exact[: max(len(exact) // 10, 1)].sum() / exact.sum())
        assert found.top_tenth[0] - 1e-12 <= share <= found.top_tenth[1] + 1e-12, case.described


ALIBI = -0.05 * (torch.arange(2 * 700 - 1) - 699).abs()[None].float()
# By name, a head and how many columns settle its top 64.
ACCURATE = {
    "random": (lambda: head(700, scale=1.0), 512),
    "random in float64": (lambda: head(512, scale=1.0, dtype=torch.float64), 512),
    "causal": (lambda: head(1024, mask=Mask.causal()), 512),
    "smooth": (lambda: head(800, scale=6.0, width=32, smooth=True, mask=Mask.causal()), 512),
    "sharp": (lambda: head(700, scale=6.0), 700),
    "windowed": (lambda: head(700, scale=2.0, mask=Mask(prefix=0, window=40)), 700),
    "biased": (lambda: head(700, bias=ALIBI), 700),
    "cross": (lambda: head(600, 900, scale=2.0), 600),
}


@pytest.mark.parametrize("name", ACCURATE)
def test_the_top_singular_values(name):
    make, budget = ACCURATE[name]
    operator = make()
    found, exact = free_spectrum(operator, Effort(budget=budget)), exact_values(operator)
    top = torch.tensor(found.values[:64], dtype=torch.float64)
    assert found.settled
    assert ((top - exact[:64]).abs() <= 1e-4 * exact[:64]).all()
    assert found.energy == pytest.approx(float(exact.square().sum()), rel=ENERGY[operator.query.dtype])
    assert found.stable == pytest.approx(found.energy / float(exact[0]) ** 2, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("mask", [Mask(), Mask.causal(), Mask(prefix=0, window=256)])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_long_heads(mask, scale):
    operator = head(4096, width=64, scale=scale, mask=mask)
    found, exact = free_spectrum(operator, Effort(tau=TAUS, budget=1024)), exact_values(operator)
    for tau in TAUS:
        low, high = found.effective[tau]
        assert low <= effective_rank(exact.square(), tau) <= high
    if found.settled:
        top = torch.tensor(found.values[:64], dtype=torch.float64)
        assert ((top - exact[:64]).abs() <= 1e-4 * exact[:64]).all()


# --- heads whose spectrum is known ---


@pytest.mark.parametrize("dtype", ENERGY)
def test_a_window_of_one_is_the_identity(dtype):
    """One singular value, 120 times: a Krylov space from few columns would hold it as often as it has columns."""
    operator = head(120, mask=Mask(window=1), dtype=dtype)
    for budget, block in ((120, 7), (50, 8)):
        found = free_spectrum(operator, Effort(tau=TAUS, budget=budget, block=block, top=40))
        assert found.energy == pytest.approx(120, rel=1e-6)
        assert len(found.values) >= budget - 1  # the last one may not be needed
        assert found.values[-1] == pytest.approx(1, rel=1e-5)
        for tau in TAUS:
            low, high = found.effective[tau]
            assert low <= math.ceil(round(120 * tau, 6)) <= high
    assert dense_spectrum(operator, Effort(tau=(0.9,))).effective[0.9] == (108, 108)


@pytest.mark.parametrize("dtype", ENERGY)
@pytest.mark.parametrize("budget", [40, 512])
def test_even_attention_has_rank_one(dtype, budget):
    operator = head(300, scale=0.0, dtype=dtype)
    found = free_spectrum(operator, Effort(tau=TAUS, budget=budget))
    assert found.energy == pytest.approx(1, rel=1e-6)
    assert found.values[0] == pytest.approx(1, rel=1e-5)
    assert all(value <= 1e-5 for value in found.values[1:])
    assert set(found.effective.values()) == {(1, 1)}
    assert found.settled or budget < 64
    assert found.stable == pytest.approx(1, rel=2e-5)


def test_blind_queries_are_rows_of_zeros():
    real = torch.ones(1, 90, dtype=torch.bool)
    real[0, :30] = False
    operator = head(90, mask=Mask(prefix=0, padding=real), dtype=torch.float64)
    found, exact = free_spectrum(operator, Effort(tau=TAUS, budget=90)), exact_values(operator)
    assert (exact[60:] < 1e-12).all()
    assert found.energy == pytest.approx(float(exact.square().sum()), rel=1e-12)
    assert found.effective[0.99] == (rank := effective_rank(exact.square(), 0.99), rank)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 40), (40, 1), (2, 3)])
def test_small_heads(queries, keys):
    operator = head(queries, keys)
    free, dense = free_spectrum(operator, Effort(tau=TAUS)), dense_spectrum(operator, Effort(tau=TAUS))
    assert free.effective == dense.effective
    assert free.values == pytest.approx(dense.values, rel=1e-4, abs=1e-5)
    assert free.settled


@pytest.mark.parametrize("seed", range(6))
def test_a_longer_basis_narrows_the_bracket(seed):
    operator = head(200, scale=2.0, mask=Mask.causal(), seed=seed)
    widths = []
    for budget in (10, 60, 200):
        low, high = free_spectrum(operator, Effort(tau=(0.9,), budget=budget, top=5, block=10, narrow=0.0)).effective[
            0.9
        ]
        widths.append(high - low)
    assert widths[0] >= widths[1] >= widths[2]
    assert widths[2] <= 1


def test_certifying_raises_lower_ends_and_says_so():
    operator = head(400, scale=3.0, mask=Mask(window=2))
    plain, certified = (
        free_spectrum(operator, Effort(tau=(0.9,), top=20, budget=80, certify=certify)) for certify in (False, True)
    )
    assert plain.failure == 0
    assert certified.failure == FAILURE
    assert certified.effective[0.9][0] > plain.effective[0.9][0]
    assert certified.effective[0.9][1] == plain.effective[0.9][1]


def test_the_same_seed_gives_the_same_spectrum():
    operator = head(150, scale=2.0)
    first, again, other = (free_spectrum(operator, Effort(budget=40, top=8), seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


# --- parts ---


@pytest.mark.parametrize("dtype", ENERGY)
@pytest.mark.parametrize("smooth", [False, True])
def test_a_krylov_basis_is_what_it_says(dtype, smooth):
    """Orthonormal on both sides; all of A'U lies in the right basis, and A of what was multiplied in the left one."""
    operator = head(220, scale=3.0, smooth=smooth, dtype=dtype, mask=Mask.causal())
    krylov = Krylov(operator, block=16, budget=70, generator=torch.Generator().manual_seed(0))
    while not krylov.exhausted:
        krylov.extend()
        left, right = krylov.left.double(), krylov.right.double()
        matrix = operator.tile(slice(0, 220), slice(0, 220))[0, 0].double()
        # Directions below 50 eps of a block are left out: sixteen of them, in units of the largest singular value.
        tolerance = 200 * torch.finfo(dtype).eps * float(torch.linalg.matrix_norm(matrix, 2))
        for basis in (left, right):
            torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]).double(), rtol=0, atol=tolerance)
        image, multiplied = matrix.T @ left, matrix @ right[:, : krylov._multiplied]
        assert float((image - right @ (right.T @ image)).norm()) <= tolerance
        assert float((multiplied - left @ (left.T @ multiplied)).norm()) <= tolerance
    values, coupling = krylov.coupling()
    reach = matrix @ image
    reach = torch.linalg.svdvals(reach - left @ (left.T @ reach))
    assert coupling.largest == pytest.approx(float(reach[0]), abs=3 * tolerance * float(values[0]))
    assert float(coupling.norms.norm()) == pytest.approx(float(reach.norm()), abs=10 * tolerance * float(values[0]))
    assert coupling.rank >= int((reach > 10 * tolerance * values[0]).sum())


def test_a_low_rank_head_loses_no_image():
    """A projection: A of an image is in the basis already, so every other block adds nothing but random columns."""
    half = torch.arange(300)[None] < 150
    operator = head(300, mask=Mask(window=1, padding=half))
    krylov = Krylov(operator, block=30, budget=100, generator=torch.Generator().manual_seed(0))
    while not krylov.exhausted:
        krylov.extend()
    image = operator.apply_transposed(krylov.left[None, None])[0, 0].double()
    right = krylov.right.double()
    assert krylov.size < krylov.budget
    assert (image - right @ (right.T @ image)).norm(dim=0).max() <= 1e-5


def test_orthonormal_leaves_out_what_rounding_made():
    draw = torch.Generator().manual_seed(0)
    basis = torch.linalg.qr(torch.randn(60, 7, generator=draw)).Q
    block = torch.cat((basis @ torch.randn(7, 3, generator=draw), torch.randn(60, 2, generator=draw)), 1)
    found = orthonormal(block, basis)
    assert found.shape == (60, 2)
    whole = torch.cat((basis, found), 1)
    torch.testing.assert_close(whole.T @ whole, torch.eye(9), rtol=0, atol=2e-6)
    assert orthonormal(basis[:, :3], basis).shape == (60, 0)


@pytest.mark.parametrize("columns", [0, 3, 20])
def test_the_residual_is_bounded(columns):
    for seed in range(20):
        operator = head(80, 50, scale=2.0, seed=seed, dtype=torch.float64)
        matrix = operator.tile(slice(0, 80), slice(0, 50))[0, 0]
        left = torch.linalg.qr(torch.randn(80, columns, generator=torch.Generator().manual_seed(seed)).double()).Q
        norm = float(torch.linalg.matrix_norm(matrix - left @ (left.T @ matrix), 2)) ** 2
        bound = residual_energy_bound(operator, left, torch.Generator().manual_seed(seed + 1))
        assert norm <= bound <= 2 * norm


@pytest.mark.parametrize(("alpha", "scale"), [(0.5, 3.0), (1.0, 1.0), (2.0, 0.1)])
def test_the_decay_of_a_power_law(alpha, scale):
    fitted = decay(scale * torch.arange(1, 51, dtype=torch.float64) ** -alpha, 1e-7)
    assert fitted.alpha == pytest.approx(alpha, rel=1e-10)
    assert fitted.scale == pytest.approx(scale, rel=1e-10)
    assert fitted.r2 == pytest.approx(1, rel=1e-10)


def test_two_values_have_no_decay_and_equal_ones_decay_by_nothing():
    assert decay(torch.tensor([1.0, 0.5], dtype=torch.float64), 0.0).alpha is None
    even = decay(torch.ones(9, dtype=torch.float64), 0.0)
    assert even.alpha == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("mask", [Mask(), Mask.causal(), Mask(window=9)])
@pytest.mark.parametrize("shape", [(300, 300), (200, 320), (320, 200)])
def test_the_entropy_rank_lies_within_its_error(mask, shape):
    operator = head(*shape, scale=2.0, mask=mask, dtype=torch.float64)
    values = exact_values(operator)
    found = lanczos_density(operator, torch.Generator().manual_seed(0))
    assert abs(found.entropy_rank - entropy_rank(values)) <= 3 * found.error
    assert sum(found.counts) == pytest.approx(min(shape), rel=1e-6)
    assert found.error <= 0.2 * found.entropy_rank


def test_the_density_counts_values():
    values = torch.tensor([1.0, 1.0, 0.5, 1e-3, 0.0], dtype=torch.float64)
    found = density_of_values(values)
    assert (sum(found.counts), found.error) == (5, 0)
    assert (found.counts[0], found.counts[-1]) == (2, 1)
    assert found.edges[0] == 1
    assert found.edges[-1] == pytest.approx(1e-6)


def test_density_is_given_where_it_is_asked_for():
    operator = head(100, dtype=torch.float64)
    asked = Effort(density=True)
    dense, free = dense_spectrum(operator, asked), free_spectrum(operator, asked)
    assert dense.density.entropy_rank == dense.entropy_rank
    assert free.entropy_rank == pytest.approx(dense.entropy_rank, rel=0.15)
    assert free_spectrum(operator).density is None


@pytest.mark.parametrize("mask", [Mask(), Mask.causal(), Mask(prefix=0, padding=torch.arange(70)[None] > 9)])
@pytest.mark.parametrize("shape", [(70, 70), (1, 70), (90, 70), (40, 70)])
def test_statistics_equal_those_of_the_matrix(mask, shape):
    operator = head(*shape, scale=2.0, mask=mask, dtype=torch.float64)
    weights = operator.tile(slice(None), slice(None))[0, 0]
    if not weights.any():
        with pytest.raises(InputError, match="may look at nothing"):
            statistics(operator)
        with pytest.raises(InputError, match="may look at nothing"):
            statistics_of_matrix(weights)
        return
    found, exact = statistics(operator).to_json(), statistics_of_matrix(weights).to_json()
    assert found == pytest.approx(exact, rel=1e-10, abs=1e-12)


# --- the way is chosen, and bad input refused ---


def test_the_method_is_chosen_by_length(monkeypatch):
    monkeypatch.setattr("pellucid.spectra.spectrum.DENSE_LIMIT", 50)
    assert head_spectrum(head(50)).method == "dense"
    assert head_spectrum(head(51)).method == "free"
    assert head_spectrum(head(20, 51)).method == "free"
    assert head_spectrum(head(51), method="dense").method == "dense"
    assert head_spectrum(head(50), method="free").method == "free"


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.5, 1.5, math.nan])
def test_refuses_tau(tau):
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        Effort(tau=(tau,))


@pytest.mark.parametrize("name", ["top", "budget", "block"])
def test_refuses_counts_below_one(name):
    with pytest.raises(InputError, match=f"{name} is 0"):
        Effort(**{name: 0})


def test_refuses_more_values_than_there_are():
    for method in ("dense", "free"):
        with pytest.raises(InputError, match=r"top 41 .* only 40"):
            head_spectrum(head(40, 60), Effort(top=41), method=method)
    with pytest.raises(InputError, match="budget of 30 columns cannot give the top 31"):
        Effort(top=31, budget=30)


def test_refuses_a_head_that_sees_nothing_and_several_heads():
    blind = head(20, mask=Mask(padding=torch.zeros(1, 20, dtype=torch.bool)))
    for method in ("dense", "free"):
        with pytest.raises(InputError, match="may look at nothing"):
            head_spectrum(blind, method=method)
    with pytest.raises(InputError, match="may look at nothing"):
        spectrum_of_matrix(torch.zeros(3, 4))
    several = head(20)
    both = (side.expand(2, 1, 20, 16) for side in (several.query, several.key))
    two = TiledOperator(*both, scale=1.0, view=several.view)
    with pytest.raises(InputError, match="one head at a time"):
        head_spectrum(two)
