"""How much arithmetic a token takes, written or learned from: two operations for each multiply-add of a matrix product.

What is done number by number (norms, softmax, activations, rotations, the sums under linear attention) is left out.
`decode_flops` counts what writing needs: no scores that the mask hides. `flops_per_token` counts training as the share
of a GPU's peak is commonly given (MFU): with the whole square of scores, and the backward pass as twice the forward.
"""

from __future__ import annotations

import torch

from pellucid.errors import ConfigError
from pellucid.model import config as c
from pellucid.model.transformer import Transformer


def flops_per_token(config: c.ModelConfig, context: int) -> float:
    """Learning from a token of a text of this length, forward and backward.

    6 per weight of a matrix, and 12 x blocks x width x context for the scores and their mixtures.
    """
    with torch.device("meta"):
        network = Transformer(config)
    tables = {id(network.tokens.weight)} if _is_looked_up_only(config) else set()
    weights = sum(each.numel() for each in network.parameters() if each.dim() >= 2 and id(each) not in tables)
    blocks = config.encoder_blocks + config.decoder_blocks
    return 6.0 * weights + 12.0 * blocks * config.heads * config.key_width * context


def _is_looked_up_only(config: c.ModelConfig) -> bool:
    return not (isinstance(config.head, c.Unembed) and config.head.tied)


def decode_flops(
    config: c.ModelConfig, tokens: int, past: int = 0, source: int = 0, *, source_kept: bool = False
) -> int:
    """Reading `tokens` after `past` ones whose keys and values are kept, up to the scores of the last one.

    source: how long the text of an encoder-decoder's encoder is. source_kept: its keys and values are there already.
    """
    if not config.causal or config.decoder_blocks == 0 or not isinstance(config.head, c.Unembed):
        raise ConfigError("only causal decoders that write text take a step: count the products of others in full")
    total = _head(config, config.head)
    for block in range(config.decoder_blocks):
        total += tokens * _block(config) + _attention(config, tokens, past, config.window_of(block))
    if config.is_encoder_decoder:
        total += config.decoder_blocks * _cross(config, tokens, source, kept=source_kept)
        if not source_kept:
            total += sum(
                source * _block(config) + _mutual(config, source, config.window_of(block))
                for block in range(config.encoder_blocks)
            )
    return total


def _block(config: c.ModelConfig) -> int:
    """The projections of attention and the feed-forward part, for one token."""
    matrices = 3 if isinstance(config.feed_forward, c.Gated) else 2
    return _outer(config) + _keys_and_values(config) + 2 * matrices * config.width * config.feed_forward.hidden


def _outer(config: c.ModelConfig) -> int:
    """To the queries, and back from the heads."""
    return 2 * config.width * config.heads * (config.key_width + config.values_width)


def _keys_and_values(config: c.ModelConfig) -> int:
    return 2 * config.width * config.groups * (config.key_width + config.values_width)


def _attention(config: c.ModelConfig, tokens: int, past: int, window: int | None) -> int:
    """Between queries and keys, and from weights to heads. Linear attention adds to its sums, and reads them."""
    if isinstance(config.attention, c.Linear):
        return tokens * (_features(config, config.heads + config.groups) + 2 * _sums(config))
    seen = (place + 1 if window is None else min(place + 1, window) for place in range(past, past + tokens))
    return _pairs(config, sum(seen))


def _mutual(config: c.ModelConfig, tokens: int, window: int | None) -> int:
    """In an encoder, where both sides are seen."""
    if isinstance(config.attention, c.Linear):
        return _attention(config, tokens, 0, None)
    reach = tokens if window is None else window
    seen = (min(place + reach, tokens) - max(place - reach + 1, 0) for place in range(tokens))
    return _pairs(config, sum(seen))


def _cross(config: c.ModelConfig, tokens: int, source: int, *, kept: bool) -> int:
    linear = isinstance(config.attention, c.Linear)
    read = tokens * (_features(config, config.heads) + _sums(config)) if linear else _pairs(config, tokens * source)
    total = tokens * _outer(config) + read
    if not kept:
        total += source * _keys_and_values(config)
        total += source * (_features(config, config.groups) + _sums(config)) if linear else 0
    return total


def _pairs(config: c.ModelConfig, count: int) -> int:
    return 2 * config.heads * (config.key_width + config.values_width) * count


def _sums(config: c.ModelConfig) -> int:
    return 2 * config.heads * c.feature_width(config) * config.values_width


def _features(config: c.ModelConfig, heads: int) -> int:
    """Random features are products with a random matrix; the others are functions of each number."""
    attention = config.attention
    if not (isinstance(attention, c.Linear) and isinstance(attention.features, c.PositiveRandom)):
        return 0
    return 2 * heads * config.key_width * attention.features.count


def _head(config: c.ModelConfig, head: c.Unembed) -> int:
    dense = 0 if head.transform is None else 2 * config.width**2
    return 2 * config.width * config.vocab + dense
