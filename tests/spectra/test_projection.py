"""Johnson-Lindenstrauss maps: the dimensions that they need, what they are, and what they do to distances."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pellucid.errors import InputError
from pellucid.spectra import projection as module
from pellucid.spectra.projection import Kind, draw_projection, measure_distortion, needed_dimensions

F64 = torch.float64
KINDS: list[tuple[Kind, float | None]] = [("gaussian", None), ("sign", None), ("sparse", None), ("sparse", 0.1)]


def points(count: int, width: int, seed: int = 0) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed), dtype=F64)


@pytest.mark.parametrize(("epsilon", "k"), [(0.1, 4542), (0.3, 589)])
def test_the_dimensions_of_dasgupta_and_gupta(epsilon: float, k: int) -> None:
    found = needed_dimensions(200, epsilon)
    assert found.k == k
    assert found.probability == 1 / 200
    assert "Dasgupta and Gupta" in found.bound


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 10**6), st.floats(0.01, 0.99), st.floats(1e-6, 0.99))
def test_the_k_is_the_smallest_that_the_bound_allows(count: int, epsilon: float, failure: float) -> None:
    found = needed_dimensions(count, epsilon, failure)
    room = epsilon**2 / 2 - epsilon**3 / 3

    def missed(k: int) -> float:
        return count * (count - 1) * math.exp(-k * room / 2)

    assert missed(found.k) <= failure * (1 + 1e-9)
    assert missed(found.k - 1) >= failure * (1 - 1e-9)
    assert found.probability == 1 - failure
    # Without a failure, the same bound for a failure of 1 - 1/n.
    loose = needed_dimensions(count, epsilon)
    assert abs(needed_dimensions(count, epsilon, (count - 1) / count).k - loose.k) <= 1


@pytest.mark.parametrize(("kind", "density"), KINDS)
def test_entries(kind: Kind, density: float | None) -> None:
    found = draw_projection(300, 200, kind, density=density, seed=1)
    matrix, k = found.matrix, 200
    assert matrix.shape == (200, 300)
    assert abs(float(matrix.mean())) < 5 / math.sqrt(matrix.numel() * k)
    assert float(matrix.square().mean()) * k == pytest.approx(1, rel=0.05)
    if kind != "gaussian":
        assert matrix[matrix != 0].abs().unique().tolist() == pytest.approx([1 / math.sqrt(k * found.density)])
        assert float((matrix != 0).double().mean()) == pytest.approx(found.density, abs=0.01)
    assert found.has_bound == (density is None)


@pytest.mark.parametrize(("kind", "density"), KINDS)
def test_seeds(kind: Kind, density: float | None) -> None:
    first, again, other = (draw_projection(20, 5, kind, density=density, seed=seed).matrix for seed in (4, 4, 5))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(("kind", "density"), KINDS)
def test_distances_are_kept_with_the_dimensions_that_the_bound_asks_for(kind: Kind, density: float | None) -> None:
    """For sparser maps too, on Gaussian points, which no coordinate dominates."""
    x, epsilon = points(60, 800), 0.4
    k = needed_dimensions(2 * len(x), epsilon, 0.001).k
    found = measure_distortion(x, draw_projection(800, k, kind, density=density), epsilon=epsilon)
    assert (found.pairs, found.sampled, found.coincident) == (60 * 59 // 2, False, 0)
    assert found.worst_distance < epsilon
    assert found.worst_inner_product < epsilon
    assert found.within_distance == found.within_additive == 1
    # The note's multiplicative claim: nearly orthogonal pairs do not keep their inner product.
    assert found.within_multiplicative < 0.5


def test_points_of_the_same_seed_are_not_the_map() -> None:
    x = points(20, 300, seed=5)
    assert measure_distortion(x, draw_projection(300, 300, seed=5)).worst_distance < 0.6


def test_the_measure_is_that_of_all_pairs_written_down() -> None:
    x, drawn = points(12, 30), draw_projection(30, 9, "sign")
    found = measure_distortion(x, drawn, epsilon=0.2)
    y = x @ drawn.matrix.T
    first, second = torch.triu_indices(12, 12, 1)
    stretch = (torch.cdist(y, y) / torch.cdist(x, x)).square()[first, second] - 1
    lengths = x.square().sum(1)
    error = ((y @ y.T - x @ x.T) / ((lengths[:, None] + lengths) / 2))[first, second]
    assert found.worst_distance == pytest.approx(float(stretch.abs().max()), rel=1e-6)
    assert found.worst_inner_product == pytest.approx(float(error.abs().max()), rel=1e-6)
    assert dict(found.distances)[0.5] == pytest.approx(float(stretch.median()), abs=0.05)
    assert dict(found.distances)[1.0] == pytest.approx(float(stretch.max()), rel=1e-6)
    assert dict(found.inner_products)[0.0] == pytest.approx(float(error.min()), rel=1e-6)
    assert found.within_distance == pytest.approx(float((stretch.abs() <= 0.2).double().mean()))


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, drawn = points(20, 30), draw_projection(30, 9)
    whole = measure_distortion(x, drawn)
    monkeypatch.setattr(module, "_CHUNK", 70)
    assert measure_distortion(x, drawn) == whole


def test_an_orthogonal_map_keeps_everything() -> None:
    x, drawn = points(20, 6), draw_projection(6, 6)
    turn = torch.linalg.qr(points(6, 6, 1)).Q
    found = measure_distortion(x, module.Projection("gaussian", 6, 6, 1.0, 0, turn))
    assert max(found.worst_distance, found.worst_inner_product) < 1e-13
    assert found.within_multiplicative > 0.99
    assert drawn.to_json() == {
        "kind": "gaussian",
        "width": 6,
        "k": 6,
        "density": 1.0,
        "seed": 0,
        "has_bound": True,
    }


def test_near_points_far_from_the_origin_keep_their_distance() -> None:
    """Squares of lengths would swallow a distance of 1e-6 at 1e6; differences do not."""
    x = points(10, 40) * 1e-6 + 1e6
    found = measure_distortion(x, draw_projection(40, 2000), epsilon=0.3)
    assert found.worst_distance < 0.3


def test_sampled_pairs() -> None:
    x, drawn = points(400, 20), draw_projection(20, 10)
    one, again = (measure_distortion(x, drawn, pairs=500, seed=2) for _ in range(2))
    assert one == again
    assert (one.pairs, one.sampled) == (500, True)
    every = measure_distortion(x, drawn, pairs=None)
    assert (every.pairs, every.sampled) == (400 * 399 // 2, False)
    assert one.worst_distance <= every.worst_distance
    assert dict(one.distances)[0.5] == pytest.approx(dict(every.distances)[0.5], abs=0.1)
    assert measure_distortion(x, drawn, pairs=500, seed=3) != one
    many, _ = module._pairs(100, 4000, 0)
    assert bool((many[0] != many[1]).all())
    assert sorted(many.unique().tolist()) == list(range(100))


def test_points_that_coincide_are_counted_and_left_out() -> None:
    x = torch.cat([points(3, 5), points(3, 5), torch.zeros(2, 5)])
    found = measure_distortion(x, draw_projection(5, 4))
    assert found.coincident == 4
    assert math.isfinite(found.worst_distance)
    assert math.isfinite(found.worst_inner_product)
    with pytest.raises(InputError, match="coincide"):
        measure_distortion(torch.ones(3, 5), draw_projection(5, 4))


def test_more_dimensions_than_there_were_are_allowed() -> None:
    found = measure_distortion(points(20, 3), draw_projection(3, 3000, "sparse"), epsilon=0.2)
    assert found.worst_distance < 0.2


def test_very_sparse_maps_can_lose_a_vector() -> None:
    drawn = draw_projection(1000, 50, "sparse", density=1000**-0.5)
    x = torch.eye(1000, dtype=F64)[:100]
    assert not drawn.has_bound
    assert measure_distortion(x, drawn).worst_distance > measure_distortion(points(100, 1000), drawn).worst_distance


def test_json() -> None:
    found = measure_distortion(points(9, 5).float(), draw_projection(5, 4)).to_json()
    plain = json.loads(json.dumps(found, allow_nan=False))
    assert plain["projection"]["k"] == 4
    assert list(plain["distances"]) == ["0.0", "0.01", "0.05", "0.5", "0.95", "0.99", "1.0"]
    assert (plain["points"], plain["pairs"], plain["epsilon"]) == (9, 36, 0.1)
    assert json.loads(json.dumps(needed_dimensions(10, 0.1).to_json()))["points"] == 10


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_epsilon_and_failure_are_shares(wrong: float) -> None:
    with pytest.raises(InputError, match="epsilon is how much"):
        needed_dimensions(10, wrong)
    with pytest.raises(InputError, match="failure is the probability"):
        needed_dimensions(10, 0.1, wrong)
    with pytest.raises(InputError, match="epsilon is how much"):
        measure_distortion(points(3, 4), draw_projection(4, 2), epsilon=wrong)


@pytest.mark.parametrize("count", [1, 0, -3])
def test_fewer_than_two_points_are_refused(count: int) -> None:
    with pytest.raises(InputError, match="points have no distance"):
        needed_dimensions(count, 0.1)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0, 3), {}, "both are at least 1"),
        ((3, 0), {}, "both are at least 1"),
        ((3, 3), {"kind": "sparse", "density": 0.0}, "0 < density <= 1"),
        ((3, 3), {"kind": "sparse", "density": 1.5}, "0 < density <= 1"),
        ((3, 3), {"kind": "sign", "density": 0.5}, "to a sparse map alone"),
    ],
)
def test_maps_that_cannot_be(arguments: tuple[int, int], options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        draw_projection(*arguments, **options)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.full((3, 4), math.nan), "NaN or infinite"),
        (torch.zeros(0, 4), "is empty"),
        (torch.zeros(4), "two axes"),
        (torch.zeros(3, 5), "takes 4"),
        (torch.zeros(1, 4), "no pairs"),
    ],
)
def test_points_that_cannot_be_measured(x: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        measure_distortion(x, draw_projection(4, 2))


def test_no_pairs_show_nothing() -> None:
    with pytest.raises(InputError, match="0 pairs show nothing"):
        measure_distortion(points(3, 4), draw_projection(4, 2), pairs=0)
