"""What a decoder keeps of the tokens it has read, so that the next one costs one row and not all of them.

The caller makes a cache and owns it; the blocks write into it; `Transformer.decode` alone advances it. One token at a
time there is `Transformer.step` too, for which a clock of tensors says where to write, so that its shapes are fixed.
"""

from __future__ import annotations

from collections.abc import Iterator
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
class Clock:
    """Where the next token goes, as tensors: a graph that was captured once reads them anew at every step.

    slot: how many tokens, padding included, came before it. places: its place in each text.
    """

    slot: Int[Tensor, ""]
    places: Int[Tensor, "batch 1"]

    def advance(self) -> None:
        self.slot.add_(1)
        self.places.add_(1)


@dataclass
class KeysAndValues:
    """Keys (already rotated) and values of one block, in slots made beforehand: token t is in slot t mod size.

    window: the most slots that are of use, if there is such a limit.
    """

    key: Float[Tensor, "batch groups slots head_width"]
    value: Float[Tensor, "batch groups slots value_width"]
    window: int | None = None

    @property
    def size(self) -> int:
        return self.key.shape[2]

    def extend(
        self,
        key: Float[Tensor, "batch groups token head_width"],
        value: Float[Tensor, "batch groups token value_width"],
        offset: int,
    ) -> tuple[Key, Value]:
        """Write after `offset` tokens, and return what the new ones may look at: what the ring held, then they."""
        tokens, size = key.shape[2], self.size
        end = offset + tokens
        if end <= size:
            self.key[:, :, offset:end] = key
            self.value[:, :, offset:end] = value
            return self.key[:, :, :end], self.value[:, :, :end]
        before = torch.arange(max(0, offset - size), offset, device=key.device) % size
        seen = torch.cat((self.key[:, :, before], key), 2), torch.cat((self.value[:, :, before], value), 2)
        written = torch.arange(max(offset, end - size), end, device=key.device) % size
        self.key[:, :, written] = key[:, :, -size:]
        self.value[:, :, written] = value[:, :, -size:]
        return seen

    def write(
        self,
        key: Float[Tensor, "batch groups 1 head_width"],
        value: Float[Tensor, "batch groups 1 value_width"],
        slot: Int[Tensor, ""],
    ) -> tuple[Key, Value]:
        """One token of a step: in its slot, and the whole ring returned."""
        place = (slot % self.size)[None]
        self.key.index_copy_(2, place, key)
        self.value.index_copy_(2, place, value)
        return self.key, self.value

    def grow(self, capacity: int) -> None:
        """A ring shorter than its window has never gone round, so new slots go at its end."""
        more = (capacity if self.window is None else min(capacity, self.window)) - self.size
        if more > 0:
            self.key, self.value = (functional.pad(x, (0, 0, 0, more)) for x in (self.key, self.value))


@dataclass
class Running:
    """The constant-size state of linear attention in one block."""

    state: State

    def write(self, state: State) -> None:
        """In place, for the graph of a step."""
        self.state.moments.copy_(state.moments)
        self.state.normalizer.copy_(state.normalizer)


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
    clock: set by `start_steps`. From then on the caller advances `length`, as no step reads it.
    """

    blocks: list[BlockCache]
    batch: int
    capacity: int
    length: int = 0
    padding: Bool[Tensor, "batch capacity"] | None = None
    memory: Float[Tensor, "batch source width"] | None = None
    source_padding: Bool[Tensor, "batch source"] | None = None
    clock: Clock | None = None

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
        if batch < 1 or capacity < 1:
            raise CacheError(f"a cache of {batch} texts of {capacity} tokens holds nothing: give 1 or more of each")
        blocks = [
            BlockCache(_own_part(config, block, batch, capacity, device, dtype))
            for block in range(config.decoder_blocks)
        ]
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

    # --- for steps: fixed shapes, tensors that stay where they are ---

    def start_steps(self, device: torch.device) -> None:
        """Set the clock after what was read. Texts end side by side, so padding stands before them."""
        unread = torch.zeros(self.batch, 1, dtype=torch.long, device=device)
        if self.padding is not None:
            unread = (~self.padding[:, : self.length]).sum(1, keepdim=True)
        self.clock = Clock(torch.tensor(self.length, device=device), self.length - unread)

    def grow(self, capacity: int) -> None:
        """More room, with what is held kept."""
        for block in self.blocks:
            if isinstance(block.own, KeysAndValues):
                block.own.grow(capacity)
        if self.padding is not None and capacity > self.padding.shape[1]:
            self.padding = functional.pad(self.padding, (0, capacity - self.padding.shape[1]), value=True)
        self.capacity = max(self.capacity, capacity)

    def repeat(self, times: int) -> None:
        """Every text so many times, side by side. What was read of a source is shared, not repeated."""
        self.batch *= times
        for block in self.blocks:
            match block.own:
                case KeysAndValues(key, value):
                    block.own.key, block.own.value = (x.repeat_interleave(times, 0) for x in (key, value))
                case Running(state):
                    parts = (x.repeat_interleave(times, 0) for x in (state.moments, state.normalizer))
                    block.own.state = State(*parts)
        if self.padding is not None:
            self.padding = self.padding.repeat_interleave(times, 0)

    def reorder(self, rows: Int[Tensor, " batch"]) -> None:
        """Row i becomes what row rows[i] was, in place. All rows are at the same slot; sources stay where they are."""
        places = list(self.own_tensors())
        store(places, [tensor.index_select(0, rows) for tensor in places])

    def own_tensors(self) -> Iterator[Tensor]:
        """What each text has to itself."""
        for block in self.blocks:
            match block.own:
                case KeysAndValues(key, value):
                    yield from (key, value)
                case Running(state):
                    yield from (state.moments, state.normalizer)

    def tensors(self) -> Iterator[Tensor]:
        """All that a step reads or writes, in a fixed order."""
        yield from self.own_tensors()
        for block in self.blocks:
            match block.cross:
                case State(moments, normalizer):
                    yield from (moments, normalizer)
                case (key, value):
                    yield from (key, value)
        if self.source_padding is not None:
            yield self.source_padding
        if self.clock is not None:
            yield from (self.clock.slot, self.clock.places)


def store(places: list[Tensor], values: list[Tensor]) -> None:
    """Write values that were made from what is in the same places, at other indices.

    One step to a compiler: Inductor (torch 2.13) would read and write such a place in one loop, and read what it wrote.
    """
    if torch.compiler.is_compiling():
        _opaque_store(places, values)
    else:
        _write_all(places, values)


def _write_all(places: list[Tensor], values: list[Tensor]) -> None:
    for place, value in zip(places, values, strict=True):
        place.copy_(value)


@torch.library.custom_op(
    "pellucid::store", mutates_args=("places",), schema="(Tensor(a!)[] places, Tensor[] values) -> ()"
)
def _opaque_store(places: list[Tensor], values: list[Tensor]) -> None:
    _write_all(places, values)


@_opaque_store.register_fake
def _(places: list[Tensor], values: list[Tensor]) -> None:
    return None


def places_of(
    padding: Bool[Tensor, "batch key"] | None, tokens: int, offset: int, device: torch.device
) -> Int[Tensor, "#batch token"]:
    """The position of each of the last `tokens` slots: how many real tokens stand before it in its text."""
    if padding is None:
        return torch.arange(offset, offset + tokens, device=device)[None]
    return (padding.cumsum(-1) - 1).clamp(min=0)[:, offset:]


def places_in_documents(documents: Int[Tensor, "batch token"]) -> Int[Tensor, "batch token"]:
    """The position of each slot in its own document: those of a document stand side by side."""
    slots = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return slots - slots.masked_fill(~begins, 0).cummax(1).values


def prefix_slots(prefix: Bound, padding: Bool[Tensor, "batch key"] | None) -> Bound:
    """How many leading slots hold a prefix: padding on the left of a text comes before its tokens."""
    if padding is None or prefix is None or (isinstance(prefix, int) and prefix == 0):
        return prefix
    return padding.long().argmax(1) + prefix


def cache_bytes(config: c.ModelConfig, batch: int, capacity: int, dtype: torch.dtype) -> int:
    """What a cache takes: 2 x blocks x key-value heads x head width x bytes per token, less where windows are short.

    Linear attention takes the same whatever the capacity. A source's keys and values come on top: see `source_bytes`.
    """
    if isinstance(config.attention, c.Linear):
        return _state_bytes(config, batch, dtype)
    windows = [config.window_of(block) for block in range(config.decoder_blocks)]
    slots = sum(capacity if window is None else min(capacity, window) for window in windows)
    return slots * batch * config.groups * (config.key_width + config.values_width) * dtype.itemsize


def source_bytes(config: c.ModelConfig, texts: int, source: int, dtype: torch.dtype) -> int:
    """What cross-attention keeps of the sources of so many texts; nothing where there is no encoder."""
    if not config.is_encoder_decoder:
        return 0
    if isinstance(config.attention, c.Linear):
        return _state_bytes(config, texts, dtype)
    widths = config.key_width + config.values_width
    return config.decoder_blocks * texts * source * config.groups * widths * dtype.itemsize


def _state_bytes(config: c.ModelConfig, batch: int, dtype: torch.dtype) -> int:
    state = config.heads * c.feature_width(config) * (config.values_width + 1)
    return config.decoder_blocks * batch * state * torch.promote_types(dtype, torch.float32).itemsize


def _own_part(
    config: c.ModelConfig, block: int, batch: int, capacity: int, device: torch.device, dtype: torch.dtype
) -> OwnCache:
    if isinstance(config.attention, c.Linear):
        features = c.feature_width(config)
        # Sums over many tokens: float32 at least, whatever the weights are in.
        room = partial(torch.zeros, device=device, dtype=torch.promote_types(dtype, torch.float32))
        moments = room((batch, config.heads, features, config.values_width))
        return Running(State(moments, room((batch, config.heads, features))))
    room = partial(torch.zeros, device=device, dtype=dtype)
    window = config.window_of(block)
    slots = capacity if window is None else min(capacity, window)
    return KeysAndValues(
        room((batch, config.groups, slots, config.key_width)),
        room((batch, config.groups, slots, config.values_width)),
        window,
    )
