"""A matrix at a rank: the nearest there is, its error twice, and every oddity counted as a naive twin counts it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.mask import Mask
from pellucid.spectra import truncation
from pellucid.spectra.truncation import Factors, factors, free_factors, truncate
from tests.spectra.heads import exact_values, head


def causal(size: int, seed: int = 0) -> Tensor:
    scores = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (2 * scores).masked_fill(torch.ones(size, size).triu(1).bool(), -torch.inf).softmax(-1)


def test_two_tokens_by_hand() -> None:
    matrix = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    found = truncate(factors(matrix), 1, lambda part: matrix[part])
    # The squares of the singular values are (1.5 +- sqrt(1.25)) / 2.
    assert found.error == pytest.approx(math.sqrt((1.5 - math.sqrt(1.25)) / 3), rel=1e-12)
    assert found.again == pytest.approx(found.error, rel=1e-12)
    assert (found.negative, found.appeared, found.verified) == (0, 1, True)


@pytest.mark.parametrize("rank", [1, 3, 7, 12])
def test_counts_are_those_of_a_naive_twin(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(truncation, "_CELLS", 40)  # three rows at a time
    matrix = causal(12)
    u, s, v = torch.linalg.svd(matrix)
    near = (u[:, :rank] * s[:rank]) @ v[:rank]
    found = truncate(factors(matrix), rank, lambda part: matrix[part])
    cells = [(float(near[i, j]), float(matrix[i, j])) for i in range(12) for j in range(12)]
    new = [abs(x) for x, y in cells if y == 0 and abs(x) > 1e-12]
    assert found.negative == sum(x < -1e-12 for x, _ in cells)
    assert found.appeared == len(new)
    assert found.appeared_share == pytest.approx(sum(new) / sum(abs(x) for x, _ in cells), abs=1e-12)
    assert found.lowest == pytest.approx(min(x for x, _ in cells), abs=1e-12)
    assert found.row_sum == pytest.approx(float((near.sum(1) - 1).abs().max()), abs=1e-12)
    assert found.error == pytest.approx(float((matrix - near).norm() / matrix.norm()), abs=1e-12)
    assert found.verified


def test_no_other_matrix_of_the_rank_is_nearer() -> None:
    matrix = causal(20)
    best = factors(matrix).error(4)
    for seed in range(20):
        draw = torch.Generator().manual_seed(seed)
        basis = torch.linalg.qr(torch.randn(20, 4, generator=draw, dtype=torch.float64)).Q
        assert float((matrix - basis @ (basis.T @ matrix)).norm() / matrix.norm()) > best


@pytest.mark.parametrize("keys", [600, 900])
def test_products_alone_come_close_to_the_nearest(keys: int) -> None:
    operator = head(600, keys, scale=2.0, mask=Mask(prefix=0) if keys == 600 else Mask(), smooth=True)
    seen: list[int] = []
    found = free_factors(operator, progress=lambda done, total: seen.append(done))
    exact = exact_values(operator)
    energy = float(exact.square().sum())
    assert seen == sorted(seen)
    assert found.ranks == truncation.GIVEN
    for rank in (1, 8, 64, 128):
        best = math.sqrt(float(exact[rank:].square().sum()) / energy)
        # The energy is float32's: its square root is good to 1e-3 where little is left out.
        assert best - 2e-3 <= found.error(rank) <= 1.02 * best + 2e-3
        told = truncate(found, rank, lambda part: operator.tile(part, slice(0, keys))[0, 0])
        assert told.verified


def test_a_product_needs_no_matrix() -> None:
    found = factors(causal(9))
    value = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(found.apply(3, value), found.rows(3) @ value.double(), rtol=0, atol=1e-14)


def test_ranks_and_matrices_that_are_not_there() -> None:
    found: Factors = factors(causal(5))
    for rank in (0, 6):
        with pytest.raises(InputError, match="1 to 5 are known"):
            truncate(found, rank, lambda part: torch.zeros(5, 5)[part])
    with pytest.raises(InputError, match="look at nothing"):
        factors(torch.zeros(3, 3))
