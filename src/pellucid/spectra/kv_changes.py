"""A cache made smaller (in rank, in tokens or in bits), and what that does to the scores of the tokens after it."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels.mask import Mask
from pellucid.kernels.reference import Heads, Key, Query, Value
from pellucid.kernels.view import View
from pellucid.model.cache import BlockCache, Cache, KeysAndValues
from pellucid.model.mechanisms import Kernel, Scored
from pellucid.model.transformer import Transformer
from pellucid.spectra.kv_results import Change

Kept = Float[Tensor, "batch groups tokens width"]
_SCALE_BYTES = 4  # of a float32
_ROWS = 256  # tokens whose scores are compared at once


class Alteration(ABC):
    """One way to keep less of the tokens that were read."""

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def change(self, x: Kept) -> Kept:
        """The keys or the values of a block as they would be read back."""

    @abstractmethod
    def shown(self, tokens: int) -> Bool[Tensor, " tokens"]:
        """Which tokens of self-attention's cache are kept at all. Those of a source all are."""

    @abstractmethod
    def size(self, tokens: int, width: int, itemsize: int) -> int:
        """Bytes that one head's keys or values take."""


@dataclass(frozen=True)
class LowRank(Alteration):
    """Each head's keys, and its values, as the nearest matrix of this rank (Eckart and Young): the least that is lost.

    Kept as two factors, or whole where those would be larger.
    """

    rank: int

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise InputError(f"a cache of rank {self.rank} holds nothing: give 1 or more")

    @property
    def name(self) -> str:
        return f"rank {self.rank}"

    def change(self, x: Kept) -> Kept:
        if self.rank >= min(x.shape[-2:]):
            return x
        exact = x.double()
        top = directions(exact)[1][..., : self.rank, :]
        return (exact @ top.transpose(-1, -2) @ top).to(x.dtype)

    def shown(self, tokens: int) -> Bool[Tensor, " tokens"]:
        return torch.ones(tokens, dtype=torch.bool)

    def size(self, tokens: int, width: int, itemsize: int) -> int:
        return min(self.rank * (tokens + width), tokens * width) * itemsize


@dataclass(frozen=True)
class WindowAndSinks(Alteration):
    """The first `sinks` tokens and the last `window` of those that were read, at the places where they were."""

    window: int
    sinks: int = 4

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InputError(f"a window of {self.window} tokens shows nothing: give 1 or more")
        if self.sinks < 0:
            raise InputError(f"{self.sinks} sinks cannot be: give 0 or more")

    @property
    def name(self) -> str:
        return f"window {self.window} + {self.sinks} sink{'s'[: self.sinks != 1]}"

    def change(self, x: Kept) -> Kept:
        return x

    def shown(self, tokens: int) -> Bool[Tensor, " tokens"]:
        place = torch.arange(tokens)
        return (place < self.sinks) | (place >= tokens - self.window)

    def size(self, tokens: int, width: int, itemsize: int) -> int:
        return tokens * width * itemsize


@dataclass(frozen=True)
class Int8(Alteration):
    """Whole numbers from -127 to 127, with a float32 scale for each head and token, keys and values apart.

    No number moves by more than 1 / 254 of the largest of its head and token.
    """

    @property
    def name(self) -> str:
        return "int8"

    def change(self, x: Kept) -> Kept:
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        scale = (exact.abs().amax(-1, keepdim=True) / 127).clamp(min=torch.finfo(exact.dtype).tiny)
        return ((exact / scale).round().clamp(-127, 127) * scale).to(x.dtype)

    def shown(self, tokens: int) -> Bool[Tensor, " tokens"]:
        return torch.ones(tokens, dtype=torch.bool)

    def size(self, tokens: int, width: int, itemsize: int) -> int:
        return tokens * (width + _SCALE_BYTES)


def directions(
    x: Float64[Tensor, "*axes tokens width"],
) -> tuple[Float64[Tensor, "*axes values"], Float64[Tensor, "*axes values width"]]:
    """Singular values, the largest first, and right singular vectors, by way of the small factor of X = QR."""
    small = torch.linalg.qr(x, mode="r").R if x.shape[-2] > x.shape[-1] else x
    _, values, right = torch.linalg.svd(small, full_matrices=False)
    return values, right


@dataclass(frozen=True)
class Comparison:
    """A cache that holds the first part of a text, and the scores of the rest with it as it is."""

    network: Transformer
    cache: Cache
    rest: Int[Tensor, "1 rest"]
    scores: Float[Tensor, "rest vocab"]

    @staticmethod
    def of(network: Transformer, cache: Cache, rest: Int[Tensor, "1 rest"]) -> Comparison:
        return Comparison(network, cache, rest, _decode(network, copy.deepcopy(cache), rest))

    @property
    def loss(self) -> float:
        """Nats per token of the rest, its first left out: what comes before that one is in the cache."""
        return float(_loss(self.scores, self.rest[0]))

    def change(self, alteration: Alteration) -> Change:
        altered, length = copy.deepcopy(self.cache), self.cache.length
        shown = alteration.shown(length)
        before = sum(_size(block, None, length) for block in altered.blocks)
        after = sum(_size(block, alteration, length) for block in altered.blocks)
        for block in altered.blocks:
            _alter(block, alteration, length)
        network = self.network if bool(shown.all()) else _looking_past(self.network, shown.to(self.rest.device))
        scores = _decode(network, altered, self.rest)
        if not bool(scores.isfinite().all()):
            raise InputError(
                f"with the cache at {alteration.name}, scores are not numbers (NaN or infinite): check the weights, or "
                "use a dtype of a wider range (float32)"
            )
        return Change(alteration.name, after, before, **self._figures(scores))

    def _figures(self, scores: Float[Tensor, "rest vocab"]) -> dict[str, float]:
        total, largest, divergence, same = 0.0, 0.0, 0.0, 0
        for old, new in zip(torch.split(self.scores, _ROWS), torch.split(scores, _ROWS), strict=True):
            difference = (new - old).abs()
            total += float(difference.double().sum())
            largest = max(largest, float(difference.max()))
            shares, others = old.double().log_softmax(-1), new.double().log_softmax(-1)
            divergence += float((shares.exp() * (shares - others)).sum())
            same += int((old.argmax(-1) == new.argmax(-1)).sum())
        tokens = len(scores)
        return {
            "mean": total / scores.numel(),
            "largest": largest,
            "divergence": max(divergence / tokens, 0.0),
            "loss": float(_loss(scores, self.rest[0])) - self.loss,
            "agreement": same / tokens,
        }


@torch.no_grad()
def _decode(network: Transformer, cache: Cache, rest: Int[Tensor, "1 rest"]) -> Float[Tensor, "rest vocab"]:
    scores: Tensor = network.decode(rest, cache=cache)[0]
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _loss(scores: Float[Tensor, "rest vocab"], ids: Int[Tensor, " rest"]) -> Float[Tensor, ""]:
    return torch.nn.functional.cross_entropy(scores[:-1], ids[1:])


def _alter(block: BlockCache, alteration: Alteration, length: int) -> None:
    if isinstance(block.own, KeysAndValues):
        filled = min(length, block.own.size)
        for kept in (block.own.key, block.own.value):
            kept[:, :, :filled] = alteration.change(kept[:, :, :filled])
    if isinstance(block.cross, tuple):
        key, value = block.cross
        block.cross = alteration.change(key), alteration.change(value)


def _size(block: BlockCache, alteration: Alteration | None, length: int) -> int:
    """Bytes of the slots that are filled, altered or as they are."""
    found = 0
    for kept, tokens in _matrices(block, alteration, length):
        groups, width, itemsize = kept.shape[1], kept.shape[3], kept.dtype.itemsize
        each = tokens * width * itemsize if alteration is None else alteration.size(tokens, width, itemsize)
        found += groups * each
    return found


def _matrices(block: BlockCache, alteration: Alteration | None, length: int) -> Iterator[tuple[Kept, int]]:
    """Keys and values of the text and of its source, each with how many tokens are kept of it."""
    if isinstance(block.own, KeysAndValues):
        filled = min(length, block.own.size)
        tokens = filled if alteration is None else int(alteration.shown(length)[length - filled :].sum())
        yield from ((kept, tokens) for kept in (block.own.key, block.own.value))
    if isinstance(block.cross, tuple):
        yield from ((kept, kept.shape[2]) for kept in block.cross)


# --- tokens that are no longer there ---


def _looking_past(network: Transformer, shown: Bool[Tensor, " tokens"]) -> Transformer:
    """A twin whose self-attention does not see some of the tokens that were read. Positions stay as they were."""
    twin = network.twin()
    assert twin.decoder is not None
    for block in twin.decoder.blocks:
        mechanism = block.attention.mechanism
        assert isinstance(mechanism, Scored)
        mechanism.kernel = partial(_without_hidden, kernel=mechanism.kernel, shown=shown)
    return twin


def _without_hidden(
    query: Query, key: Key, value: Value, *, scale: float, view: View, kernel: Kernel, shown: Bool[Tensor, " tokens"]
) -> Heads:
    """A block with a window holds only the last of the tokens that were read, so the ends are laid side by side."""
    past = shown[len(shown) - view.offset :]
    new = torch.ones(view.queries, dtype=torch.bool, device=past.device)
    mask = view.mask & Mask(padding=torch.cat((past, new))[None])
    return kernel(query, key, value, scale=scale, view=replace(view, mask=mask))
