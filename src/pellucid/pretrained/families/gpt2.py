"""GPT-2: learned positions, pre-norm, GELU (tanh), linear maps stored as [in, out] and query, key, value as one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pellucid.model.config import Classify, LayerNorm, Learned, ModelConfig, Plain, Softmax, Tag, Unembed
from pellucid.pretrained.families.decoder_heads import head_rows, tied_head
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family, activation_word
from pellucid.pretrained.table import Row, joined, layer_norm, linear, same, transposed


def read(config: ConfigReader, architecture: str) -> ModelConfig:
    width, heads = config.take("n_embd", int), config.take("n_head", int)
    config.expect("scale_attn_by_inverse_layer_idx", False)
    config.expect("add_cross_attention", False)
    config.ignore("n_ctx", "reorder_and_upcast_attn")
    config.ignore("summary_activation", "summary_proj_to_labels", "summary_type", "summary_use_proj")
    scaled = config.take("scale_attn_weights", bool, True)
    return ModelConfig(
        vocab=config.take("vocab_size", int),
        width=width,
        heads=heads,
        decoder_blocks=config.take("n_layer", int),
        context=config.take("n_positions", int),
        attention=Softmax() if scaled else Softmax(scale=1.0),
        position=Learned(),
        norm=LayerNorm(epsilon=config.take("layer_norm_epsilon", float, 1e-5)),
        feed_forward=Plain(
            hidden=config.optional("n_inner", int) or 4 * width,
            activation=config.choose("activation_function", ACTIVATIONS, "gelu_new"),
        ),
        head=_head(config, architecture),
    )


def _head(config: ConfigReader, architecture: str) -> Unembed | Tag | Classify:
    tied = config.take("tie_word_embeddings", bool, True)
    if architecture.endswith("ForTokenClassification"):
        return Tag(labels=config.labels)
    if architecture.endswith("ForSequenceClassification"):
        return Classify(labels=config.labels, pooling="last", hidden=None, bias=False)
    return Unembed(tied=tied)


def write(config: ModelConfig) -> dict[str, Any]:
    feed_forward, norm = config.feed_forward, config.norm
    assert isinstance(feed_forward, Plain)
    assert isinstance(norm, LayerNorm)
    return {
        "model_type": "gpt2",
        "vocab_size": config.vocab,
        "n_embd": config.width,
        "n_head": config.heads,
        "n_layer": config.decoder_blocks,
        "n_positions": config.context,
        "n_inner": feed_forward.hidden,
        "layer_norm_epsilon": norm.epsilon,
        "activation_function": activation_word(feed_forward.activation),
        "scale_attn_weights": config.attention == Softmax(),
        "tie_word_embeddings": not isinstance(config.head, Unembed) or config.head.tied,
    }


def rows(config: ModelConfig) -> Iterator[Row]:
    yield same("transformer.wte.weight", "tokens.weight")
    yield same("transformer.wpe.weight", "decoder.positions.table.weight")
    for block in range(config.decoder_blocks):
        theirs, ours = f"transformer.h.{block}", f"decoder.{block}"
        yield from layer_norm(f"{theirs}.ln_1", f"{ours}.before_attention")
        for part, transpose in (("weight", True), ("bias", False)):
            projections = (f"{ours}.attention.to_{name}.{part}" for name in ("query", "key", "value"))
            yield joined(f"{theirs}.attn.c_attn.{part}", *projections, transpose=transpose)
        yield from linear(f"{theirs}.attn.c_proj", f"{ours}.attention.to_output", bias=True, row=transposed)
        yield from layer_norm(f"{theirs}.ln_2", f"{ours}.before_feed_forward")
        yield from linear(f"{theirs}.mlp.c_fc", f"{ours}.feed_forward.up", bias=True, row=transposed)
        yield from linear(f"{theirs}.mlp.c_proj", f"{ours}.feed_forward.down", bias=True, row=transposed)
    yield from layer_norm("transformer.ln_f", "final.normalize")
    yield from head_rows(config, tagger="classifier")


# Oddities: linear maps are [in, out] (they were 1 x 1 convolutions once); older files carry the causal mask as
# `attn.bias` and `attn.masked_bias`; the first releases lack the prefix `transformer.` and the tied `lm_head`.
GPT2 = Family(
    name="gpt2",
    read=read,
    write=write,
    classes={
        "unembed": "GPT2LMHeadModel",
        "tag": "GPT2ForTokenClassification",
        "classify": "GPT2ForSequenceClassification",
    },
    rows=rows,
    prefix="transformer.",
    ignored=(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)",),
    aliases=lambda config: tied_head(config, "transformer.wte.weight"),
)
