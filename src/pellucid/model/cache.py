"""What a decoder keeps of the tokens it has read, so that the next one costs one row and not all of them.

The caller makes a cache and owns it; the blocks write into it; `Transformer.decode` alone advances it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from pellucid.errors import CacheError
from pellucid.kernels.linear import State
from pellucid.kernels.mask import Bound
from pellucid.kernels.reference import Key, Value
from pellucid.model import config as c


@dataclass
class KeysAndValues:
    """Keys (already rotated) and values of one block, in room made beforehand."""

    key: Float[Tensor, "batch groups capacity head_width"]
    value: Float[Tensor, "batch groups capacity value_width"]

    def extend(
        self,
        key: Float[Tensor, "batch groups token head_width"],
        value: Float[Tensor, "batch groups token value_width"],
        offset: int,
    ) -> tuple[Key, Value]:
        """Write after the first `offset` slots, and return all that is written."""
        end = offset + key.shape[2]
        self.key[:, :, offset:end] = key
        self.value[:, :, offset:end] = value
        return self.key[:, :, :end], self.value[:, :, :end]


@dataclass
class Running:
    """The constant-size state of linear attention in one block."""

    state: State


OwnCache = KeysAndValues | Running


@dataclass
class BlockCache:
    """One block's part. `cross` is filled by the first call that brings a memory, and read by the later ones."""

    own: OwnCache
    cross: tuple[Key, Value] | State | None = None


@dataclass
class Cache:
    """The caches of all blocks, and how far they are filled.

    padding: which of the slots hold real tokens, once a batch brought padding; None while all of them do.
    """

    blocks: list[BlockCache]
    batch: int
    capacity: int
    length: int = 0
    padding: Bool[Tensor, "batch capacity"] | None = None
    memory: Float[Tensor, "batch source width"] | None = None
    source_padding: Bool[Tensor, "batch source"] | None = None

    @staticmethod
    def allocate(
        config: c.ModelConfig, batch: int, capacity: int, *, device: torch.device, dtype: torch.dtype
    ) -> Cache:
        """Room for `capacity` tokens of `batch` texts. Linear attention needs none per token, and has no limit."""
        if config.decoder_blocks == 0 or not config.causal:
            raise CacheError(
                "only causal decoders can cache: elsewhere a new token changes the outputs of all earlier ones. "
                "Call the network without a cache."
            )
        blocks = [BlockCache(_own_part(config, batch, capacity, device, dtype)) for _ in range(config.decoder_blocks)]
        return Cache(blocks, batch, capacity)

    def check(self, batch: int, tokens: int) -> None:
        if batch != self.batch:
            raise CacheError(f"the cache holds {self.batch} texts, but {batch} came: make one cache per batch")
        needed, bounded = self.length + tokens, isinstance(self.blocks[0].own, KeysAndValues)
        if bounded and needed > self.capacity:
            raise CacheError(
                f"the cache has room for {self.capacity} tokens and holds {self.length}, but {tokens} more came: "
                f"make one with capacity {needed} or more"
            )

    def note_padding(self, padding: Bool[Tensor, "batch token"] | None, tokens: int) -> None:
        """Remember which of the next `tokens` slots are real."""
        if padding is None and self.padding is None:
            return
        end = self.length + tokens
        if self.padding is None:
            assert padding is not None
            self.padding = torch.ones(self.batch, max(self.capacity, end), dtype=torch.bool, device=padding.device)
        if end > self.padding.shape[1]:  # only linear attention reads past its capacity
            self.padding = functional.pad(self.padding, (0, end), value=True)
        self.padding[:, self.length : end] = True if padding is None else padding

    def seen_padding(self, tokens: int) -> Bool[Tensor, "batch key"] | None:
        return None if self.padding is None else self.padding[:, : self.length + tokens]

    def remember(
        self, memory: Float[Tensor, "batch source width"] | None, padding: Bool[Tensor, "batch source"] | None
    ) -> tuple[Float[Tensor, "batch source width"] | None, Bool[Tensor, "batch source"] | None]:
        """Keep the memory of the first call for the later ones."""
        if memory is not None and self.length:
            raise CacheError(
                "the cache already holds the keys and values of a memory: decode without one, or make a new cache"
            )
        if memory is not None:
            self.memory, self.source_padding = memory, padding
        return self.memory, self.source_padding

    def advance(self, tokens: int) -> None:
        self.length += tokens


def places_of(
    padding: Bool[Tensor, "batch key"] | None, tokens: int, offset: int, device: torch.device
) -> Int[Tensor, "#batch token"]:
    """The position of each of the last `tokens` slots: how many real tokens stand before it in its text."""
    if padding is None:
        return torch.arange(offset, offset + tokens, device=device)[None]
    return (padding.cumsum(-1) - 1).clamp(min=0)[:, offset:]


def prefix_slots(prefix: Bound, padding: Bool[Tensor, "batch key"] | None) -> Bound:
    """How many leading slots hold a prefix: padding on the left of a text comes before its tokens."""
    if padding is None or prefix is None or (isinstance(prefix, int) and prefix == 0):
        return prefix
    return padding.long().argmax(1) + prefix


def _own_part(config: c.ModelConfig, batch: int, capacity: int, device: torch.device, dtype: torch.dtype) -> OwnCache:
    if isinstance(config.attention, c.Linear):
        features = c.feature_width(config)
        # Sums over many tokens: float32 at least, whatever the weights are in.
        room = partial(torch.zeros, device=device, dtype=torch.promote_types(dtype, torch.float32))
        moments = room((batch, config.heads, features, config.values_width))
        return Running(State(moments, room((batch, config.heads, features))))
    room = partial(torch.zeros, device=device, dtype=dtype)
    return KeysAndValues(
        room((batch, config.groups, capacity, config.key_width)),
        room((batch, config.groups, capacity, config.values_width)),
    )
