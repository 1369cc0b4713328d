"""BLOOM: ALiBi, a norm on the embedding, pre-norm, GELU (tanh), query, key and value as one map, head by head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.model.config import ALiBi, Classify, LayerNorm, ModelConfig, Plain, Tag, Unembed
from pellucid.pretrained.families.decoder_heads import head_rows, tied_head
from pellucid.pretrained.family import ConfigReader, Family
from pellucid.pretrained.table import Row, layer_norm, linear, same


def read(config: ConfigReader, architecture: str) -> ModelConfig:
    width = _either(config, "hidden_size", "n_embed")
    config.expect("apply_residual_connection_post_layernorm", False)
    config.expect("skip_bias_add_qkv", False)
    config.expect("n_inner", None, "", 4 * width)
    _refuse_lost_biases(config)
    config.ignore("seq_length", "offset_alibi")
    config.ignore("attention_softmax_in_fp32", "masked_softmax_fusion", "skip_bias_add")
    config.ignore("pretraining_pp")
    return ModelConfig(
        vocab=config.take("vocab_size", int),
        width=width,
        heads=_either(config, "n_head", "num_attention_heads"),
        decoder_blocks=_either(config, "n_layer", "num_hidden_layers"),
        position=ALiBi(),
        norm=LayerNorm(epsilon=config.take("layer_norm_epsilon", float, 1e-5)),
        embedding_norm=True,
        feed_forward=Plain(hidden=4 * width, activation="gelu_tanh"),
        head=_head(config, architecture),
    )


def _either(config: ConfigReader, new: str, old: str) -> int:
    """A size under its newer name or its older one; a file with both must agree with itself."""
    first, second = config.optional(new, int), config.optional(old, int)
    if first is not None and second is not None and first != second:
        raise CheckpointError(
            f"config.json says {new} = {first} and {old} = {second}, which are two words for one size"
        )
    return config.take(new if second is None else old, int)


def _refuse_lost_biases(config: ConfigReader) -> None:
    """transformers sums slices of two maps and forgets their biases: with this pair of settings, and only then."""
    if config.take("slow_but_exact", bool, False) and config.take("pretraining_tp", int, 1) > 1:
        raise CheckpointError(
            "config.json says slow_but_exact = True with pretraining_tp > 1, which leaves out biases that the model "
            "was trained with: set slow_but_exact to false"
        )


def _head(config: ConfigReader, architecture: str) -> Unembed | Tag | Classify:
    tied = config.take("tie_word_embeddings", bool, True)
    if architecture.endswith("ForTokenClassification"):
        return Tag(labels=config.labels)
    if architecture.endswith("ForSequenceClassification"):
        return Classify(labels=config.labels, pooling="last", hidden=None, bias=False)
    return Unembed(tied=tied)


def write(config: ModelConfig) -> dict[str, Any]:
    assert isinstance(config.norm, LayerNorm)
    return {
        "model_type": "bloom",
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "n_head": config.heads,
        "n_layer": config.decoder_blocks,
        "layer_norm_epsilon": config.norm.epsilon,
        "tie_word_embeddings": not isinstance(config.head, Unembed) or config.head.tied,
    }


def rows(config: ModelConfig) -> Iterator[Row]:
    yield same("transformer.word_embeddings.weight", "tokens.weight")
    yield from layer_norm("transformer.word_embeddings_layernorm", "embedding.normalize")
    for block in range(config.decoder_blocks):
        theirs, ours = f"transformer.h.{block}", f"decoder.{block}"
        yield from layer_norm(f"{theirs}.input_layernorm", f"{ours}.before_attention")
        for part in ("weight", "bias"):
            projections = (f"{ours}.attention.to_{name}.{part}" for name in ("query", "key", "value"))
            yield head_by_head(f"{theirs}.self_attention.query_key_value.{part}", *projections, heads=config.heads)
        yield from linear(f"{theirs}.self_attention.dense", f"{ours}.attention.to_output", bias=True)
        yield from layer_norm(f"{theirs}.post_attention_layernorm", f"{ours}.before_feed_forward")
        yield from linear(f"{theirs}.mlp.dense_h_to_4h", f"{ours}.feed_forward.up", bias=True)
        yield from linear(f"{theirs}.mlp.dense_4h_to_h", f"{ours}.feed_forward.down", bias=True)
    yield from layer_norm("transformer.ln_f", "final.normalize")
    yield from head_rows(config, tagger="classifier")


def head_by_head(theirs: str, *ours: str, heads: int) -> Row:
    """Theirs holds the first head of each of ours, then the second head of each, and so on."""

    def split(tensor: Tensor) -> tuple[Tensor, ...]:
        by_head = tensor.view(heads, len(ours), -1, *tensor.shape[1:])
        return tuple(part.flatten(0, 1) for part in by_head.unbind(1))

    def join(parts: tuple[Tensor, ...]) -> Tensor:
        return torch.stack([part.view(heads, -1, *part.shape[1:]) for part in parts], 1).flatten(0, 2)

    return Row(theirs, ours, split, join)


# Oddities: the released files lack the prefix `transformer.`, and their configs say n_embed and num_attention_heads
# where newer ones say hidden_size and n_head, beside keys of Megatron's that nothing reads (offset_alibi moves all
# scores of a row alike). transformers writes ALiBi as slope x key position, ours is -slope x distance: the same after
# a softmax. It also rounds where we don't, in every dtype: slopes and biases to float32, the softmax to float32, and
# sqrt(2/pi) to 0.79788456; together less than float32's own rounding.
BLOOM = Family(
    name="bloom",
    read=read,
    write=write,
    classes={
        "unembed": "BloomForCausalLM",
        "tag": "BloomForTokenClassification",
        "classify": "BloomForSequenceClassification",
    },
    rows=rows,
    prefix="transformer.",
    aliases=lambda config: tied_head(config, "transformer.word_embeddings.weight"),
)
