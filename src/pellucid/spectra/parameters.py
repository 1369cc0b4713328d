"""What differs between the parameters of two models of one shape, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.model.layers import Linear
from pellucid.pretrained.facade import Model
from pellucid.spectra.baseline import derived_seed
from pellucid.spectra.change import Change
from pellucid.spectra.maps import change_of, change_of_map, change_of_matrix
from pellucid.spectra.rank import singular_values

TAUS = (0.9, 0.99)
Progress = Callable[[int, int, str], None]
Shape = tuple[int, ...]


@dataclass(frozen=True)
class OddShape:
    """A parameter that two models have in different shapes; None where one of them has none of that name."""

    name: str
    first: Shape | None
    second: Shape | None


@dataclass(frozen=True)
class ParameterChange:
    """One parameter. size: its Frobenius norm in the first model; difference: that of the change.

    change: its singular values and ranks; None for a vector, and where it was not asked for.
    """

    name: str
    shape: Shape
    size: float
    difference: float
    change: Change | None = None

    @property
    def relative(self) -> float | None:
        """None where something differs from nothing."""
        return self.difference / self.size if self.size > 0 else 0.0 if self.difference == 0 else None


def odd_shape(first: Model, second: Model) -> OddShape | None:
    """The first parameter that keeps two models from being of one shape; their heads may differ."""
    ours, theirs = (_shapes(one) for one in (first, second))
    names = sorted(name for name in ours.keys() | theirs.keys() if not name.startswith("head."))
    odd = next((name for name in names if ours.get(name) != theirs.get(name)), None)
    return None if odd is None else OddShape(odd, ours.get(odd), theirs.get(odd))


def parameter_changes(
    first: Model,
    second: Model,
    *,
    widest: int,
    tau: tuple[float, ...] = TAUS,
    progress: Progress = lambda done, total, label: None,
) -> tuple[ParameterChange, ...]:
    """Every parameter that both have in one shape. widest: no ranks of a matrix whose smaller side is longer."""
    ours, theirs = (parameters(one) for one in (first, second))
    names = [name for name, old in ours.items() if name in theirs and theirs[name].shape == old.shape]
    found = []
    for done, name in enumerate(names):
        progress(done, len(names), name)
        ranked = ours[name].dim() == 2 and min(ours[name].shape) <= widest
        maps = (_map_of(first, name), _map_of(second, name)) if ranked else None
        found.append(_compared(name, ours[name], theirs[name], maps, tau))
    return tuple(found)


def parameter_change(first: Model, second: Model, name: str, tau: tuple[float, ...] = TAUS) -> ParameterChange:
    """One of them, with its ranks whatever its size."""
    found = [parameters(model).get(name) for model in (first, second)]
    if found[0] is None or found[1] is None or found[0].shape != found[1].shape:
        raise InputError(f"the two models do not both have a parameter {name!r} of one shape")
    maps = (_map_of(first, name), _map_of(second, name)) if found[0].dim() == 2 else None
    return _compared(name, found[0], found[1], maps, tau)


@torch.no_grad()
def _compared(
    name: str, old: Tensor, new: Tensor, maps: tuple[nn.Module, nn.Module] | None, tau: tuple[float, ...]
) -> ParameterChange:
    """maps: the modules that hold the parameter, where its ranks are asked for."""
    size, difference = float(old.double().norm()), float((new.double() - old.double()).norm())
    alone = ParameterChange(name, tuple(old.shape), size, difference)
    if maps is None or difference == 0:
        return alone
    if isinstance(maps[0], Linear) and isinstance(maps[1], Linear):
        return replace(alone, change=change_of_map(maps[1], maps[0], tau))
    rounding = max(torch.finfo(each.dtype).eps for each in (new, old))
    return replace(alone, change=change_of_matrix(new, old, tau, rounding))


def noise_like(change: Change, size: float, tau: tuple[float, ...] = TAUS, seed: int = 0) -> Change:
    """Gaussian noise of the same shape and the same energy. size: the norm of what it would be added to."""
    shape = change.spectrum.ranks.shape
    generator = torch.Generator().manual_seed(derived_seed(seed, "noise", *map(str, shape)))
    noise: Float64[Tensor, "rows columns"] = torch.randn(shape, generator=generator, dtype=torch.float64)
    noise *= change.spectrum.ranks.energy**0.5 / noise.norm()
    return change_of(singular_values(noise), shape, tau, 0.0, size)


def parameters(model: Model) -> dict[str, Tensor]:
    """As they act, with what adapters add to them."""
    return {name: each.detach() for name, each in model.network.plain().state_dict().items()}


def _shapes(model: Model) -> dict[str, Shape]:
    return {name: tuple(each.shape) for name, each in parameters(model).items()}


def _map_of(model: Model, name: str) -> nn.Module:
    return model.network.get_submodule(name.rpartition(".")[0])
