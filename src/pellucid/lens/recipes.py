"""How each site is computed from the sites before it: its formula, its inputs, and the same step in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from pellucid.lens import exact as e
from pellucid.model import config as c
from pellucid.model.attention import Attention
from pellucid.model.block import Block
from pellucid.model.cache import places_of
from pellucid.model.embedding import Embedding
from pellucid.model.feed_forward import GatedFeedForward
from pellucid.model.heads import ClassifyHead, PoolHead, TagHead, UnembedHead, pool
from pellucid.model.mechanisms import LinearMechanism, LinearTwin, LinformerMechanism
from pellucid.model.stack import Final, Stack
from pellucid.model.transformer import Transformer

Values = dict[str, Tensor]


@dataclass(frozen=True)
class Recipe:
    """A step: its formula in LaTeX, the sites that it reads, and the step again in float64 from their values."""

    formula: str
    inputs: tuple[str, ...]
    again: Callable[[Values], Tensor]


@dataclass(frozen=True)
class Text:
    """What one stack reads."""

    ids: Tensor
    padding: Tensor | None
    segments: Tensor | None = None

    @property
    def places(self) -> Tensor:
        return places_of(self.padding, self.ids.shape[1], 0, self.ids.device)


def recipes(network: Transformer, texts: list[Text]) -> dict[str, Recipe]:
    """Every site of a network, in the order in which its value is computed."""
    config = network.config
    found: dict[str, Recipe] = {}
    memory: tuple[str, Text] | None = None
    if network.encoder is not None:
        own = "encoder." if config.is_encoder_decoder else ""
        table = network.tokens if config.source_vocab is None else network.source_tokens
        outer = network.encoder if own else network
        found |= _stack(
            config, network.encoder, "encoder", own, outer.embedding, outer.final, table, texts[0], False, None
        )
        memory = (f"{own}final.norm", texts[0])
    if network.decoder is not None:
        found |= _stack(
            config,
            network.decoder,
            "decoder",
            "",
            network.embedding,
            network.final,
            network.tokens,
            texts[-1],
            config.causal,
            memory,
        )
    found["logits"] = Recipe(
        _HEADS[config.head.kind], ("final.norm",), lambda v: _head(network, v["final.norm"], texts[-1])
    )
    if not isinstance(config.head, c.Pool):
        found["probabilities"] = Recipe(
            r"p_i = \frac{e^{z_i}}{\sum_j e^{z_j}}", ("logits",), lambda v: e.softmax(v["logits"])
        )
    return found


_HEADS = {
    "unembed": r"z = x E^\top",
    "tag": r"z = x W + b",
    "classify": r"z = f(\bar{x} W_1 + b_1) W_2 + b_2",
    "pool": r"\bar{x} = \mathrm{pool}(x)",
}


def _stack(
    config: c.ModelConfig,
    stack: Stack,
    name: str,
    own: str,
    embedding: Embedding,
    final: Final,
    table: nn.Embedding,
    text: Text,
    causal: bool,
    memory: tuple[str, Text] | None,
) -> dict[str, Recipe]:
    found = dict(_embedding(config, stack, embedding, f"{own}embedding", table, text))
    stream = next(reversed(found))
    for index, block in enumerate(stack.blocks):
        prefix = f"{name}.{index}"
        sight = _Sight(config, stack, text, causal, config.window_of(index))
        found |= dict(
            _attention(config, block.attention, f"{prefix}.attention", stream, block.before_attention, sight, None)
        )
        found |= _residual(f"{prefix}.residual.mid", stream, f"{prefix}.attention.output", block.after_attention)
        stream = f"{prefix}.residual.mid"
        if block.cross is not None and memory is not None:
            across = _Sight(config, None, text, False, None, memory[1])
            found |= dict(
                _attention(config, block.cross, f"{prefix}.cross", stream, block.before_cross, across, memory[0])
            )
            found |= _residual(f"{prefix}.residual.cross", stream, f"{prefix}.cross.output", block.after_cross)
            stream = f"{prefix}.residual.cross"
        found |= dict(_feed_forward(config, block, f"{prefix}.feed_forward", stream))
        found |= _residual(f"{prefix}.residual.out", stream, f"{prefix}.feed_forward.output", block.after_feed_forward)
        stream = f"{prefix}.residual.out"
    found[f"{own}final.norm"] = _normed(stream, final.normalize)
    return found


def _embedding(
    config: c.ModelConfig, stack: Stack, embedding: Embedding, name: str, table: nn.Embedding, text: Text
) -> Iterator[tuple[str, Recipe]]:
    scale = config.width**0.5 if config.scale_embedding else 1.0
    formula = r"X_i = E_{t_i}" if scale == 1 else r"X_i = \sqrt{d} \, E_{t_i}"
    yield f"{name}.tokens", Recipe(formula, (), lambda v: e.exact(table.weight)[text.ids] * scale)
    parts = [f"{name}.tokens"]
    position = config.position
    if isinstance(position, c.Sinusoidal):
        formula = r"P_{p,2i} = \sin(p\,b^{-2i/d}), \; P_{p,2i+1} = \cos(p\,b^{-2i/d})"
        yield f"{name}.positions", Recipe(formula, (), lambda v: e.sinusoids(text.places, position, config.width))
        parts.append(f"{name}.positions")
    if isinstance(position, c.Learned):
        rows = cast(nn.Embedding, stack.positions.table)
        yield (
            f"{name}.positions",
            Recipe(r"P_p = T_p", (), lambda v: e.exact(rows.weight)[text.places + position.skip]),
        )
        parts.append(f"{name}.positions")
    if config.segments:
        segments = torch.zeros_like(text.ids) if text.segments is None else text.segments
        rows_ = embedding.segment_table
        yield f"{name}.segments", Recipe(r"S_i = T_{s_i}", (), lambda v: e.exact(rows_.weight)[segments])
        parts.append(f"{name}.segments")
    yield (
        f"{name}.sum",
        Recipe(r"H = X + P", tuple(parts), lambda v: sum((v[part] for part in parts), torch.tensor(0.0))),
    )
    if config.embedding_norm:
        yield f"{name}.norm", _normed(f"{name}.sum", embedding.normalize)


@dataclass(frozen=True)
class _Sight:
    """What an attention step sees, worked out again from the config and the text."""

    config: c.ModelConfig
    stack: Stack | None
    text: Text
    causal: bool
    window: int | None
    memory: Text | None = None

    @property
    def keys(self) -> Text:
        return self.memory or self.text

    def turned(self, x: Tensor) -> Tensor:
        position = self.config.position
        if self.stack is None or not isinstance(position, c.Rotary):
            return x
        return e.turn(x, self.text.places, position, c.turned_width(self.config))

    def bias(self) -> Tensor | None:
        if self.stack is None:
            return None
        table = getattr(getattr(self.stack.positions, "table", None), "weight", None)
        tokens = self.text.ids.shape[1]
        found = e.bias(self.config.position, table, self.config.heads, tokens, causal=self.causal)
        return None if found is None else found.to(self.text.ids.device)

    def visible(self) -> Tensor:
        shown = e.visible(
            self.text.ids.shape[1],
            self.keys.ids.shape[1],
            causal=self.causal,
            window=self.window,
            padding=self.keys.padding,
        )
        return shown.to(self.text.ids.device)


def _attention(
    config: c.ModelConfig,
    attention: Attention,
    name: str,
    stream: str,
    before: nn.Module,
    sight: _Sight,
    memory: str | None,
) -> Iterator[tuple[str, Recipe]]:
    heads = config.heads
    linear = isinstance(config.attention, c.Linear)
    source = memory or f"{name}.input"

    def projected(x: Tensor, map_: nn.Linear, count: int, normalize: nn.Module | None) -> Tensor:
        split = e.split(e.linear(x, map_), count)
        if normalize is None:
            return split
        normed = e.norm(split, normalize)
        return normed if linear else sight.turned(normed)

    yield f"{name}.input", _normed(stream, before)
    turn = r"R_i" if isinstance(config.position, c.Rotary) and memory is None and not linear else ""
    yield (
        f"{name}.query",
        Recipe(
            rf"Q = {turn}(X W_Q + b_Q)",
            (f"{name}.input",),
            lambda v: projected(v[f"{name}.input"], attention.to_query, heads, attention.norm_query),
        ),
    )
    yield (
        f"{name}.key",
        Recipe(
            rf"K = {turn}(X W_K + b_K)",
            (source,),
            lambda v: projected(v[source], attention.to_key, config.groups, attention.norm_key),
        ),
    )
    yield (
        f"{name}.value",
        Recipe(r"V = X W_V + b_V", (source,), lambda v: projected(v[source], attention.to_value, config.groups, None)),
    )
    yield from _mixing(config, attention, name, sight)
    yield (
        f"{name}.output",
        Recipe(
            r"O = [\mathrm{head}_1 \dots \mathrm{head}_h] W_O + b_O",
            (f"{name}.heads",),
            lambda v: e.linear(v[f"{name}.heads"].permute(0, 2, 1, 3).flatten(2), attention.to_output),
        ),
    )


def _mixing(config: c.ModelConfig, attention: Attention, name: str, sight: _Sight) -> Iterator[tuple[str, Recipe]]:
    """Scores, weights and heads: as three steps where the weights are formed, as one where they are not."""
    query, key, value = (f"{name}.{part}" for part in ("query", "key", "value"))

    def keys(v: Values) -> Tensor:
        return _kept(attention, "key_projection", v[key], sight)

    def values(v: Values) -> Tensor:
        return e.share(_kept(attention, "value_projection", v[value], sight), config.heads)

    def scores(v: Values) -> Tensor:
        return _scores(config, v[query], keys(v), sight)

    def weights(v: Values) -> Tensor:
        if isinstance(config.attention, c.Linear):
            return _linear_weights(config, attention, v[query], v[key], sight)
        return _WEIGH[config.attention.kind](v[f"{name}.scores"] if f"{name}.scores" in v else scores(v))

    if hasattr(attention, "scores"):
        yield f"{name}.scores", Recipe(r"S = \frac{Q K^\top}{\sqrt{d_k}} + B + M", (query, key), scores)
    if hasattr(attention, "weights"):
        inputs = (f"{name}.scores",) if hasattr(attention, "scores") else (query, key)
        yield f"{name}.weights", Recipe(_WEIGHTS[config.attention.kind], inputs, weights)
        yield (
            f"{name}.heads",
            Recipe(r"\mathrm{head} = A V", (f"{name}.weights", value), lambda v: v[f"{name}.weights"] @ values(v)),
        )
    else:
        formula = rf"\mathrm{{head}} = A V, \quad {_WEIGHTS[config.attention.kind]}"
        yield f"{name}.heads", Recipe(formula, (query, key, value), lambda v: weights(v) @ values(v))


_WEIGHTS = {
    "softmax": r"A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}",
    "linformer": r"A_{ij} = \frac{e^{S_{ij}}}{\sum_k e^{S_{ik}}}",
    "normalized_relu": r"A_{ij} = \frac{\max(S_{ij}, 0)}{\sum_k \max(S_{ik}, 0)}",
    "linear": r"A_{ij} = \frac{\phi(q_i)^\top \phi(k_j)}{\sum_k \phi(q_i)^\top \phi(k_k)}",
}
_WEIGH: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": e.softmax,
    "linformer": e.softmax,
    "normalized_relu": e.normalized_relu,
}


def _kept(attention: Attention, projection: str, x: Tensor, sight: _Sight) -> Tensor:
    """Linformer's mixtures of keys or values; elsewhere the keys or values themselves."""
    mechanism = attention.mechanism
    if not isinstance(mechanism, LinformerMechanism):
        return x
    real = (
        torch.ones_like(sight.keys.ids, dtype=torch.float64)
        if sight.keys.padding is None
        else sight.keys.padding.double()
    )
    mixture = e.exact(getattr(mechanism, projection))[:, sight.keys.places]
    return torch.einsum("rbn,bgnd->bgrd", mixture.expand(-1, x.shape[0], -1), x * real[:, None, :, None])


def _scores(config: c.ModelConfig, query: Tensor, key: Tensor, sight: _Sight) -> Tensor:
    matrix = torch.einsum("bhid,bhjd->bhij", query, e.share(key, config.heads)) * config.scale
    if isinstance(config.attention, c.Linformer):
        return matrix
    bias = sight.bias()
    matrix = matrix if bias is None else matrix + bias
    return matrix.masked_fill(~sight.visible(), -torch.inf)


def _linear_weights(config: c.ModelConfig, attention: Attention, query: Tensor, key: Tensor, sight: _Sight) -> Tensor:
    mechanism = attention.mechanism
    assert isinstance(mechanism, LinearMechanism | LinearTwin)
    assert isinstance(config.attention, c.Linear)
    kind = config.attention.features
    # A factor of a query's features cancels in its row, and one of all keys' features in every row.
    phi_query = e.features(query, mechanism.map, kind, config.scale, (-1,))
    phi_key = e.share(e.features(key, mechanism.map, kind, config.scale, (-2, -1)), config.heads)
    seen = sight.visible()
    plain = torch.einsum("bhim,bhjm->bhij", phi_query, phi_key) * seen
    turned = torch.einsum("bhim,bhjm->bhij", sight.turned(phi_query), sight.turned(phi_key)) * seen
    total = plain.sum(-1, keepdim=True)
    return torch.where(
        total > 0, turned / torch.where(total > 0, total, torch.ones_like(total)), torch.zeros_like(turned)
    )


def _feed_forward(config: c.ModelConfig, block: Block, name: str, stream: str) -> Iterator[tuple[str, Recipe]]:
    part, activation = block.feed_forward, e.ACTIVATIONS[config.feed_forward.activation]
    first = part.gate if isinstance(part, GatedFeedForward) else part.up
    input_, hidden, active = (f"{name}.{site}" for site in ("input", "hidden", "active"))
    yield input_, _normed(stream, block.before_feed_forward)
    yield hidden, Recipe(r"F = X W_1 + b_1", (input_,), lambda v: e.linear(v[input_], first))
    if isinstance(part, GatedFeedForward):
        gated = Recipe(
            r"G = f(F) \odot (X W_3 + b_3)",
            (hidden, input_),
            lambda v: activation(v[hidden]) * e.linear(v[input_], part.up),
        )
        yield active, gated
    else:
        yield active, Recipe(r"G = f(F)", (hidden,), lambda v: activation(v[hidden]))
    yield f"{name}.output", Recipe(r"Y = G W_2 + b_2", (active,), lambda v: e.linear(v[active], part.down))


def _residual(name: str, stream: str, change: str, after: nn.Module) -> dict[str, Recipe]:
    plain = isinstance(after, nn.Identity)
    formula = r"H' = H + \Delta" if plain else r"H' = \mathrm{norm}(H + \Delta)"
    return {name: Recipe(formula, (stream, change), lambda v: e.norm(v[stream] + v[change], after))}


def _normed(stream: str, module: nn.Module) -> Recipe:
    formulas = {
        nn.LayerNorm: r"y = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta",
        nn.RMSNorm: r"y = \gamma \odot \frac{x}{\sqrt{\overline{x^2} + \epsilon}}",
    }
    return Recipe(formulas.get(type(module), r"y = x"), (stream,), lambda v: e.norm(v[stream], module))


def _head(network: Transformer, x: Tensor, text: Text) -> Tensor:
    """The task head in float64; pooling is a choice of rows or their mean, and is taken as it is."""
    part, head = network.config.head, network.head
    if isinstance(part, c.Classify | c.Pool):
        x = pool(x, part.pooling, text.padding)
    match head:
        case UnembedHead():
            assert isinstance(part, c.Unembed)
            if part.transform is not None:
                x = e.norm(e.ACTIVATIONS[part.transform](e.linear(x, head.dense)), head.norm)
            scores = (x * part.scale) @ e.exact(network.tokens.weight if head.weight is None else head.weight).T
            return scores if head.bias is None else scores + e.exact(head.bias)
        case TagHead():
            return e.linear(x, head.to_labels)
        case ClassifyHead():
            assert isinstance(part, c.Classify)
            hidden = x if part.hidden is None else e.ACTIVATIONS[part.hidden](e.linear(x, head.dense))
            return e.linear(hidden, head.to_labels)
        case PoolHead():
            vector = x if head.dense is None else torch.tanh(e.linear(x, head.dense))
            return vector / vector.norm(dim=-1, keepdim=True) if head.part.normalize else vector
