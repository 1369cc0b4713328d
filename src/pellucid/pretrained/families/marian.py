"""Marian (OPUS-MT): post-norm translators with sinusoidal positions and a bias on the logits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.model.config import ModelConfig, Plain, Sinusoidal, Unembed
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family, activation_word
from pellucid.pretrained.table import Row, layer_norm, linear, same

_PROJECTIONS = {"q_proj": "to_query", "k_proj": "to_key", "v_proj": "to_value", "out_proj": "to_output"}


def read(config: ConfigReader, architecture: str) -> ModelConfig:
    _refuse_what_bart_had(config)
    config.ignore("extra_pos_embeddings", "add_bias_logits")
    config.ignore("force_bos_token_to_be_generated", "xla_device", "max_new_tokens")
    config.ignore("renormalize_logits", "cross_attention_hidden_size")
    config.ignore("num_hidden_layers")  # repeats encoder_layers; the tensors are counted against that one
    vocab, shared = config.take("vocab_size", int), config.take("share_encoder_decoder_embeddings", bool, True)
    target_vocab = config.take("decoder_vocab_size", int, vocab)
    tied = config.take("tie_word_embeddings", bool, True)
    if shared and target_vocab != vocab:
        raise CheckpointError(
            f"config.json shares one table between texts of vocab_size {vocab} and decoder_vocab_size {target_vocab}: "
            "they must be equal, or share_encoder_decoder_embeddings false"
        )
    if shared and not tied:
        raise CheckpointError(
            "config.json says share_encoder_decoder_embeddings = true and tie_word_embeddings = false, which "
            "transformers 4 and 5 read differently: set the first to false, and store both tables"
        )
    return ModelConfig(
        vocab=target_vocab,
        source_vocab=None if shared else vocab,
        width=config.take("d_model", int),
        heads=_equal(config, "attention_heads"),
        encoder_blocks=config.take("encoder_layers", int),
        decoder_blocks=config.take("decoder_layers", int),
        context=config.take("max_position_embeddings", int, 1024),
        position=Sinusoidal(layout="half", precision="float32"),
        placement="post",
        scale_embedding=config.take("scale_embedding", bool, False),
        feed_forward=Plain(
            hidden=_equal(config, "ffn_dim"),
            activation=config.choose("activation_function", ACTIVATIONS, "gelu"),
        ),
        # The buffer of zeros that a file may lack.
        head=Unembed(tied=tied, bias=config.holds("final_logits_bias", without_file=True)),
    )


def _refuse_what_bart_had(config: ConfigReader) -> None:
    """The first configs of this family were BART's, whose variants Marian never had."""
    config.expect("static_position_embeddings", True)
    for key in ("normalize_before", "normalize_embedding", "add_final_layer_norm", "is_decoder", "add_cross_attention"):
        config.expect(key, False)
    config.expect("tie_encoder_decoder", False)


def _equal(config: ConfigReader, what: str) -> int:
    encoder, decoder = (config.take(f"{stack}_{what}", int) for stack in ("encoder", "decoder"))
    if encoder != decoder:
        raise CheckpointError(
            f"config.json says encoder_{what} = {encoder} and decoder_{what} = {decoder}, but only stacks of one shape "
            "can be built"
        )
    return encoder


def write(config: ModelConfig) -> dict[str, Any]:
    feed_forward, head = config.feed_forward, config.head
    assert isinstance(feed_forward, Plain)
    assert isinstance(head, Unembed)
    per_stack = {"attention_heads": config.heads, "ffn_dim": feed_forward.hidden}
    # Marian starts a text with its padding token, which is the last that both vocabularies have; </s> is the first.
    source_vocab = config.vocab if config.source_vocab is None else config.source_vocab
    padding = min(config.vocab, source_vocab) - 1
    return {
        "model_type": "marian",
        "vocab_size": source_vocab,
        "decoder_vocab_size": config.vocab,
        "share_encoder_decoder_embeddings": config.source_vocab is None,
        "tie_word_embeddings": head.tied,
        "d_model": config.width,
        "encoder_layers": config.encoder_blocks,
        "decoder_layers": config.decoder_blocks,
        **{f"{stack}_{what}": size for what, size in per_stack.items() for stack in ("encoder", "decoder")},
        "max_position_embeddings": config.context or 1024,
        "scale_embedding": config.scale_embedding,
        "activation_function": activation_word(feed_forward.activation),
        "pad_token_id": padding,
        "decoder_start_token_id": padding,
        "eos_token_id": 0,
        "forced_eos_token_id": 0,
    }


def rows(config: ModelConfig) -> Iterator[Row]:
    if config.source_vocab is None:
        yield same("model.shared.weight", "tokens.weight")
    else:
        yield same("model.encoder.embed_tokens.weight", "source_tokens.weight")
        yield same("model.decoder.embed_tokens.weight", "tokens.weight")
    for stack, depth in (("encoder", config.encoder_blocks), ("decoder", config.decoder_blocks)):
        for block in range(depth):
            yield from _block(f"model.{stack}.layers.{block}", f"{stack}.{block}", cross=stack == "decoder")
    assert isinstance(config.head, Unembed)
    if not config.head.tied:
        yield same("lm_head.weight", "head.weight")
    if config.head.bias:
        yield _one_row("final_logits_bias", "head.bias")


def _block(theirs: str, ours: str, *, cross: bool) -> Iterator[Row]:
    attentions = {"self_attn": "attention"} | ({"encoder_attn": "cross"} if cross else {})
    for name, part in attentions.items():
        for projection, to in _PROJECTIONS.items():
            yield from linear(f"{theirs}.{name}.{projection}", f"{ours}.{part}.{to}", bias=True)
        yield from layer_norm(f"{theirs}.{name}_layer_norm", f"{ours}.after_{part}")
    yield from linear(f"{theirs}.fc1", f"{ours}.feed_forward.up", bias=True)
    yield from linear(f"{theirs}.fc2", f"{ours}.feed_forward.down", bias=True)
    yield from layer_norm(f"{theirs}.final_layer_norm", f"{ours}.after_feed_forward")


def _one_row(theirs: str, ours: str) -> Row:
    """Theirs is [1, vocab]."""

    def split(tensor: Tensor) -> tuple[Tensor, ...]:
        return (tensor[0],)

    def join(parts: tuple[Tensor, ...]) -> Tensor:
        return parts[0][None]

    return Row(theirs, (ours,), split, join)


def aliases(config: ModelConfig) -> dict[str, str]:
    tied = isinstance(config.head, Unembed) and config.head.tied
    if config.source_vocab is not None:
        return {"lm_head.weight": "model.decoder.embed_tokens.weight"} if tied else {}
    repeats = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight")
    return dict.fromkeys(repeats, "model.shared.weight")


# Oddities: positions are a fixed table, sines in the first half and cosines in the second, rounded to float32; older
# files store it, twice, and it is not read. transformers counts padding on the left as positions, we do not: pad on the
# right, as Marian was trained. The bias of the logits is stored as one row. A text starts with the padding token.
# `vocab_size` is the source's where the two texts have tables of their own. add_bias_logits was never read by anyone.
MARIAN = Family(
    name="marian",
    read=read,
    write=write,
    classes={"unembed": "MarianMTModel"},
    rows=rows,
    prefix="model.",
    ignored=(r"(model\.)?(encoder|decoder)\.embed_positions\.weight",),
    aliases=aliases,
)
