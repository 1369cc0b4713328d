"""T5 and mT5: encoder-decoders with bucketed distances, pre-norm with RMSNorm, unscaled scores and no biases."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from pellucid.errors import CheckpointError
from pellucid.model.config import (
    Activation,
    Biases,
    Gated,
    ModelConfig,
    Plain,
    Pool,
    RMSNorm,
    Softmax,
    T5Buckets,
    Unembed,
)
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family, activation_word
from pellucid.pretrained.table import Row, same

_NOT_BUILT = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
_PROJECTIONS = {"q": "to_query", "k": "to_key", "v": "to_value", "o": "to_output"}


def read(config: ConfigReader, architecture: str, *, name: str) -> ModelConfig:
    if architecture.endswith(_NOT_BUILT):
        raise CheckpointError(
            f"this checkpoint is a {architecture}, but of this family only ForConditionalGeneration, Model and "
            "EncoderModel can be built: open the checkpoint that it was tuned from"
        )
    for key in ("is_decoder", "add_cross_attention", "tie_encoder_decoder"):
        config.expect(key, False)
    config.ignore("n_positions", "xla_device")
    config.ignore("cross_attention_hidden_size", "max_new_tokens", "renormalize_logits")
    width, depth = config.take("d_model", int), config.take("num_layers", int)
    decoder_depth = config.take("num_decoder_layers", int, depth)
    alone = architecture.endswith("EncoderModel")
    head = _head(config, width, name)
    return ModelConfig(
        vocab=config.take("vocab_size", int),
        width=width,
        heads=config.take("num_heads", int),
        head_width=config.take("d_kv", int),
        encoder_blocks=depth,
        decoder_blocks=0 if alone else decoder_depth,
        attention=Softmax(scale=1.0),
        position=T5Buckets(
            buckets=config.take("relative_attention_num_buckets", int, 32),
            max_distance=config.take("relative_attention_max_distance", int, 128),
        ),
        norm=RMSNorm(epsilon=config.take("layer_norm_epsilon", float, 1e-6)),
        biases=Biases.none(),
        feed_forward=_feed_forward(config, name),
        head=Pool() if alone else head,
    )


def _feed_forward(config: ConfigReader, name: str) -> Plain | Gated:
    """`feed_forward_proj` is "relu" or "gated-gelu"; the two keys that follow from it win where they are given too."""
    word = config.take("feed_forward_proj", str, "gated-gelu" if name == "mt5" else "relu")
    gated = config.take("is_gated_act", bool, word.startswith("gated-"))
    default = "gelu_new" if word == "gated-gelu" else word.removeprefix("gated-")
    activation: Activation = config.choose("dense_act_fn", ACTIVATIONS, default)
    hidden = config.take("d_ff", int)
    return Gated(hidden=hidden, activation=activation) if gated else Plain(hidden=hidden, activation=activation)


def _head(config: ConfigReader, width: int, name: str) -> Unembed:
    """Whether the unembedding is the token table, and whether the logits are scaled.

    Up to transformers 4, `tie_word_embeddings` says both. Version 5 writes true whatever the weights are, keeps the
    scaling of T5 in a key of its own, and writes an lm_head only where it is not the token table.
    """
    tied = config.take("tie_word_embeddings", bool, True)
    scaled = config.optional("scale_decoder_outputs", bool)
    own = config.holds("lm_head.weight", without_file=not tied)
    if name == "mt5":
        return Unembed(tied=not own)
    scale = width**-0.5 if (tied if scaled is None else scaled) else 1.0
    return Unembed(tied=not own if scaled is not None or not tied else True, scale=scale)


def write(config: ModelConfig, *, name: str) -> dict[str, Any]:
    feed_forward, norm, position, head = config.feed_forward, config.norm, config.position, config.head
    assert isinstance(norm, RMSNorm)
    assert isinstance(position, T5Buckets)
    gated = isinstance(feed_forward, Gated)
    word = activation_word(feed_forward.activation)
    said = "gelu" if gated and word == "gelu_new" else word
    written = {
        "model_type": name,
        "vocab_size": config.vocab,
        "d_model": config.width,
        "d_kv": config.key_width,
        "d_ff": feed_forward.hidden,
        "num_heads": config.heads,
        "num_layers": config.encoder_blocks,
        "num_decoder_layers": config.decoder_blocks or config.encoder_blocks,
        "relative_attention_num_buckets": position.buckets,
        "relative_attention_max_distance": position.max_distance,
        "layer_norm_epsilon": norm.epsilon,
        "feed_forward_proj": f"gated-{said}" if gated else said,
        "dense_act_fn": word,
        "is_gated_act": gated,
        "is_encoder_decoder": config.is_encoder_decoder,
        "pad_token_id": 0,
        "decoder_start_token_id": 0,
        "eos_token_id": 1,
    }
    if isinstance(head, Unembed):
        written["tie_word_embeddings"] = head.tied
        scaled = head.scale != 1.0
        # Only where it says more than the tying does: transformers 4 does not know the key.
        if name == "t5" and scaled != head.tied:
            written["scale_decoder_outputs"] = scaled
    return written


def rows(config: ModelConfig) -> Iterator[Row]:
    yield same("shared.weight", "tokens.weight")
    both = config.is_encoder_decoder
    yield from _stack(config, "encoder", config.encoder_blocks, "encoder.final" if both else "final")
    if both:
        yield from _stack(config, "decoder", config.decoder_blocks, "final")
    if isinstance(config.head, Unembed) and not config.head.tied:
        yield same("lm_head.weight", "head.weight")


def _stack(config: ModelConfig, stack: str, depth: int, final: str) -> Iterator[Row]:
    first = f"{stack}.block.0.layer.0.SelfAttention"
    yield same(f"{first}.relative_attention_bias.weight", f"{stack}.positions.table.weight")
    crosses = [("cross", "EncDecAttention")] if stack == "decoder" else []
    for block in range(depth):
        ours = f"{stack}.{block}"
        sublayers = [("attention", "SelfAttention"), *crosses, ("feed_forward", "DenseReluDense")]
        for index, (part, theirs) in enumerate(sublayers):
            layer = f"{stack}.block.{block}.layer.{index}"
            yield same(f"{layer}.layer_norm.weight", f"{ours}.before_{part}.weight")
            for letter, map_ in (_maps(config) if part == "feed_forward" else _PROJECTIONS).items():
                yield same(f"{layer}.{theirs}.{letter}.weight", f"{ours}.{part}.{map_}.weight")
    yield same(f"{stack}.final_layer_norm.weight", f"{final}.normalize.weight")


def _maps(config: ModelConfig) -> dict[str, str]:
    if isinstance(config.feed_forward, Gated):
        return {"wi_0": "gate", "wi_1": "up", "wo": "down"}
    return {"wi": "up", "wo": "down"}


def aliases(config: ModelConfig) -> dict[str, str]:
    stacks = ("encoder", "decoder") if config.is_encoder_decoder else ("encoder",)
    repeats = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in stacks}
    tied = isinstance(config.head, Unembed) and config.head.tied
    return repeats | ({"lm_head.weight": "shared.weight"} if tied else {})


def _family(name: str, prefix: str) -> Family:
    return Family(
        name=name,
        read=partial(read, name=name),
        write=partial(write, name=name),
        classes={"unembed": f"{prefix}ForConditionalGeneration", "pool": f"{prefix}EncoderModel"},
        rows=rows,
        ignored=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
        aliases=aliases,
    )


# Oddities: the score bias is stored in block 0 and used by all blocks; the oldest files carry one for cross-attention
# too, which nothing reads. "gated-gelu" means the tanh approximation, plain "gelu" the exact one. The width of a head
# is free of the model's. Version 1.0 shares one table and scales the logits by width^-0.5, version 1.1 does neither;
# mT5 is version 1.1 and never scales, even where its config says that the tables are tied (transformers 4 did then).
# T5EncoderModel is the encoder alone, read here with mean pooling unless modules.json says otherwise. UMT5 has a bias
# table in every block, so it is not this family.
T5 = _family("t5", "T5")
MT5 = _family("mt5", "MT5")
