"""Multi-head attention: projections around a mechanism."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from pellucid.kernels.reference import Heads, Key, Query, Value
from pellucid.model import config as c
from pellucid.model.cache import BlockCache
from pellucid.model.layers import Linear
from pellucid.model.mechanisms import KernelName, Shown, Sight, build_mechanism
from pellucid.model.norms import build_norm
from pellucid.model.sites import Site

Tokens = Float[Tensor, "batch token width"]
Memory = Float[Tensor, "batch source width"]


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
        norm = config.norm if config.query_key_norm else c.Identity()
        self.norm_query, self.norm_key = (build_norm(norm, config.key_width) for _ in range(2))

    def forward(self, x: Tokens, sight: Sight, cache: BlockCache | None) -> Tokens:
        """Self-attention."""
        x = self.input(x)
        heads = self.mechanism.attend(
            self.queries(x, sight), *self.keys_and_values(x, sight), sight, None if cache is None else cache.own
        )
        return self.project(heads)

    def across(self, x: Tokens, memory: Memory | None, sight: Sight, cache: BlockCache | None) -> Tokens:
        """Cross-attention. With a cache, the memory's keys and values are computed once, by the first call."""
        x = self.input(x)
        kept = None if cache is None else cache.cross
        if kept is None:
            assert memory is not None
            kept = self.mechanism.keep(*self.keys_and_values(memory, sight), sight)
        if cache is not None:
            cache.cross = kept
        return self.project(self.mechanism.read(self.queries(x, sight), kept, sight))

    def queries(self, x: Tokens, sight: Sight) -> Query:
        query = self.norm_query(_split(self.to_query(x), self.head_count))
        return self.query(self._turn(query, sight))

    def keys_and_values(self, x: Tokens, sight: Sight) -> tuple[Key, Value]:
        key = self.norm_key(_split(self.to_key(x), self.groups))
        return self.key(self._turn(key, sight)), self.value(_split(self.to_value(x), self.groups))

    def project(self, heads: Heads) -> Tokens:
        return self.output(self.to_output(self.heads(heads).transpose(1, 2).flatten(2)))

    def _turn(self, x: Query, sight: Sight) -> Query:
        return x if sight.rotation is None or self.turns_features else sight.rotation.turn(x)


def _split(x: Float[Tensor, "batch token joined"], heads: int) -> Float[Tensor, "batch heads token head_width"]:
    return x.reshape(*x.shape[:2], heads, -1).transpose(1, 2)
