"""Ranks of matrices whose singular values are known, and what every rank must satisfy."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pellucid.errors import InputError
from pellucid.spectra.inequality import product_bound, sum_bound
from pellucid.spectra.rank import (
    Ranks,
    distance_to_mean_row,
    distance_to_rank_one,
    effective_rank,
    entropy_rank,
    numerical_rank,
    ranks,
    ranks_of,
    singular_values,
    singular_values_of_product,
    stable_rank,
)

F64 = torch.float64
SPECTRUM = [8.0, 4.0, 2.0, 1.0, 0.0]


def orthogonal(rows: int, columns: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed), dtype=F64)).Q


def with_spectrum(values: list[float], rows: int = 9, columns: int = 7, seed: int = 0) -> Tensor:
    left, right = orthogonal(rows, len(values), seed), orthogonal(columns, len(values), seed + 1)
    return left * torch.tensor(values, dtype=F64) @ right.T


def of_rank(rank: int, rows: int, columns: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    left = torch.randn(rows, rank, generator=draw, dtype=F64)
    return left @ torch.randn(rank, columns, generator=draw, dtype=F64)


def test_known_spectrum() -> None:
    found = ranks(with_spectrum(SPECTRUM), (0.7, 0.9, 0.95, 0.99))
    assert found.numerical == 4
    assert found.energy == pytest.approx(85, rel=1e-12)
    assert found.stable == pytest.approx(85 / 64, rel=1e-12)
    shares = [each / 15 for each in SPECTRUM[:4]]
    assert found.entropy == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)), rel=1e-12)
    # 64 of 85 is .753, 80 is .941 and 84 is .988.
    assert found.effective == ((0.7, 1), (0.9, 2), (0.95, 3), (0.99, 4))
    assert found.at(0.95) == 3
    assert found.distance_to_rank_one == pytest.approx((21 / 85) ** 0.5, rel=1e-12)


@pytest.mark.parametrize(("rows", "columns"), [(6, 6), (4, 6), (6, 4), (1, 6), (6, 1), (1, 1)])
def test_equal_singular_values_count_themselves(rows: int, columns: int) -> None:
    full = min(rows, columns)
    found = ranks(torch.eye(rows, columns, dtype=F64) * 3)
    assert (found.shape, found.numerical, found.at(0.95)) == ((rows, columns), full, full)
    assert (found.stable, found.entropy) == pytest.approx((full, full))
    assert found.distance_to_rank_one == pytest.approx((1 - 1 / full) ** 0.5)


@pytest.mark.parametrize("tau", [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
def test_a_share_that_is_just_reached_counts(tau: float) -> None:
    """Also after a decomposition, whose rounding would decide it otherwise."""
    assert effective_rank(torch.ones(10, dtype=F64), tau) == round(10 * tau)
    for seed in range(20):
        assert effective_rank(singular_values(orthogonal(10, 10, seed)).square(), tau) == round(10 * tau)


def test_zeros_have_rank_zero_in_every_meaning() -> None:
    found = ranks(torch.zeros(3, 5))
    assert found == Ranks((3, 5), "float32", 0.0, 0, 0.0, 0.0, ((0.9, 0), (0.95, 0)), 0.0)
    assert distance_to_mean_row(torch.zeros(3, 5)) == 0


@pytest.mark.parametrize("size", [1e-320, 1e-200, 1e200])
def test_the_size_of_a_matrix_does_not_matter(size: float) -> None:
    values = torch.tensor([size, size, 0.0], dtype=F64)
    assert (stable_rank(values), entropy_rank(values)) == pytest.approx((2, 2))
    assert distance_to_rank_one(values) == pytest.approx(0.5**0.5)
    assert numerical_rank(values, (3, 3), F64) == 2


def test_rank_one_is_at_a_distance_far_below_the_root_of_rounding() -> None:
    values = torch.tensor([1.0, 1e-12], dtype=F64)
    assert distance_to_rank_one(values) == pytest.approx(1e-12)


def test_numerical_rank_follows_the_arithmetic_that_made_the_matrix() -> None:
    exact = with_spectrum([1.0, 1e-3, 1e-9])
    assert ranks(exact).numerical == 3
    assert ranks(exact, dtype=torch.float32).numerical == 2
    assert ranks(exact.float()).numerical == 2
    assert ranks(exact, floor=0.01).numerical == 1
    assert ranks(exact).numerical == int(torch.linalg.matrix_rank(exact))


def test_integers_are_exact() -> None:
    assert ranks(torch.tensor([[1, 2], [2, 4]])).to_json()["dtype"] == "float64"
    assert ranks(torch.tensor([[1, 2], [2, 4]])).numerical == 1


def test_parameters_are_measured_without_their_gradient() -> None:
    weight = torch.eye(3).requires_grad_()
    assert ranks(weight).numerical == product_bound(weight, weight).measured == sum_bound(weight, weight).measured == 3


def test_all_rows_the_same_is_distance_zero_from_the_mean_row() -> None:
    assert distance_to_mean_row(torch.ones(4, 1) @ torch.arange(3.0)[None]) < 1e-15
    # Opposite rows are rank one, and as far from their mean as can be.
    opposite = torch.tensor([[1.0, 2.0], [-1.0, -2.0]])
    assert distance_to_mean_row(opposite) == 1
    assert ranks(opposite).distance_to_rank_one < 1e-15


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.floats(0.01, 0.99), st.floats(0.01, 0.99))
def test_ranks_are_ordered(numbers: list[float], one: float, other: float) -> None:
    values = torch.tensor(sorted(numbers, reverse=True), dtype=F64)
    found = ranks_of(values, (len(numbers), 20), F64, (min(one, other), max(one, other)))
    (_, few), (_, many) = found.effective
    assert 0 <= few <= many <= max(1, len(numbers))
    if values[0] > 0:
        # sum (s/s1)^2 <= sum s/s1, which is exp of the least of the Renyi entropies of s / sum s.
        assert 1 <= found.stable <= found.entropy * (1 + 1e-9) <= len(numbers) * (1 + 1e-6)
        assert 0 <= found.distance_to_rank_one < 1
        assert found.stable == pytest.approx(1 / (1 - found.distance_to_rank_one**2), rel=1e-6)


def test_json_is_plain() -> None:
    assert ranks(torch.eye(2)).to_json() == {
        "shape": [2, 2],
        "dtype": "float32",
        "energy": 2.0,
        "numerical_rank": 2,
        "stable_rank": 2.0,
        "entropy_rank": pytest.approx(2.0),
        "effective_rank": {"0.9": 2, "0.95": 2},
        "distance_to_rank_one": pytest.approx(0.5**0.5),
    }


# --- products that stay factored, and the inequalities ---


@pytest.mark.parametrize(("rows", "inner", "columns"), [(30, 4, 25), (4, 30, 5), (3, 8, 40), (40, 8, 3), (6, 6, 6)])
def test_the_factored_product_has_the_spectrum_of_the_product(rows: int, inner: int, columns: int) -> None:
    a, b = of_rank(min(rows, inner), rows, inner, 1), of_rank(min(inner, columns), inner, columns, 2)
    values, rounding = singular_values_of_product(a, b)
    dense = singular_values(a @ b)
    torch.testing.assert_close(values, dense[: len(values)], rtol=1e-12, atol=rounding)
    assert float(dense[len(values) :].sum()) <= rounding * len(dense)


def test_a_product_that_cancels_has_rank_zero() -> None:
    """The counterexample to note 000's use of Sylvester's bound: rank 2 and 2, inner dimension 4, product 0."""
    basis = orthogonal(4, 4, 0)
    query, key = of_rank(2, 6, 2, 1) @ basis[:2], of_rank(2, 6, 2, 2) @ basis[2:]
    bound = product_bound(query, key.T)
    assert (bound.left, bound.right, bound.measured, bound.low, bound.high) == (2, 2, 0, 0, 2)
    assert ranks((query @ key.T).round(decimals=12).softmax(-1)).numerical == 1


@pytest.mark.parametrize(("second", "rank"), [([1, 1, 1, 1, 0], 3), ([0, 1, 1, 1, 1], 2)])
def test_both_ends_of_sylvester_are_attained(second: list[int], rank: int) -> None:
    bound = product_bound(torch.tensor([1, 1, 1, 0, 0]).diag(), torch.tensor(second).diag())
    assert (bound.low, bound.measured, bound.high) == (2, rank, 3)
    assert bound.holds


@pytest.mark.parametrize(("second", "rank"), [([-1, -1, 0, 0, 0], 1), ([0, 0, 0, 1, 1], 5)])
def test_both_ends_of_the_sum_are_attained(second: list[int], rank: int) -> None:
    bound = sum_bound(torch.tensor([1, 1, 1, 0, 0]).diag(), torch.tensor(second).diag())
    assert (bound.low, bound.measured, bound.high) == (1, rank, 5)
    assert bound.holds


small = st.integers(0, 6)


@settings(max_examples=150, deadline=None)
@given(small, small, st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 10**6))
def test_inequalities_hold_for_random_ranks(a: int, b: int, m: int, n: int, p: int, seed: int) -> None:
    a, b = min(a, m, n), min(b, n, p)
    left, right = of_rank(a, m, n, seed), of_rank(b, n, p, seed + 1)
    product = product_bound(left, right)
    assert (product.left, product.right) == (a, b)
    assert product.holds
    assert product.consistent
    total = sum_bound(left, -left + of_rank(min(b, m, n), m, n, seed + 1))
    assert total.holds
    assert total.consistent


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-18, 0), min_size=4, max_size=4), st.integers(0, 10**6), st.sampled_from([F64, torch.float32])
)
def test_spectra_without_a_gap_are_consistent(exponents: list[float], seed: int, dtype: torch.dtype) -> None:
    """Whatever the tolerance cuts through: what the inequalities for singular values leave open meets the interval."""
    values = [10.0**each for each in sorted(exponents, reverse=True)]
    a, b = with_spectrum(values, 5, 4, seed), with_spectrum(values[::-1], 5, 4, seed + 2)
    assert product_bound(a.T, b, dtype=dtype).consistent
    assert product_bound(a, b.T, dtype=dtype).consistent
    assert sum_bound(a, b, dtype=dtype).consistent
    assert sum_bound(a, -a + 1e-9 * b, dtype=dtype).consistent


def test_a_rank_without_a_gap_can_leave_the_interval() -> None:
    """Two full ranks whose product is not: the reason for `least` and `most`."""
    ill = torch.tensor([1.0, 1e-5], dtype=F64).diag()
    bound = product_bound(ill, ill, dtype=torch.float32)
    assert (bound.low, bound.measured, bound.holds, bound.consistent) == (2, 1, False, True)
    assert bound.to_json()["between"] == [1, 2]


def test_the_tolerance_of_a_tall_factor_is_carried_over() -> None:
    eps = torch.finfo(torch.float32).eps
    bound = product_bound(with_spectrum([1.0, 20 * eps], 40, 2), torch.eye(2, dtype=F64), dtype=torch.float32)
    assert (bound.left, bound.right, bound.high, bound.least, bound.holds) == (1, 2, 1, 1, True)


def test_what_a_large_term_hides_is_left_open() -> None:
    """B counts as rank 1 beside its 100, but cancels two directions that A counts."""
    a, b = (torch.tensor(each, dtype=F64).diag() for each in ([1.0, 1e-5, 1e-5], [100.0, -1e-5, -1e-5]))
    bound = sum_bound(a, b, dtype=torch.float32)
    assert (bound.left, bound.right, bound.low, bound.measured, bound.most) == (3, 1, 2, 1, 3)
    assert not bound.holds
    assert bound.consistent


# --- what is refused ---


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(wrong: float) -> None:
    matrix = torch.eye(3)
    matrix[1, 2] = wrong
    for refused in (ranks, singular_values, distance_to_mean_row, lambda x: product_bound(torch.eye(3), x)):
        with pytest.raises(InputError, match="1 of the 9 numbers"):
            refused(matrix)
    with pytest.raises(InputError, match="NaN or infinite"):
        stable_rank(torch.tensor([wrong, 0.0]))


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (3,), (), (2, 3, 3)])
def test_only_matrices_have_ranks(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"is empty|two axes"):
        ranks(torch.zeros(shape))


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, 2.0], [1.0, -1e-9]])
def test_singular_values_are_ordered(values: list[Any]) -> None:
    for refused in (stable_rank, entropy_rank, distance_to_rank_one, lambda s: effective_rank(s, 0.5)):
        with pytest.raises(InputError, match=r"is empty|one axis|largest first"):
            refused(torch.tensor(values))


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_tau_is_a_share(tau: float) -> None:
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        effective_rank(torch.ones(3), tau)
    with pytest.raises(InputError, match="strictly between 0 and 1"):
        ranks(torch.eye(3), (tau,))


def test_a_share_that_was_not_measured_is_named() -> None:
    with pytest.raises(InputError, match=r"only at \[0.9, 0.95\]"):
        ranks(torch.eye(3)).at(0.5)


def test_arithmetic_too_coarse_for_a_rank_is_refused() -> None:
    assert ranks(torch.eye(127, dtype=torch.bfloat16)).numerical == 127
    with pytest.raises(InputError, match="has no numerical rank"):
        ranks(torch.eye(128, dtype=torch.bfloat16))
    with pytest.raises(InputError, match="floating-point"):
        ranks(torch.eye(3), dtype=torch.int64)


def test_operands_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="no product"):
        product_bound(torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(InputError, match="no sum"):
        sum_bound(torch.ones(2, 3), torch.ones(3, 2))
