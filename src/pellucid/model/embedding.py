"""From ids to vectors: tokens, positions and segments, added."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.model import config as c
from pellucid.model.layers import Table
from pellucid.model.norms import build_norm
from pellucid.model.sites import Site


class Scale(nn.Module):
    """Multiplies by a constant."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class Embedding(nn.Module):
    """Looks tokens up in a table that it does not own: two stacks and the unembedding may share it."""

    def __init__(self, config: c.ModelConfig) -> None:
        super().__init__()
        self.scale = Scale(config.width**0.5) if config.scale_embedding else nn.Identity()
        self.tokens = Site()
        if isinstance(config.position, c.Sinusoidal | c.Learned):
            self.positions = Site()
        if config.segments:
            self.segments, self.segment_table = Site(), Table(config.segments, config.width)
        self.has_segments = config.segments > 0
        self.sum = Site()
        self.normalize = build_norm(config.norm, config.width) if config.embedding_norm else nn.Identity()
        self.norm = Site() if config.embedding_norm else nn.Identity()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        tokens: Float[Tensor, "batch token width"],
        vectors: Float[Tensor, "#batch token width"] | None,
        segments: Int[Tensor, "batch token"] | None,
    ) -> Float[Tensor, "batch token width"]:
        x = self.tokens(self.scale(tokens))
        if vectors is not None:
            x = x + self.positions(vectors)
        if self.has_segments:
            first = self.segment_table.weight[0]
            x = x + self.segments(first.expand_as(x) if segments is None else self.segment_table(segments))
        return self.dropout(self.norm(self.normalize(self.sum(x))))
