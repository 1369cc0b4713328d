"""A network without adapters, whose weights hold what they change: for all that reads weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pellucid.model.layers import Linear

if TYPE_CHECKING:
    from pellucid.model.transformer import Transformer


def changed(network: nn.Module) -> dict[str, Linear]:
    """The linear maps that have adapters, acting or not, by their paths."""
    linear = ((path, module) for path, module in network.named_modules() if isinstance(module, Linear))
    return {path: module for path, module in linear if module.change is not None}


def plain_parameters(network: nn.Module) -> dict[str, Any]:
    """The state of a network as one without adapters would have it: other tensors where a weight is changed."""
    maps = changed(network)
    beside = tuple(f"{path}.change." for path in maps)
    own = {name: each for name, each in network.state_dict(keep_vars=True).items() if not name.startswith(beside)}
    new = {f"{path}.weight": module.change.added_to(module.weight) for path, module in maps.items() if module.change}
    return own | {name: nn.Parameter(weight, requires_grad=False) for name, weight in new.items()}


def plain(network: Transformer) -> Transformer:
    """The network itself, or a twin without adapters that is made once and follows them.

    It stays the same object while the network keeps its parameters, so what was compiled for it is found again.
    """
    maps = changed(network)
    if not maps:
        return network
    identity = [id(each) for each in network.parameters()]
    kept = _PLAIN.get(network)
    if kept is None or kept[0] != identity:
        kept = (identity, [_stamp(maps)], network.twin())
        _PLAIN[network] = kept
    _, stamps, twin = kept
    if stamps[0] != _stamp(maps):
        stamps[0] = _stamp(maps)
        _renew(twin, maps)
    return twin.train(network.training)


@torch.no_grad()
def _renew(twin: Transformer, maps: dict[str, Linear]) -> None:
    for path, module in maps.items():
        assert module.change is not None
        old, new = twin.get_submodule(path).weight, module.change.added_to(module.weight)
        assert isinstance(old, nn.Parameter)
        if (old.device, old.dtype) == (new.device, new.dtype):
            old.copy_(new)
        else:
            old.data = new


@torch.no_grad()
def _stamp(maps: dict[str, Linear]) -> object:
    """What acts, where its numbers are, how often they were written, and a sum over some."""
    return [
        (
            dict(module.change.active),
            [(each.data_ptr(), each._version, float(each[..., 0].sum())) for each in _numbers(module)],
        )
        for module in maps.values()
        if module.change is not None
    ]


def _numbers(module: Linear) -> list[Tensor]:
    assert module.change is not None
    return [module.weight, *module.change.parameters()]


_PLAIN: WeakKeyDictionary[Transformer, tuple[list[int], list[object], Transformer]] = WeakKeyDictionary()
