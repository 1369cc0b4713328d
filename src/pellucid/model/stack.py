"""A stack of blocks with its position scheme: an encoder or a decoder."""

from __future__ import annotations

from torch import nn

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model.attention import Memory, Tokens
from pellucid.model.block import Block
from pellucid.model.cache import Cache
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
        for index, block in enumerate(self.blocks):
            part = None if cache is None else cache.blocks[index]
            x = block(x, sights[self.windows[index]], memory, memory_sight, part)
        return x

    def _sights(self, x: Tokens, mask: Mask, places: Places, offset: int) -> dict[int | None, Sight]:
        """What each block sees, by its window: masks, biases and rotations are worked out once for all blocks."""
        queries = x.shape[1]
        rotation = self.positions.rotation(places, x.dtype)
        bias = self.positions.bias(queries, offset + queries, offset, x)
        return {
            window: Sight(
                View(queries, offset + queries, x.device, mask & Mask(window=window), bias, offset), places, rotation
            )
            for window in dict.fromkeys(self.windows)
        }
