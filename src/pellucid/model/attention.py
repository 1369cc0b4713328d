"""Multi-head attention: projections around a mechanism."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from pellucid.kernels.linear import State
from pellucid.kernels.reference import Heads, Key, Query, Value
from pellucid.model import config as c
from pellucid.model.cache import BlockCache
from pellucid.model.layers import Linear
from pellucid.model.mechanisms import KernelName, Shown, Sight, build_mechanism
from pellucid.model.norms import build_norm
from pellucid.model.sites import Site

Tokens = Float[Tensor, "batch token width"]
Memory = Float[Tensor, "batch source width"]
Projected = Float[Tensor, "batch tokens joined"]


class Attention(nn.Module):
    """The projections and the mechanism of one attention sub-layer, for one sequence or for two."""

    def __init__(self, config: c.ModelConfig, *, kernel: KernelName) -> None:
        super().__init__()
        self.head_count, self.groups = config.heads, config.groups
        self.turns_features = isinstance(config.attention, c.Linear)
        self.input, self.query, self.key, self.value = Site(), Site(), Site(), Site()
        shown = Shown()
        if kernel == "reference" and not self.turns_features:
            self.scores = shown.scores
        if kernel == "reference":
            self.weights = shown.weights
        self.heads, self.output = Site(), Site()
        self.mechanism = build_mechanism(config, kernel, shown)
        has = config.biases
        self.to_query = Linear(config.width, config.heads * config.key_width, bias=has.query)
        self.to_key = Linear(config.width, config.groups * config.key_width, bias=has.key)
        self.to_value = Linear(config.width, config.groups * config.values_width, bias=has.value)
        self.to_output = Linear(config.heads * config.values_width, config.width, bias=has.output)
        self.widths = [self.to_query.out_features, self.to_key.out_features, self.to_value.out_features]
        # All three in one product, where a decoding twin put them side by side (see generation/twin.py).
        self.to_all: nn.Module | None = None
        norm = config.norm if config.query_key_norm else c.Identity()
        self.norm_query, self.norm_key = (build_norm(norm, config.key_width) for _ in range(2))

    def forward(self, x: Tokens, sight: Sight, cache: BlockCache | None) -> Tokens:
        """Self-attention."""
        x = self.input(x)
        parts = (None, None, None) if self.to_all is None else self.to_all(x).split(self.widths, -1)
        query, key = self.queries(x, sight, parts[0]), self.keys(x, sight, parts[1])
        own = None if cache is None else cache.own
        return self.project(self.mechanism.attend(query, key, self.values(x, parts[2]), sight, own))

    def across(self, x: Tokens, memory: Memory | None, sight: Sight, cache: BlockCache | None) -> Tokens:
        """Cross-attention. With a cache, the memory's keys and values are computed once, by the first call."""
        x = self.input(x)
        kept = None if cache is None else cache.cross
        if kept is None:
            assert memory is not None
            kept = self.mechanism.keep(self.keys(memory, sight), self.values(memory), sight)
        if cache is not None:
            cache.cross = kept
        texts = (kept.moments if isinstance(kept, State) else kept[0]).shape[0]
        query = _as_queries_of(texts, self.queries(x, sight))
        return self.project(_as_texts(x.shape[0], self.mechanism.read(query, kept, sight)))

    def queries(self, x: Tokens, sight: Sight, projected: Projected | None = None) -> Query:
        projected = self.to_query(x) if projected is None else projected
        return self.query(self._turn(self.norm_query(_split(projected, self.head_count)), sight))

    def keys(self, x: Memory, sight: Sight, projected: Projected | None = None) -> Key:
        projected = self.to_key(x) if projected is None else projected
        return self.key(self._turn(self.norm_key(_split(projected, self.groups)), sight))

    def values(self, x: Memory, projected: Projected | None = None) -> Value:
        return self.value(_split(self.to_value(x) if projected is None else projected, self.groups))

    def project(self, heads: Heads) -> Tokens:
        return self.output(self.to_output(self.heads(heads).transpose(1, 2).flatten(2)))

    def _turn(self, x: Query, sight: Sight) -> Query:
        return x if sight.rotation is None or self.turns_features else sight.rotation.turn(x)


def _as_queries_of(texts: int, x: Query) -> Float[Tensor, "sources heads all_queries head_width"]:
    """Several texts that look at one source (its beams) are as many queries of that source."""
    if x.shape[0] == texts:
        return x
    return x.reshape(texts, -1, *x.shape[1:]).transpose(1, 2).flatten(2, 3)


def _as_texts(texts: int, x: Heads) -> Float[Tensor, "texts heads each value_width"]:
    """The way back, for one query per text."""
    if x.shape[0] == texts:
        return x
    return x.transpose(1, 2).reshape(texts, x.shape[1], 1, -1)


def _split(x: Float[Tensor, "batch token joined"], heads: int) -> Float[Tensor, "batch heads token head_width"]:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
