"""Task heads: what is read from the last stack. All take its states, the token table and the padding."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from pellucid.model import config as c
from pellucid.model.attention import Tokens
from pellucid.model.embedding import Scale
from pellucid.model.feed_forward import ACTIVATIONS
from pellucid.model.layers import Linear
from pellucid.model.norms import build_norm

Table = Float[Tensor, "vocab width"]
Padding = Bool[Tensor, "batch token"] | None
Vectors = Float[Tensor, "batch width"]


class UnembedHead(nn.Module):
    """A score per vocabulary entry: the product with the token table, or with a matrix of its own."""

    def __init__(self, part: c.Unembed, config: c.ModelConfig) -> None:
        super().__init__()
        self.scale = nn.Identity() if part.scale == 1 else Scale(part.scale)
        if part.transform is not None:
            self.dense = Linear(config.width, config.width)
            self.norm = build_norm(config.norm, config.width)
        self.activation = None if part.transform is None else ACTIVATIONS[part.transform]
        self.weight = None if part.tied else nn.Parameter(torch.empty(config.vocab, config.width))
        self.bias = nn.Parameter(torch.empty(config.vocab)) if part.bias else None

    def forward(self, x: Tokens, table: Table, padding: Padding) -> Float[Tensor, "batch token vocab"]:
        return functional.linear(self.rows(x), self.matrix(table), self.bias)

    def rows(self, x: Tokens) -> Tokens:
        """What the matrix is multiplied with: training does so a few rows at a time."""
        if self.activation is not None:
            x = self.norm(self.activation(self.dense(x)))
        return self.scale(x)

    def matrix(self, table: Table) -> Table:
        return table if self.weight is None else self.weight


class TagHead(nn.Module):
    """A score per label, for every token."""

    def __init__(self, part: c.Tag, config: c.ModelConfig) -> None:
        super().__init__()
        self.to_labels = Linear(config.width, part.labels)

    def forward(self, x: Tokens, table: Table, padding: Padding) -> Float[Tensor, "batch token label"]:
        return self.to_labels(x)


class ClassifyHead(nn.Module):
    """A score per label, for the whole text."""

    def __init__(self, part: c.Classify, config: c.ModelConfig) -> None:
        super().__init__()
        self.pooling = part.pooling
        if part.hidden is not None:
            self.dense = Linear(config.width, config.width)
        self.activation = None if part.hidden is None else ACTIVATIONS[part.hidden]
        self.to_labels = Linear(config.width, part.labels, bias=part.bias)

    def forward(self, x: Tokens, table: Table, padding: Padding) -> Float[Tensor, "batch label"]:
        pooled = pool(x, self.pooling, padding)
        if self.activation is not None:
            pooled = self.activation(self.dense(pooled))
        return self.to_labels(pooled)


class PoolHead(nn.Module):
    """One vector per text."""

    def __init__(self, part: c.Pool, config: c.ModelConfig) -> None:
        super().__init__()
        self.part = part
        self.dense = Linear(config.width, config.width) if part.project else None

    def forward(self, x: Tokens, table: Table, padding: Padding) -> Vectors:
        vector = pool(x, self.part.pooling, padding)
        if self.dense is not None:
            vector = self.dense(vector).tanh()
        return functional.normalize(vector, dim=-1) if self.part.normalize else vector


TaskHead = UnembedHead | TagHead | ClassifyHead | PoolHead


def build_head(config: c.ModelConfig) -> TaskHead:
    match config.head:
        case c.Unembed() as part:
            return UnembedHead(part, config)
        case c.Tag() as part:
            return TagHead(part, config)
        case c.Classify() as part:
            return ClassifyHead(part, config)
        case c.Pool() as part:
            return PoolHead(part, config)


def pool(x: Tokens, pooling: c.Pooling, padding: Padding) -> Vectors:
    """One vector from the real tokens of each text."""
    real = torch.ones_like(x[..., 0], dtype=torch.bool) if padding is None else padding
    texts = torch.arange(x.shape[0], device=x.device)
    match pooling:
        case "first":
            return x[texts, real.long().argmax(1)]
        case "last":
            return x[texts, real.shape[1] - 1 - real.flip(1).long().argmax(1)]
        case "mean":
            count = real.sum(1, keepdim=True).clamp(min=1)
            return x.masked_fill(~real[..., None], 0).sum(1) / count
        case "max":
            largest = x.masked_fill(~real[..., None], -torch.inf).amax(1)
            return largest.masked_fill(~real.any(1, keepdim=True), 0)
