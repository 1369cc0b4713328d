"""From the patterns of an adapter to the modules of a network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from torch import nn

from pellucid.errors import InputError
from pellucid.lora.config import matches
from pellucid.model.layers import Linear
from pellucid.model.transformer import Transformer

# The maps that share one A: nearly always one.
Group = tuple[str, ...]


def linear_maps(network: Transformer) -> dict[str, Linear]:
    return {path: module for path, module in network.named_modules() if isinstance(module, Linear)}


def find_groups(network: Transformer, patterns: Sequence[str]) -> list[Group]:
    """The maps that the patterns name, each once, in the order of the network."""
    maps = linear_maps(network)
    groups: list[Group] = []
    for pattern in patterns:
        found = [_joint(maps, path, pattern) for path in maps if matches(path, pattern.split("+")[0])]
        if not found:
            raise InputError(f"no linear map is called {pattern!r}; {_nearest(pattern.split('+')[0], maps)}")
        groups += [group for group in found if group not in groups]
    paths = [path for group in groups for path in group]
    twice = next((path for path in paths if paths.count(path) > 1), None)
    if twice is not None:
        raise InputError(f"{twice} is a target alone and of a joint one: name it once in {list(patterns)}")
    order = list(maps)
    return sorted(groups, key=lambda group: order.index(group[0]))


def _joint(maps: dict[str, Linear], path: str, pattern: str) -> Group:
    """The map at a path and those that the pattern adds to it by +, which stand beside it."""
    stem = path.rpartition(".")[0]
    group = (path, *(f"{stem}.{leaf}" for leaf in pattern.split("+")[1:]))
    for each in group:
        if each not in maps:
            raise InputError(f"{pattern!r} needs the linear map {each}; {_nearest(each, maps)}")
    widths = {maps[each].in_features for each in group}
    if len(widths) > 1:
        raise InputError(f"{' and '.join(group)} read vectors of {sorted(widths)} numbers and cannot share A")
    return group


def find_whole(network: Transformer, patterns: Sequence[str], groups: Iterable[Group]) -> list[str]:
    """The names of all parameters in the modules that the patterns name."""
    modules = {path: module for path, module in network.named_modules() if path}
    targets = [path for group in groups for path in group]
    names: dict[str, None] = {}
    for pattern in patterns:
        found = [path for path in modules if matches(path, pattern)]
        inside = {path: _parameters(modules[path], path) for path in found}
        if not any(inside.values()):
            why = "has no parameters of its own" if found else "is not a module of this network"
            own = [path for path, module in modules.items() if any(True for _ in module.parameters())]
            raise InputError(f"{pattern!r} {why}; {_nearest(pattern, own)}")
        clash = next((target for target in targets for path in found if f"{target}.".startswith(f"{path}.")), None)
        if clash is not None:
            raise InputError(f"{clash} is a target and in {pattern!r}, which is trained whole: choose one of the two")
        names |= dict.fromkeys(name for each in inside.values() for name in each)
    return list(names)


def _parameters(module: nn.Module, path: str) -> list[str]:
    return [f"{path}.{name}" for name, _ in module.named_parameters()]


def _nearest(pattern: str, paths: Iterable[str]) -> str:
    """Names are compared without the number of their block."""
    ends = dict.fromkeys(end for path in paths for end in _ends(path))
    near = get_close_matches(pattern, ends, 3, 0.5) or list(ends)[:6]
    return f"the nearest are {', '.join(near)}"


def _ends(path: str) -> list[str]:
    words = path.split(".")
    return [".".join(words[-2:]), words[-1]] if len(words) > 2 else [path]


def as_patterns(chosen: Sequence[Group], every: Iterable[str]) -> tuple[str, ...]:
    """Short patterns for exactly these of all paths: a * for the block where they are in every block."""
    paths = list(every)
    patterns: dict[str, None] = {}
    for group in chosen:
        words = group[0].split(".")
        starred = ".".join("*" if word.isdigit() else word for word in words)
        leaves = "".join(f"+{path.rpartition('.')[2]}" for path in group[1:])
        same = [path for path in paths if matches(path, starred)]
        alike = [
            other[0] for other in chosen if [path.rpartition(".")[2] for path in other[1:]] == leaves.split("+")[1:]
        ]
        patterns[(starred if set(same) <= set(alike) else group[0]) + leaves] = None
    return tuple(patterns)
