"""The residual stream and what each sublayer adds to it, through depth: ranks, and the rank inequalities of note 000.

The network runs once; each value is measured when it passes its site and then dropped, so that memory is one block's
worth. For each block: residual + sublayer output (the sum, before a norm that follows it), and for each head Q K' (the
scores without scale, bias and mask) and A V (the heads' output). For Linformer K and V are the projected ones; linear
attention has no Q K'.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import InputError
from pellucid.model import config as c
from pellucid.model.mechanisms import LinformerMechanism
from pellucid.model.sites import sites as find_sites
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.baseline import random_twin
from pellucid.spectra.inequality import RankBound, product_bound, sum_bound
from pellucid.spectra.rank import TAUS, Ranks, check_matrix, distance_to_mean_row, ranks
from pellucid.spectra.reading import Part, read

# The last two words of the sites that are measured: the stream, and what is added to it.
_STREAM = ("embedding.sum", "embedding.norm", "residual.mid", "residual.cross", "residual.out", "final.norm")
_CHANGES = ("attention.output", "cross.output", "feed_forward.output")
_PARTS = ("query", "key", "value", "weights", "heads")


@dataclass(frozen=True)
class SiteRanks:
    """The ranks of a site's tokens x width matrix, and how far its rows are from being all the same."""

    site: str
    ranks: Ranks
    distance_to_mean_row: float

    def to_json(self) -> dict[str, Any]:
        return {"site": self.site, **self.ranks.to_json(), "distance_to_mean_row": self.distance_to_mean_row}


@dataclass(frozen=True)
class SiteBound:
    """A rank inequality at a site; of one head for a product."""

    site: str
    formula: str
    head: int | None
    bound: RankBound

    def to_json(self) -> dict[str, Any]:
        return {"site": self.site, "formula": self.formula, "head": self.head, **self.bound.to_json()}


@dataclass(frozen=True)
class DepthRanks:
    """All sites and inequalities of one text, in the order of the computation, and those of random weights."""

    model: str
    tokens: int
    tau: tuple[float, ...]
    sites: tuple[SiteRanks, ...]
    bounds: tuple[SiteBound, ...]
    baseline: DepthRanks | None = None

    def __getitem__(self, site: str) -> SiteRanks:
        for measured in self.sites:
            if measured.site == site:
                return measured
        raise InputError(f"{site!r} was not measured, but {', '.join(each.site for each in self.sites)}")

    def to_json(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokens": self.tokens,
            "tau": list(self.tau),
            "sites": [site.to_json() for site in self.sites],
            "bounds": [bound.to_json() for bound in self.bounds],
            "baseline": None if self.baseline is None else self.baseline.to_json(),
        }


@torch.no_grad()
def rank_through_depth(
    model: Model,
    text: Part,
    target: Part | None = None,
    tau: tuple[float, ...] = TAUS,
    *,
    heads: bool = True,
    baseline_seed: int | None = 0,
) -> DepthRanks:
    """The ranks of the stream and of each sublayer's output on one text, and the inequalities between them.

    text: a text or its ids; for an encoder-decoder the source, with what it has written as `target` (words get the
      start token).
    heads: the products of each head too. That forms every N x N matrix of a block and decomposes it (time N^3 a head):
      for thousands of tokens pass False.
    baseline_seed: the same for random weights of the same config, drawn from this seed; None for none.
    """
    texts = read(model, text if target is None else (text, target))
    walk = _run(model.network, texts, tau, heads=heads)
    random = None
    if baseline_seed is not None:
        other = _run(random_twin(model.network, baseline_seed), texts, tau, heads=heads)
        random = DepthRanks("random weights", texts[-1].shape[1], tau, tuple(other.sites), tuple(other.bounds))
    return DepthRanks(model.name, texts[-1].shape[1], tau, tuple(walk.sites), tuple(walk.bounds), random)


def _run(network: Transformer, texts: tuple[Tensor, ...], tau: tuple[float, ...], *, heads: bool) -> _Walk:
    if network.training and network.config.dropout:
        raise InputError("the network is in training mode, where dropout changes every rank: call network.eval()")
    # Weights exist on the reference kernel alone.
    network = network.with_kernel("reference") if heads else network
    walk = _Walk(network, tau)
    with ExitStack() as hooks:
        for name, site in find_sites(network).items():
            if name.endswith(_STREAM + _CHANGES) or (heads and name.split(".")[-1] in _PARTS):
                hooks.callback(site.register_forward_hook(walk.hook(name)).remove)
        network(*texts)
    if not walk.sites:
        raise InputError("the network is compiled and has no sites left to see: pass the one given to torch.compile")
    return walk


@dataclass
class _Walk:
    """What is measured while the values pass by, and what the next inequality still needs."""

    network: Transformer
    tau: tuple[float, ...]
    sites: list[SiteRanks] = field(default_factory=list)
    bounds: list[SiteBound] = field(default_factory=list)
    stream: Tensor | None = None
    change: Tensor | None = None
    parts: dict[str, Tensor] = field(default_factory=dict)

    def hook(self, name: str) -> Any:
        return lambda module, inputs, value: self.see(name, value[0])

    def see(self, name: str, value: Tensor) -> None:
        part, word = name.split(".")[-2:]
        if word == "heads":
            self._products(name.removesuffix(".heads"))
            return
        if word in _PARTS:
            self.parts[word] = value
            return
        self.sites.append(
            SiteRanks(name, ranks(check_matrix(value, name), self.tau), distance_to_mean_row(value)),
        )
        if word == "output":
            self.change = value
        elif part == "residual":
            assert self.stream is not None
            assert self.change is not None
            bound = sum_bound(self.stream, self.change)
            self.bounds.append(SiteBound(name, "residual + sublayer output", None, bound))
        if part in ("residual", "embedding"):
            self.stream = value

    def _products(self, place: str) -> None:
        """Those of each head, whose group's keys and values it shares; then the matrices go."""
        query, weights = self.parts["query"], self.parts["weights"]
        key, value = self._kept(place)
        for head in range(len(query)):
            group = head * len(key) // len(query)
            if not isinstance(self.network.config.attention, c.Linear):
                scores = product_bound(query[head], key[group].T)
                self.bounds.append(SiteBound(f"{place}.scores", "Q K'", head, scores))
            self.bounds.append(SiteBound(f"{place}.heads", "A V", head, product_bound(weights[head], value[group])))
        self.parts.clear()

    def _kept(self, place: str) -> tuple[Tensor, Tensor]:
        """The keys and values that the weights are about: Linformer's are mixtures of those at the sites."""
        key, value = self.parts["key"], self.parts["value"]
        mechanism = self.network.get_submodule(f"{place}.mechanism")
        if not isinstance(mechanism, LinformerMechanism):
            return key, value
        tokens = key.shape[-2]
        return mechanism.key_projection[:, :tokens] @ key, mechanism.value_projection[:, :tokens] @ value
