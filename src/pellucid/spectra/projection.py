"""Johnson-Lindenstrauss maps: random maps to k dimensions that nearly keep the distances between n points.

kinds   gaussian: N(0, 1/k). sign: +-1/sqrt(k). sparse: +-1/sqrt(k density) with probability density, 0 otherwise.
bound   A pair's squared distance changes by a factor outside 1 +- epsilon with a probability of at most
        2 exp(-k h / 2), h = epsilon^2/2 - epsilon^3/3: for orthogonal projections and Gaussian maps (Dasgupta and
        Gupta 2003), for signs and for densities of 1/3 or more (Achlioptas 2003). Sparser maps (Li, Hastie and Church
        2006 take 1/sqrt(width)) have no such bound for every set of points: they can lose a vector of few non-zeros.
inner   Distances kept for the points and their negatives give |<Px, Py> - <x, y>| <= epsilon (||x||^2 + ||y||^2) / 2.
        The multiplicative form, <Px, Py> within (1 +- epsilon) <x, y>, is false; how often it holds is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64, Shaped
from torch import Tensor

from pellucid.errors import InputError
from pellucid.spectra.rank import check_matrix

Kind = Literal["gaussian", "sign", "sparse"]
Pairs = Int64[Tensor, "2 pairs"]
ACHLIOPTAS = 1 / 3
QUANTILES = (0.0, 0.01, 0.05, 0.5, 0.95, 0.99, 1.0)
# Numbers of one chunk of differences: 32 MB.
_CHUNK = 1 << 22
_SALT = 0x4A6F686E


@dataclass(frozen=True)
class Dimensions:
    """The k that a bound asks for, and the probability of success that it gives to one draw of the map."""

    points: int
    epsilon: float
    k: int
    probability: float
    bound: str

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("points", "epsilon", "k", "probability", "bound")}


def needed_dimensions(points: int, epsilon: float, failure: float | None = None) -> Dimensions:
    """The k at which all squared distances between the points are kept to 1 +- epsilon.

    failure: the probability that one draw may fail with. Without it, Dasgupta and Gupta's k = 4 ln n / (epsilon^2/2 -
      epsilon^3/3), which promises no more than that a draw succeeds with probability 1/n, so that some map exists.
    """
    _check_share(epsilon, "epsilon", "how much squared distances may change", 0.1)
    if points < 2:
        raise InputError(f"{points} points have no distance between them: give n of at least 2")
    room = epsilon**2 / 2 - epsilon**3 / 3
    if failure is None:
        k = math.ceil(4 * math.log(points) / room)
        return Dimensions(points, epsilon, k, 1 / points, "Dasgupta and Gupta 2003: 4 ln n / (eps^2/2 - eps^3/3)")
    _check_share(failure, "failure", "the probability that some distance is not kept", 0.01)
    # One pair fails with 2 exp(-k room / 2), and there are n (n - 1) / 2 of them.
    k = math.ceil(2 * math.log(points * (points - 1) / failure) / room)
    return Dimensions(points, epsilon, k, 1 - failure, "union bound: 2 ln(n (n - 1) / failure) / (eps^2/2 - eps^3/3)")


@dataclass(frozen=True)
class Projection:
    """A random map from width to k dimensions: points are rows, and go to X matrix'."""

    kind: Kind
    width: int
    k: int
    density: float
    seed: int
    matrix: Float64[Tensor, "k width"] = field(repr=False, compare=False)

    @property
    def has_bound(self) -> bool:
        """Whether the bound of `needed_dimensions` is proved for every set of points."""
        return self.kind != "sparse" or self.density >= ACHLIOPTAS

    def apply(self, points: Shaped[Tensor, "..."]) -> Float64[Tensor, "points k"]:
        """In float64."""
        if check_matrix(points, "the points").shape[1] != self.width:
            raise InputError(f"points have {points.shape[1]} numbers, but this map takes {self.width}: draw another")
        return points.double() @ self.matrix.T.to(points.device)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("kind", "width", "k", "density", "seed", "has_bound")}


def draw_projection(
    width: int, k: int, kind: Kind = "gaussian", *, density: float | None = None, seed: int = 0
) -> Projection:
    """A map of unit expected squared length. k may exceed width: it then keeps distances without saving anything.

    density: the share of non-zeros of a sparse map; Achlioptas's 1/3 unless given.
    """
    if width < 1 or k < 1:
        raise InputError(f"a map from {width} to {k} dimensions cannot be: both are at least 1")
    if kind not in get_args(Kind):
        raise InputError(f"no map is called {kind!r}: choose one of {', '.join(get_args(Kind))}")
    if density is not None and (kind != "sparse" or not 0 < density <= 1):
        raise InputError(f"density {density} with a {kind} map: give 0 < density <= 1, to a sparse map alone")
    kept = 1.0 if kind != "sparse" else ACHLIOPTAS if density is None else density
    # Salted: Gaussian points that were drawn from the same seed would be the rows of the map.
    generator = torch.Generator().manual_seed(seed + _SALT)
    if kind == "gaussian":
        matrix = torch.randn(k, width, generator=generator, dtype=torch.float64)
    else:
        matrix = torch.randint(0, 2, (k, width), generator=generator).double() * 2 - 1
    if kind == "sparse":
        matrix = matrix * (torch.rand(k, width, generator=generator, dtype=torch.float64) < kept)
    return Projection(kind, width, k, kept, seed, matrix / math.sqrt(k * kept))


@dataclass(frozen=True)
class Distortion:
    """What a map did to pairs of points.

    distances: quantiles of ||P(x - y)||^2 / ||x - y||^2 - 1, over the pairs that are apart.
    inner_products: quantiles of (<Px, Py> - <x, y>) / ((||x||^2 + ||y||^2) / 2).
    worst_*: the largest of each in size.
    within_*: the share of pairs that each inequality holds for, with this epsilon; the multiplicative one with its
      sign mended, |<Px, Py> - <x, y>| <= epsilon |<x, y>|.
    """

    projection: Projection
    points: int
    pairs: int
    sampled: bool
    coincident: int
    distances: tuple[tuple[float, float], ...]
    worst_distance: float
    inner_products: tuple[tuple[float, float], ...]
    worst_inner_product: float
    epsilon: float
    within_distance: float
    within_additive: float
    within_multiplicative: float

    def to_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name != "projection"}
        for name in ("distances", "inner_products"):
            plain[name] = {str(share): value for share, value in plain[name]}
        return {"projection": self.projection.to_json(), **plain}


@torch.no_grad()
def measure_distortion(
    points: Shaped[Tensor, "..."],
    projection: Projection,
    *,
    epsilon: float = 0.1,
    pairs: int | None = 100_000,
    seed: int = 0,
) -> Distortion:
    """How well a map keeps squared distances and inner products.

    pairs: where there are more than this, so many are drawn (with replacement) from the seed; None measures all.
    """
    _check_share(epsilon, "epsilon", "how much squared distances may change", 0.1)
    before, after = check_matrix(points, "the points").double(), projection.apply(points)
    chosen, sampled = _pairs(len(before), pairs, seed)
    chosen = chosen.to(before.device)
    true_square, true_inner, sizes = _measure(before, chosen)
    square, inner, _ = _measure(after, chosen)
    apart = true_square > 0
    if not bool(apart.any()):
        raise InputError(f"all {chosen.shape[1]} pairs coincide, so they have no distance to keep: give other points")
    stretch = square[apart] / true_square[apart] - 1
    # Two zero vectors have the inner product 0 on both sides.
    error = (inner - true_inner) / sizes.masked_fill(sizes == 0, 1)
    return Distortion(
        projection,
        len(before),
        chosen.shape[1],
        sampled,
        int((~apart).sum()),
        _quantiles(stretch),
        float(stretch.abs().max()),
        _quantiles(error),
        float(error.abs().max()),
        epsilon,
        _share(stretch.abs() <= epsilon),
        _share(error.abs() <= epsilon),
        _share((inner - true_inner).abs() <= epsilon * true_inner.abs()),
    )


def _pairs(points: int, limit: int | None, seed: int) -> tuple[Pairs, bool]:
    """All pairs i < j, or a sample of pairs i != j."""
    if points < 2:
        raise InputError(f"{points} points have no pairs: give at least 2 rows")
    if limit is not None and limit < 1:
        raise InputError(f"{limit} pairs show nothing: give at least 1, or None for all")
    if limit is None or points * (points - 1) // 2 <= limit:
        return torch.triu_indices(points, points, 1), False
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(0, points, (limit,), generator=generator)
    other = torch.randint(0, points - 1, (limit,), generator=generator)
    return torch.stack([first, other + (other >= first)]), True


def _measure(x: Float64[Tensor, "points width"], pairs: Pairs) -> tuple[Tensor, Tensor, Tensor]:
    """Squared distances, inner products and mean squared lengths, in chunks of pairs.

    Differences are taken before squares: ||x||^2 + ||y||^2 - 2 <x, y> would lose the distance of near points.
    """
    squares, inners = [], []
    size = max(1, _CHUNK // x.shape[1])
    for start in range(0, pairs.shape[1], size):
        first, second = x[pairs[:, start : start + size]]
        squares.append((first - second).square().sum(1))
        inners.append((first * second).sum(1))
    lengths = x.square().sum(1)
    return torch.cat(squares), torch.cat(inners), (lengths[pairs[0]] + lengths[pairs[1]]) / 2


def _quantiles(x: Float64[Tensor, " pairs"]) -> tuple[tuple[float, float], ...]:
    # Not torch.quantile, which takes at most 16 million numbers.
    return tuple(zip(QUANTILES, np.quantile(x.cpu().numpy(), QUANTILES).tolist(), strict=True))


def _share(kept: Tensor) -> float:
    return float(kept.double().mean())


def _check_share(value: float, name: str, meaning: str, example: float) -> None:
    if not 0 < value < 1:
        raise InputError(f"{name} is {meaning}, strictly between 0 and 1, not {value}: try {example}")
