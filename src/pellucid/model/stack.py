"""A stack of blocks with its position scheme: an encoder or a decoder."""

from __future__ import annotations

import torch
from torch import nn

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import Ring, View
from pellucid.model import config as c
from pellucid.model.attention import Memory, Tokens
from pellucid.model.block import Block
from pellucid.model.cache import Cache, Clock
from pellucid.model.embedding import Embedding
from pellucid.model.mechanisms import KernelName, Sight
from pellucid.model.norms import build_norm
from pellucid.model.positions import Places, build_positions
from pellucid.model.sites import Site


class Final(nn.Module):
    """The norm after the last block, where there is one."""

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__()
        self.normalize = build_norm(config.norm if config.has_final_norm else c.Identity(), config.width)
        self.norm = Site()

    def forward(self, x: Tokens) -> Tokens:
        return self.norm(self.normalize(x))


class Stack(nn.Module):
    """Blocks are children named 0, 1, ..., so that a module's path is a site's name.

    An encoder that feeds a decoder has its own embedding and final norm; those of the last stack belong to the network.
    """

    def __init__(
        self, config: c.ModelConfig, depth: int, *, causal: bool, cross: bool, feeds: bool, kernel: KernelName
    ) -> None:
        super().__init__()
        self.windows = [config.window_of(block) for block in range(depth)]
        if feeds:
            self.embedding = Embedding(config)
        self.positions = build_positions(config, causal=causal)
        for block in range(depth):
            self.add_module(str(block), Block(config, cross=cross, kernel=kernel))
        if feeds:
            self.final = Final(config)

    @property
    def blocks(self) -> list[Block]:
        return [block for block in self.children() if isinstance(block, Block)]

    def forward(
        self,
        x: Tokens,
        mask: Mask,
        places: Places,
        memory: Memory | None = None,
        memory_sight: Sight | None = None,
        cache: Cache | None = None,
    ) -> Tokens:
        sights = self._sights(x, mask, places, 0 if cache is None else cache.length)
        return self._through(x, sights, memory, memory_sight, cache)

    def step(self, x: Tokens, memory_sight: Sight | None, cache: Cache) -> Tokens:
        """One more token per text, where the cache's clock stands."""
        assert cache.clock is not None
        return self._through(x, self._step_sights(x, cache.clock, cache.capacity), None, memory_sight, cache)

    def _through(
        self,
        x: Tokens,
        sights: dict[int | None, Sight],
        memory: Memory | None,
        memory_sight: Sight | None,
        cache: Cache | None,
    ) -> Tokens:
        for index, block in enumerate(self.blocks):
            part = None if cache is None else cache.blocks[index]
            x = block(x, sights[self.windows[index]], memory, memory_sight, part)
        return x

    def _sights(self, x: Tokens, mask: Mask, places: Places, offset: int) -> dict[int | None, Sight]:
        """What each block sees, by its window: masks, biases and rotations are worked out once for all blocks."""
        rotation = self.positions.rotation(places, x.dtype)
        return {
            window: Sight(self._view(x, mask, window, offset), places, rotation, offset)
            for window in dict.fromkeys(self.windows)
        }

    def _view(self, x: Tokens, mask: Mask, window: int | None, offset: int) -> View:
        """A cache keeps no more than a block's window of the `offset` tokens that came before."""
        queries, kept = x.shape[1], offset if window is None else min(offset, window)
        bias = self.positions.bias(queries, kept + queries, kept, x)
        if kept < offset:  # what was dropped is behind every prefix
            padding = None if mask.padding is None else mask.padding[:, offset - kept :]
            mask = Mask(prefix=None if mask.prefix is None else 0, padding=padding)
        return View(queries, kept + queries, x.device, mask & Mask(window=window), bias, kept)

    def _step_sights(self, x: Tokens, clock: Clock, capacity: int) -> dict[int | None, Sight]:
        """The same for a step, whose view is a ring of slots."""
        rotation = self.positions.rotation(clock.places, x.dtype)
        sights: dict[int | None, Sight] = {}
        for window in dict.fromkeys(self.windows):
            size = capacity if window is None else min(capacity, window)
            ring = Ring((clock.slot - torch.arange(size, device=x.device)) % size, clock.places)
            bias = self.positions.bias(1, size, size - 1, x)
            view = View(1, size, x.device, Mask.causal(), bias, ring=ring)
            sights[window] = Sight(view, clock.places, rotation, clock.slot)
        return sights
