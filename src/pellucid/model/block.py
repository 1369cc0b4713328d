"""The repeated unit: attention, cross-attention if there is a memory, feed-forward, each added to the residual."""

from __future__ import annotations

from torch import nn

from pellucid.model import config as c
from pellucid.model.attention import Attention, Memory, Tokens
from pellucid.model.cache import BlockCache
from pellucid.model.feed_forward import build_feed_forward
from pellucid.model.mechanisms import KernelName, Sight
from pellucid.model.norms import build_norm
from pellucid.model.sites import Site


class Residual(nn.Module):
    """The sites of the residual stream within a block."""

    def __init__(self, *, cross: bool) -> None:
        super().__init__()
        self.mid = Site()
        if cross:
            self.cross = Site()
        self.out = Site()


class Block(nn.Module):
    """after(x + sublayer(before(x))), thrice: pre-norm has its norms before, post-norm after; the others do nothing."""

    def __init__(self, config: c.ModelConfig, *, cross: bool, kernel: KernelName) -> None:
        super().__init__()
        self.before_attention, self.after_attention = _norms(config)
        self.attention = Attention(config, kernel=kernel)
        if cross:
            self.before_cross, self.after_cross = _norms(config)
        self.cross = Attention(config, kernel=kernel) if cross else None
        self.before_feed_forward, self.after_feed_forward = _norms(config)
        self.feed_forward = build_feed_forward(config)
        self.residual = Residual(cross=cross)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tokens,
        sight: Sight,
        memory: Memory | None = None,
        memory_sight: Sight | None = None,
        cache: BlockCache | None = None,
    ) -> Tokens:
        change = self.dropout(self.attention(self.before_attention(x), sight, cache))
        x = self.residual.mid(self.after_attention(x + change))
        if self.cross is not None and memory_sight is not None:
            change = self.dropout(self.cross.across(self.before_cross(x), memory, memory_sight, cache))
            x = self.residual.cross(self.after_cross(x + change))
        change = self.dropout(self.feed_forward(self.before_feed_forward(x)))
        return self.residual.out(self.after_feed_forward(x + change))


def _norms(config: c.ModelConfig) -> tuple[nn.Module, nn.Module]:
    norm = build_norm(config.norm, config.width)
    return (norm, nn.Identity()) if config.placement == "pre" else (nn.Identity(), norm)
