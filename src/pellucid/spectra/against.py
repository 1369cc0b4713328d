"""How low-rank the difference between two models of one shape is: in the weights, in the scores, in the attention.

weights    W1 - W0 of each head's W_Q, W_K, W_V, W_O. Where the model has an adapter on a base that is the other model,
           the difference is its product B A and stays factored; else the matrices are subtracted
scores     (Q1 K1' - Q0 K0') scale = [Q1, -Q0] [K1, K0]' scale: rank at most 2 head_width, never written as N x N.
           Before the mask and the position bias
attention  A1 - A0, which is written down. Its rows sum to zero, so its rank is at most N - 1; nothing makes it lower

Beside each stands the same of the base with every changed weight changed by Gaussian noise of the same size.
Numerical ranks allow for the rounding of the weights and of the forward pass: see `change_of`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.kernels.operator import DenseOperator, one_head
from pellucid.kernels.reference import Key, Query
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model.attention import Attention
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.baseline import derived_seed
from pellucid.spectra.change import Against, Change, HeadChange
from pellucid.spectra.maps import NAMES, Matrix, band_of, change_of, change_of_map, maps_of
from pellucid.spectra.measure import Selection, text_ids
from pellucid.spectra.parameters import odd_shape
from pellucid.spectra.rank import singular_values, singular_values_of_product
from pellucid.spectra.reading import Text
from pellucid.spectra.watch import Place, places, watch

TAUS = (0.9, 0.95, 0.99)
LONGEST = 2048  # tokens: A1 - A0 has no operator with an exact energy, and is written down

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Seen:
    """What one network showed of an attention on a text. weights: instead, for mechanisms that are not a softmax."""

    query: Query | None = None
    key: Key | None = None
    scale: float = 1.0
    view: View | None = None
    weights: Float[Tensor, "1 heads query key"] | None = None


@torch.no_grad()
def against(
    model: Model,
    base: Model,
    *texts: Text,
    context: int | None = None,
    tau: tuple[float, ...] = TAUS,
    baseline: bool = True,
    only: Selection = Selection(),
    seed: int = 0,
    progress: Progress = lambda done, total, label: None,
) -> Against:
    """The difference of two models in every head on each text; the texts are those of `spectrum`."""
    base = base.plain()
    _check_shapes(model, base)
    if not texts:
        raise InputError("no text came: give at least one")
    ids = [text_ids(model, text, context) for text in texts]
    longest = max(part.shape[1] for text in ids for part in text)
    if longest > LONGEST:
        raise InputError(
            f"a text has {longest} tokens, but the difference of attention weights is written down, for {LONGEST} at "
            f"most: ask for a context of {LONGEST}"
        )
    chosen = [(place, h) for place in places(base.network) for h in range(base.config.heads) if only.has(place, h)]
    if not chosen:
        raise InputError(f"no head is left of {only}: look at the numbers of blocks and heads, counted from 0")
    work = _Work(model, base, ids, chosen, tau, progress, len(ids) * len(chosen) * (2 if baseline else 1))
    heads = tuple(work.run(model.network))
    if baseline:
        noisy = tuple(work.run(with_noise(base.network, model.network, seed)))
        heads = tuple(replace(head, baseline=twin) for head, twin in zip(heads, noisy, strict=True))
    adapted = "" if model.plain() is model else " with its adapters"
    return Against(f"{model.name}{adapted}", base.name, longest, tau, heads)


@dataclass
class _Work:
    model: Model
    base: Model
    ids: list[tuple[Tensor, ...]]
    chosen: list[tuple[Place, int]]
    tau: tuple[float, ...]
    progress: Progress
    total: int
    done: int = 0

    def run(self, network: Transformer) -> Iterator[HeadChange]:
        old, new = places(self.base.network), places(network)
        weights = {(place, head): self._weights(new[place], old[place], head) for place, head in self.chosen}
        for text, ids in enumerate(self.ids):
            before, after = _seen(self.base.network, ids), _seen(network, ids)
            for place, head in self.chosen:
                pair, own = (before[place], after[place], head), weights[place, head]
                where = (place.stack, place.block, head, place.kind, text)
                yield HeadChange(*where, own, self._scores(*pair), self._attention(*pair))
                self.done += 1
                self.progress(self.done, self.total, f"{place.stack} block {place.block} {place.kind} head {head}")

    def _weights(self, new: Attention, old: Attention, head: int) -> dict[str, Change]:
        ours, theirs = maps_of(new), maps_of(old)
        return {name: change_of_map(ours[name], theirs[name], self.tau, band_of(new, head, name)) for name in NAMES}

    def _scores(self, before: Seen, after: Seen, head: int) -> Change | None:
        if before.query is None or after.query is None:
            return None
        (q0, k0), (q1, k1) = (_one(seen, head) for seen in (before, after))
        values, rounding = singular_values_of_product(torch.cat((q1, -q0), 1), torch.cat((k1, k0), 1).T)
        size = float(singular_values_of_product(q0, k0.T)[0].norm())
        # Rounding of the forward pass is relative to the scores themselves, not to their difference.
        eps = torch.finfo(before.query.dtype).eps
        floor = rounding + 4 * eps * (float(q0.norm() * k0.norm()) + float(q1.norm() * k1.norm()))
        shape = (len(q0), len(k0))
        return change_of(
            values * before.scale, shape, self.tau, floor * before.scale, size * before.scale, factored=True
        )

    def _attention(self, before: Seen, after: Seen, head: int) -> Change:
        a0, a1 = (_matrix(seen, head) for seen in (before, after))
        # A weight is as uncertain as its score, and rounding of a score is relative to its size.
        sizes = [1.0 + _largest_score(seen, head) for seen in (before, after)]
        eps = torch.finfo(self.base.dtype).eps
        floor = 4 * eps * float(a0.norm() * sizes[0] + a1.norm() * sizes[1])
        return change_of(singular_values(a1 - a0), (len(a0), a0.shape[1]), self.tau, floor, float(a0.norm()))


def _one(seen: Seen, head: int) -> tuple[Float[Tensor, "query head_width"], Float[Tensor, "key head_width"]]:
    assert seen.query is not None
    assert seen.key is not None
    assert seen.view is not None
    query, key, _ = one_head(seen.query, seen.key, seen.view, 0, head)
    return query[0, 0].double(), key[0, 0].double()


def _largest_score(seen: Seen, head: int) -> float:
    """No score is larger; 0 where there are none."""
    if seen.query is None:
        return 0.0
    query, key = _one(seen, head)
    return float(query.norm(dim=1).max() * key.norm(dim=1).max()) * seen.scale


def _matrix(seen: Seen, head: int) -> Matrix:
    if seen.weights is not None:
        return seen.weights[0, head].double()
    assert seen.query is not None
    assert seen.key is not None
    assert seen.view is not None
    query, key, view = one_head(seen.query, seen.key, seen.view, 0, head)
    operator = DenseOperator(query, key, scale=seen.scale, view=view)
    return operator.tile(slice(0, view.queries), slice(0, view.keys))[0, 0].double()


def _seen(network: Transformer, texts: tuple[Tensor, ...]) -> dict[Place, Seen]:
    """Queries and keys of every attention on a text; of other mechanisms than softmax, the weights."""
    found: dict[Place, Seen] = {}
    if isinstance(network.config.attention, c.Softmax | c.Linformer):

        def look(place: Place, query: Query, key: Key, scale: float, view: View) -> None:
            found[place] = Seen(query, key, scale, view)

        watch(network, texts, look)
        return found
    formed = network.with_kernel("reference")

    def keep(place: Place, value: Tensor) -> None:
        found[place] = Seen(weights=value)

    hooks = [
        attention.weights.register_forward_hook(lambda module, inputs, value, place=place: keep(place, value))
        for place, attention in places(formed).items()
    ]
    try:
        formed(*texts)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def with_noise(base: Transformer, model: Transformer, seed: int) -> Transformer:
    """The base, with Gaussian noise added to each parameter that differs, as large as the difference is."""
    noisy = base.twin()
    state, other = noisy.state_dict(), model.plain().state_dict()
    generator = torch.Generator().manual_seed(derived_seed(seed, "noise"))
    for name, old in state.items():
        difference = float((other[name].double() - old.double()).norm())
        if difference == 0:
            continue
        noise = torch.randn(old.shape, generator=generator, dtype=torch.float64)
        new = old.double() + (noise * (difference / float(noise.norm()))).to(old.device)
        path, _, leaf = name.rpartition(".")
        setattr(noisy.get_submodule(path), leaf, nn.Parameter(new.to(old.dtype), requires_grad=False))
    return noisy


def _check_shapes(model: Model, base: Model) -> None:
    odd = odd_shape(model, base)
    if odd is not None:
        raise InputError(
            f"{model.name} and {base.name} differ in shape: {odd.name} is {odd.first} and {odd.second}. --against "
            "wants the model that this one was tuned from"
        )
