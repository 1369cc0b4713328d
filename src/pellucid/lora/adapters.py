"""Adapters on a model: add, choose, sum, merge into the weights and take out again, remove.

    lora.add(model, Lora(rank=8))       only the adapter trains now; it changes nothing yet, since B starts at zero
    lora.use(model, {"a": 0.7, "b": 0.3})
    lora.merge(model)                   a plain network, whose weights hold the change; lora.unmerge(model) undoes it

A merge keeps the weights that it changes, so that `unmerge` gives them back to the bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.lora.config import Lora
from pellucid.lora.targets import Group, find_groups, find_whole, linear_maps
from pellucid.model.adapters import Changes, LowRank
from pellucid.model.layers import Linear
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model


@dataclass(frozen=True)
class Adapter:
    """What was added: on which maps, how many parameters train, and of how many."""

    name: str
    config: Lora
    maps: tuple[str, ...]
    trained: int
    total: int


@dataclass
class Book:
    """What a network notes about its adapters.

    changes: those of every map, in the network or, while they are merged, only here.
    whole: each adapter's own values of the parameters that it trains whole; originals: the base's.
    trainable: the parameters that trained before there were adapters.
    merged: the weights as they were, while a change is merged into them.
    """

    trainable: set[str]
    configs: dict[str, Lora] = field(default_factory=dict)
    active: dict[str, float] = field(default_factory=dict)
    changes: dict[str, Changes] = field(default_factory=dict)
    whole: dict[str, dict[str, nn.Parameter]] = field(default_factory=dict)
    originals: dict[str, nn.Parameter] = field(default_factory=dict)
    merged: dict[str, Tensor] | None = None


def add(
    model: Model | Transformer, config: Lora = Lora(), name: str = "default", *, seed: int | None = None
) -> Adapter:
    """Put an adapter on a model and make it the one that acts and trains; everything else is frozen.

    A is drawn uniformly within 1 / sqrt(in), from the seed or from torch's own state; B is zero.
    """
    network = network_of(model)
    book = _book(network) if isinstance(network.adapters, Book) else _new_book(network)
    _check_name(name, book)
    _refuse_merged(book, "add an adapter")
    groups = find_groups(network, config.targets)
    whole = find_whole(network, config.whole, groups)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    maps = linear_maps(network)
    for group in groups:
        _put(book, maps, group, config, name, generator)
    parameters = {key: book.originals.get(key, network.get_parameter(key)) for key in whole}
    book.originals |= parameters
    book.whole[name] = {key: nn.Parameter(each.detach().clone()) for key, each in parameters.items()}
    book.configs[name] = config
    network.adapters = book
    use(network, name)
    every = list(network.parameters())
    trained = sum(each.numel() for each in every if each.requires_grad)
    paths = tuple(path for group in groups for path in group)
    return Adapter(name, config, paths, trained, sum(each.numel() for each in every))


def use(model: Model | Transformer, weights: str | Mapping[str, float | int]) -> None:
    """Let one adapter act, or several, each with its weight in their sum. Those that act are those that train."""
    network = network_of(model)
    book = _book(network)
    _refuse_merged(book, "switch adapters")
    chosen = {weights: 1.0} if isinstance(weights, str) else {name: float(each) for name, each in weights.items()}
    for name in chosen:
        if name not in book.configs:
            raise InputError(f"no adapter is called {name!r}; there are {', '.join(book.configs)}")
    _refuse_two_wholes(book, list(chosen))
    book.active = chosen
    _apply(network, book)


def off(model: Model | Transformer) -> None:
    """Let no adapter act: the model is its base again, to the bit."""
    use(model, {})


def merge(model: Model | Transformer, *, keep: bool = True) -> None:
    """Add what acts to the weights, rounded once, and leave a plain network.

    keep: keep a copy of the weights that change, so that `unmerge` is exact. Without it the adapters are gone.
    """
    network = network_of(model)
    book = _book(network)
    _refuse_merged(book, "merge")
    book.merged = {}
    for path, changes in book.changes.items():
        module = _map(network, path)
        if keep:
            book.merged[path] = module.weight.detach().clone()
        with torch.no_grad():
            module.weight.copy_(changes.added_to(module.weight))
        module.change = None
    if not keep:
        network.adapters = None
        _thaw(network, book)


def unmerge(model: Model | Transformer) -> None:
    """Give the weights back as they were, to the bit, and let the adapters act beside them again."""
    network = network_of(model)
    book = _book(network)
    if book.merged is None:
        raise InputError("nothing is merged into this model: call merge first")
    for path, weight in book.merged.items():
        module = _map(network, path)
        with torch.no_grad():
            module.weight.copy_(weight)
        module.change = book.changes[path].to(module.weight.device)
    book.merged = None
    _apply(network, book)


def remove(model: Model | Transformer, name: str) -> None:
    """Take an adapter off. After the last one, what trained before trains again."""
    network = network_of(model)
    book = _book(network)
    _refuse_merged(book, "remove an adapter")
    use(network, {other: weight for other, weight in book.active.items() if other != _known(book, name)})
    for path, changes in list(book.changes.items()):
        if name in changes:
            del changes[name]
        if not changes:
            _map(network, path).change = None
            del book.changes[path]
    del book.configs[name], book.whole[name]
    if not book.configs:
        network.adapters = None
        _thaw(network, book)


def adapters(model: Model | Transformer) -> dict[str, Lora]:
    """The adapters of a model by name."""
    book = network_of(model).adapters
    return dict(book.configs) if isinstance(book, Book) else {}


def active(model: Model | Transformer) -> dict[str, float]:
    """Those that act, each with its weight."""
    book = network_of(model).adapters
    return dict(book.active) if isinstance(book, Book) else {}


def parts(model: Model | Transformer, name: str) -> tuple[dict[str, LowRank], dict[str, nn.Parameter]]:
    """An adapter's changes by the path of their map, and the parameters that it trains whole by name."""
    book = _book(network_of(model))
    _known(book, name)
    low = {path: changes.of(name) for path, changes in book.changes.items() if name in changes}
    return low, dict(book.whole[name])


def network_of(model: Model | Transformer) -> Transformer:
    return model.network if isinstance(model, Model) else model


def _put(
    book: Book, maps: dict[str, Linear], group: Group, config: Lora, name: str, generator: torch.Generator | None
) -> None:
    """A new change on each map of a group; they share A."""
    first, rank = maps[group[0]], config.rank_of(group[0])
    device, dtype = first.weight.device, torch.promote_types(first.weight.dtype, torch.float32)
    bound = first.in_features**-0.5
    drawn = torch.empty(rank, first.in_features).uniform_(-bound, bound, generator=generator)
    down = nn.Parameter(drawn.to(device, dtype))
    for path in group:
        up = nn.Parameter(torch.zeros(maps[path].out_features, rank, device=device, dtype=dtype))
        changes = book.changes.setdefault(path, Changes())
        changes[name] = LowRank(down, up, scale=config.scale_of(group[0]), dropout=config.dropout)
        changes.train(maps[path].training)
        maps[path].change = changes


def _apply(network: Transformer, book: Book) -> None:
    """Make the network compute with what acts, and train that alone."""
    for changes in book.changes.values():
        changes.active = {name: weight for name, weight in book.active.items() if name in changes}
    own = {key: each for name in book.active for key, each in book.whole[name].items()}
    for key, original in book.originals.items():
        path, _, leaf = key.rpartition(".")
        module, new = network.get_submodule(path), own.get(key, original)
        new.data = new.data.to(module.get_parameter(leaf))
        setattr(module, leaf, new)
    network.requires_grad_(False)
    for changes in book.changes.values():
        for name in changes.active:
            changes[name].requires_grad_(True)
    for each in own.values():
        each.requires_grad_(True)


def _new_book(network: Transformer) -> Book:
    return Book({name for name, each in network.named_parameters() if each.requires_grad})


def _thaw(network: Transformer, book: Book) -> None:
    for name, each in network.named_parameters():
        each.requires_grad_(name in book.trainable)


def _book(network: Transformer) -> Book:
    if not isinstance(network.adapters, Book):
        raise InputError("this model has no adapter: add one with lora.add, or open one with lora.load")
    return network.adapters


def _known(book: Book, name: str) -> str:
    if name not in book.configs:
        raise InputError(f"no adapter is called {name!r}; there are {', '.join(book.configs)}")
    return name


def _map(network: Transformer, path: str) -> Linear:
    module = network.get_submodule(path)
    assert isinstance(module, Linear)
    return module


def _check_name(name: str, book: Book) -> None:
    if name in book.configs:
        raise InputError(f"there is an adapter called {name!r} already: choose another name, or remove it first")
    if not re.fullmatch(r"[\w-]+", name) or hasattr(Changes, name):
        raise InputError(f"{name!r} cannot be the name of an adapter: use letters, digits, - and _, such as 'french'")


def _refuse_merged(book: Book, what: str) -> None:
    if book.merged is not None:
        raise InputError(f"the adapters are merged into the weights, so you cannot {what}: call lora.unmerge first")


def _refuse_two_wholes(book: Book, chosen: list[str]) -> None:
    owners: dict[str, str] = {}
    for name in chosen:
        for key in book.whole[name]:
            if key in owners:
                raise InputError(
                    f"the adapters {owners[key]!r} and {name!r} both have {key} of their own, and it cannot be summed: "
                    "use one of them at a time"
                )
            owners[key] = name
