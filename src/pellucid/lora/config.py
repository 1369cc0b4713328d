"""What an adapter is, as frozen data."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Annotated

from pydantic import Field, PositiveInt

from pellucid.model.config import Part, Positive


class Lora(Part):
    """Low-rank changes of some linear maps (Hu et al. 2022): W + scale B A, where scale = alpha / rank.

    rank_stabilized: scale = alpha / sqrt(rank), which keeps its size when the rank grows (Kalajdzievski 2023).
    targets: which maps, by the ends of their paths: "to_query", "attention.to_query", "feed_forward.*", "decoder.3.*".
      "attention.to_query+to_key+to_value" is one adapter on the three together, which share A.
    whole: modules that are trained whole and kept with the adapter, such as a new "head".
    ranks, alphas: other values for the maps that a pattern matches; the first that does counts.
    """

    rank: PositiveInt = 8
    alpha: Positive = 16.0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    rank_stabilized: bool = False
    targets: Annotated[tuple[str, ...], Field(min_length=1)] = ("to_query", "to_value")
    whole: tuple[str, ...] = ()
    ranks: dict[str, PositiveInt] = Field(default_factory=dict)
    alphas: dict[str, Positive] = Field(default_factory=dict)

    def rank_of(self, path: str) -> int:
        return next((rank for pattern, rank in self.ranks.items() if matches(path, pattern)), self.rank)

    def alpha_of(self, path: str) -> float:
        return next((alpha for pattern, alpha in self.alphas.items() if matches(path, pattern)), self.alpha)

    def scale_of(self, path: str) -> float:
        return scale(self.rank_of(path), self.alpha_of(path), rank_stabilized=self.rank_stabilized)


def scale(rank: int, alpha: float, *, rank_stabilized: bool) -> float:
    return alpha / (rank**0.5 if rank_stabilized else rank)


def matches(path: str, pattern: str) -> bool:
    """Whether the pattern fits a path or an end of it that begins at a dot."""
    return fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")
