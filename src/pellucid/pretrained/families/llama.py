"""Llama and Mistral: rotary, pre-norm with RMSNorm, gated SiLU, grouped keys and values.

One table and one reader for them and for Qwen (qwen.py); each adds the little that is its own: biases, windows, norms
of query and key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from pellucid.errors import CheckpointError
from pellucid.model.config import (
    Biases,
    Classify,
    DynamicNtkScaling,
    Gated,
    Head,
    ModelConfig,
    Pool,
    RMSNorm,
    Rotary,
    Tag,
    Unembed,
)
from pellucid.pretrained.families.decoder_heads import head_rows, tied_head
from pellucid.pretrained.families.rotary import read_rotary, write_rotary
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family, activation_word
from pellucid.pretrained.table import Row, linear, same

FULL, SLIDING = "full_attention", "sliding_attention"

# Limits of tokenizers, notes of other programs: nothing that these families compute with.
_SILENT = (
    "is_decoder",
    "tie_encoder_decoder",
    "cross_attention_hidden_size",
    "max_sequence_length",
    "model_max_length",
    "tokenizer_model_max_length",
    "seq_length",
    "_attn_implementation",
    "attn_implementation",
    "_flash_attn_2_enabled",
    "use_flash_attention",
    "is_llama_config",
    "transformers.js_config",
)


def _read(own: Callable[[ConfigReader], dict[str, Any]], config: ConfigReader, architecture: str) -> ModelConfig:
    """What all say alike, and what `own` adds or replaces."""
    config.ignore(*_SILENT)
    config.expect("quantization_config", None)
    config.expect("quantization", None)
    config.expect("add_cross_attention", None, False)
    config.expect("token_classification_bias", None, True)
    context = config.optional("max_position_embeddings", int)
    values: dict[str, Any] = {
        "vocab": config.take("vocab_size", int),
        "width": config.take("hidden_size", int),
        "heads": config.take("num_attention_heads", int),
        "key_value_heads": config.optional("num_key_value_heads", int),
        "head_width": config.optional("head_dim", int),
        "decoder_blocks": config.take("num_hidden_layers", int),
        "context": context,
        "causal": config.take("is_causal", bool, True),
        "position": read_rotary(config, context),
        "norm": RMSNorm(epsilon=config.take("rms_norm_eps", float, 1e-6)),
        "biases": Biases.none(),
        "feed_forward": Gated(
            hidden=config.take("intermediate_size", int),
            activation=config.choose("hidden_act", ACTIVATIONS, "silu"),
        ),
        "head": _head(config, architecture),
    }
    values |= own(config)
    if not values["causal"] and values.get("window") is not None:
        raise CheckpointError(
            f"config.json says is_causal = False with the window {values['window']}, but windows can be built only "
            "where the future is hidden"
        )
    if values["head_width"] is not None and values["head_width"] * values["heads"] == values["width"]:
        values["head_width"] = None  # newer files say what older ones leave out: both are one model
    return ModelConfig(**values)


def _head(config: ConfigReader, architecture: str) -> Head:
    tied = config.take("tie_word_embeddings", bool, False)
    if architecture.endswith("ForTokenClassification"):
        return Tag(labels=config.labels)
    if architecture.endswith("ForSequenceClassification"):
        return Classify(labels=config.labels, pooling="last", hidden=None, bias=False)
    if architecture.endswith("Model") and "For" not in architecture:
        # Bare: its own table unembeds if it may; else the last token's state is all there is, as embedders take it.
        return Unembed() if tied else Pool(pooling="last")
    if architecture and not architecture.endswith("ForCausalLM"):
        raise CheckpointError(
            f"config.json says architectures = {architecture!r}, but only ForCausalLM, ForSequenceClassification, "
            "ForTokenClassification and the bare model can be built"
        )
    return Unembed(tied=tied)


# --- what they have of their own ---


def _read_llama(config: ConfigReader) -> dict[str, Any]:
    config.expect("rope_interleaved", None, False)
    config.expect("sliding_window", None)
    config.expect("use_sliding_window", None, False)
    attention = config.take("attention_bias", bool, False)
    return {"biases": same_biases(attention, output=attention, feed_forward=config.take("mlp_bias", bool, False))}


def _read_mistral(config: ConfigReader) -> dict[str, Any]:
    config.expect("attention_bias", None, False)
    config.expect("mlp_bias", None, False)
    window = unless_absent(config, "sliding_window", 4096)
    kind = FULL if window is None else SLIDING
    config.expect("layer_types", None, [kind] * config.take("num_hidden_layers", int))
    config.expect("use_sliding_window", None, window is not None)
    return {"window": window, "key_value_heads": unless_absent(config, "num_key_value_heads", 8)}


def same_biases(attention: bool, *, output: bool, feed_forward: bool = False) -> Biases:
    return Biases(query=attention, key=attention, value=attention, output=output, feed_forward=feed_forward)


def unless_absent(config: ConfigReader, key: str, default: int) -> int | None:
    """Here null is a value (no window; as many groups as heads), and a key that is not there stands for another."""
    return config.optional(key, int) if key in config.values else default


# --- and back ---


def _write(name: str, own: Callable[[ModelConfig], dict[str, Any]], config: ModelConfig) -> dict[str, Any]:
    feed_forward, norm, position = config.feed_forward, config.norm, config.position
    assert isinstance(feed_forward, Gated)
    assert isinstance(norm, RMSNorm)
    assert isinstance(position, Rotary)
    written = {
        "model_type": name,
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.groups,
        "head_dim": config.key_width,
        "num_hidden_layers": config.decoder_blocks,
        "intermediate_size": feed_forward.hidden,
        "hidden_act": activation_word(feed_forward.activation),
        "rms_norm_eps": norm.epsilon,
        "tie_word_embeddings": isinstance(config.head, Unembed) and config.head.tied,
    }
    # Dynamic scaling starts at this length; nothing else that these families compute depends on it.
    scaling = position.scaling
    context = scaling.original_context if isinstance(scaling, DynamicNtkScaling) else config.context
    if context is not None:
        written["max_position_embeddings"] = context
    if not config.causal:
        written["is_causal"] = False
    return written | write_rotary(position) | own(config)


def _write_llama(config: ModelConfig) -> dict[str, Any]:
    assert config.width % config.heads == 0  # transformers refuses other widths, whatever head_dim says
    return {"attention_bias": config.biases.output, "mlp_bias": config.biases.feed_forward}


def _write_mistral(config: ModelConfig) -> dict[str, Any]:
    windows = {config.window_of(block) for block in range(config.decoder_blocks)}
    assert len(windows) == 1
    return {"sliding_window": windows.pop()}


# --- the table ---


def rows(config: ModelConfig) -> Iterator[Row]:
    yield same("model.embed_tokens.weight", "tokens.weight")
    for block in range(config.decoder_blocks):
        yield from _block_rows(config, f"model.layers.{block}", f"decoder.{block}")
    yield same("model.norm.weight", "final.normalize.weight")
    yield from head_rows(config, tagger="score")


def _block_rows(config: ModelConfig, theirs: str, ours: str) -> Iterator[Row]:
    yield same(f"{theirs}.input_layernorm.weight", f"{ours}.before_attention.weight")
    for part in ("query", "key", "value", "output"):
        bias = getattr(config.biases, part)
        yield from linear(f"{theirs}.self_attn.{part[0]}_proj", f"{ours}.attention.to_{part}", bias=bias)
    if config.query_key_norm:
        yield same(f"{theirs}.self_attn.q_norm.weight", f"{ours}.attention.norm_query.weight")
        yield same(f"{theirs}.self_attn.k_norm.weight", f"{ours}.attention.norm_key.weight")
    yield same(f"{theirs}.post_attention_layernorm.weight", f"{ours}.before_feed_forward.weight")
    for part in ("gate", "up", "down"):
        bias = config.biases.feed_forward
        yield from linear(f"{theirs}.mlp.{part}_proj", f"{ours}.feed_forward.{part}", bias=bias)


def llama_like(
    name: str,
    word: str,
    read: Callable[[ConfigReader], dict[str, Any]],
    write: Callable[[ModelConfig], dict[str, Any]],
) -> Family:
    """A family by its model_type, the word that its classes start with, and what it reads and writes of its own."""
    return Family(
        name=name,
        read=partial(_read, read),
        write=partial(_write, name, write),
        classes={
            "unembed": f"{word}ForCausalLM",
            "tag": f"{word}ForTokenClassification",
            "classify": f"{word}ForSequenceClassification",
            "pool": f"{word}Model",
        },
        rows=rows,
        prefix="model.",
        ignored=(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq",),
        spare=(r"lm_head\.weight",),
        aliases=lambda config: tied_head(config, "model.embed_tokens.weight"),
    )


# Oddities: `post_attention_layernorm` stands before the feed-forward; a bare model with a free unembedding has none in
# its file; files from before 2024 carry the frequencies as `rotary_emb.inv_freq`. A missing key is not always null:
# Mistral without `sliding_window` has one of 4096, and without `num_key_value_heads` 8 groups. transformers rounds
# angles, norms and the softmax to float32 in every dtype; we round the angles only, since these models were trained
# with them. With dynamic scaling it keeps the angles of the longest text that it has seen, until one comes that is
# shorter than the original context, so that its scores depend on what was asked before; ours depend on the batch alone.
LLAMA = llama_like("llama", "Llama", _read_llama, _write_llama)
MISTRAL = llama_like("mistral", "Mistral", _read_mistral, _write_mistral)
