"""The difference of two linear maps of one shape, whole or a head's band of it.

Where the two share a weight and differ by adapters alone, the difference is B1 A1 - B0 A0 = [B1, -B0] [A1; A0] and
stays factored; else the weights are subtracted.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.model.attention import Attention
from pellucid.model.layers import Linear
from pellucid.spectra.change import Change
from pellucid.spectra.rank import ranks_of, singular_values, singular_values_of_product
from pellucid.spectra.weights import Spectrum

NAMES = ("query", "key", "value", "output")
Matrix = Float[Tensor, "rows columns"]


@dataclass(frozen=True)
class Band:
    """One of `of` equal bands of a weight, of its rows (axis 0) or of its columns."""

    axis: int = 0
    place: int = 0
    of: int = 1

    def cut(self, weight: Matrix) -> Float[Tensor, "own_rows own_columns"]:
        return weight.chunk(self.of, self.axis)[self.place]


WHOLE = Band()


def maps_of(attention: Attention) -> dict[str, Linear]:
    maps = (attention.to_query, attention.to_key, attention.to_value, attention.to_output)
    return dict(zip(NAMES, maps, strict=True))


def band_of(attention: Attention, head: int, name: str) -> Band:
    """PyTorch keeps W' (outputs first): a head has a band of rows, and of W_O' a band of columns."""
    heads = attention.head_count if name in ("query", "output") else attention.groups
    return Band(1 if name == "output" else 0, head * heads // attention.head_count, heads)


@torch.no_grad()
def change_of_map(new: Linear, old: Linear, tau: tuple[float, ...], band: Band = WHOLE) -> Change:
    factors = _factors(new, old)
    before = band.cut(_acting(old))
    if factors is None:
        rounding = max(torch.finfo(each.weight.dtype).eps for each in (new, old))
        return change_of_matrix(band.cut(_acting(new)), before, tau, rounding)
    up, down = factors
    pair = (up, band.cut(down)) if band.axis else (band.cut(up), down)
    values, rounding = singular_values_of_product(*pair)
    shape = (before.shape[0], before.shape[1])
    return change_of(values, shape, tau, rounding, float(before.norm()), factored=True)


def change_of_matrix(new: Matrix, old: Matrix, tau: tuple[float, ...], rounding: float) -> Change:
    """rounding: each stored number is within half of this share of what it was rounded from."""
    new, old = new.double(), old.double()
    floor = rounding * float(old.norm() + new.norm()) / 2
    return change_of(singular_values(new - old), (old.shape[0], old.shape[1]), tau, floor, float(old.norm()))


def change_of(
    values: Float[Tensor, " values"],
    shape: tuple[int, int],
    tau: tuple[float, ...],
    floor: float,
    size: float,
    *,
    factored: bool = False,
) -> Change:
    """floor: how large rounding alone can make a singular value; the numerical rank counts those above it."""
    found = ranks_of(values, shape, torch.float64, tau, floor=floor)
    relative = float(values.norm()) / size if size > 0 else 0.0
    return Change(Spectrum(tuple(values.tolist()), found), relative, floor, factored)


def _acting(one: Linear) -> Matrix:
    """The weight with what its adapters add, in float64."""
    weight = one.weight.detach().double()
    return weight if one.change is None else one.change.added_to(weight)


def _factors(new: Linear, old: Linear) -> tuple[Float[Tensor, "rows rank"], Float[Tensor, "rank columns"]] | None:
    if not torch.equal(new.weight, old.weight):
        return None
    changes = [(sign, each.change.factors()) for sign, each in ((1, new), (-1, old)) if each.change is not None]
    pairs = [(sign * factors[0], factors[1]) for sign, factors in changes if factors is not None]
    return (torch.cat([up for up, _ in pairs], 1), torch.cat([down for _, down in pairs])) if pairs else None
