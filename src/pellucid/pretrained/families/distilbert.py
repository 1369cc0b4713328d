"""DistilBERT: half of BERT's blocks, without segments and pooler, under names of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pellucid.model.config import Classify, LayerNorm, Learned, ModelConfig, Plain, Pool, Tag, Unembed
from pellucid.pretrained.families.bert import head_kind, ignore_history, read_head
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family, activation_word
from pellucid.pretrained.table import Row, layer_norm, linear, same


def read(config: ConfigReader, architecture: str) -> ModelConfig:
    activation = config.choose("activation", ACTIVATIONS, "gelu")
    hints = {
        "vocab_transform.weight": "unembed",
        "pre_classifier.weight": "classify",
        "classifier.weight": "tag",
    }
    kind = head_kind(config, architecture, hints)
    config.expect("is_decoder", False, None)
    config.expect("add_cross_attention", False, None)
    config.expect("pruned_heads", {}, None)
    ignore_history(config)
    # Sinusoidal tables are stored like learned ones; weights are tied since transformers 2 whatever tie_weights_ says.
    config.ignore("sinusoidal_pos_embds", "tie_weights_")
    return ModelConfig(
        vocab=config.take("vocab_size", int),
        width=config.take("dim", int),
        heads=config.take("n_heads", int),
        encoder_blocks=config.take("n_layers", int),
        context=config.take("max_position_embeddings", int),
        position=Learned(),
        norm=LayerNorm(epsilon=1e-12),
        placement="post",
        embedding_norm=True,
        feed_forward=Plain(hidden=config.take("hidden_dim", int), activation=activation),
        head=read_head(config, kind, activation, Pool(pooling="first"), hidden="relu"),
    )


def write(config: ModelConfig) -> dict[str, Any]:
    assert isinstance(config.feed_forward, Plain)
    return {
        "model_type": "distilbert",
        "vocab_size": config.vocab,
        "dim": config.width,
        "n_heads": config.heads,
        "n_layers": config.encoder_blocks,
        "hidden_dim": config.feed_forward.hidden,
        "activation": activation_word(config.feed_forward.activation),
        "max_position_embeddings": config.context,
        "tie_word_embeddings": not isinstance(config.head, Unembed) or config.head.tied,
    }


def rows(config: ModelConfig) -> Iterator[Row]:
    yield same("distilbert.embeddings.word_embeddings.weight", "tokens.weight")
    yield same("distilbert.embeddings.position_embeddings.weight", "encoder.positions.table.weight")
    yield from layer_norm("distilbert.embeddings.LayerNorm", "embedding.normalize")
    for block in range(config.encoder_blocks):
        theirs, ours = f"distilbert.transformer.layer.{block}", f"encoder.{block}"
        for short, name in (("q", "query"), ("k", "key"), ("v", "value"), ("out", "output")):
            yield from linear(f"{theirs}.attention.{short}_lin", f"{ours}.attention.to_{name}", bias=True)
        yield from layer_norm(f"{theirs}.sa_layer_norm", f"{ours}.after_attention")
        yield from linear(f"{theirs}.ffn.lin1", f"{ours}.feed_forward.up", bias=True)
        yield from linear(f"{theirs}.ffn.lin2", f"{ours}.feed_forward.down", bias=True)
        yield from layer_norm(f"{theirs}.output_layer_norm", f"{ours}.after_feed_forward")
    yield from _head_rows(config)


def _head_rows(config: ModelConfig) -> Iterator[Row]:
    match config.head:
        case Unembed(tied=tied):
            yield from linear("vocab_transform", "head.dense", bias=True)
            yield from layer_norm("vocab_layer_norm", "head.norm")
            yield same("vocab_projector.bias", "head.bias")
            if not tied:
                yield same("vocab_projector.weight", "head.weight")
        case Tag():
            yield from linear("classifier", "head.to_labels", bias=True)
        case Classify():
            yield from linear("pre_classifier", "head.dense", bias=True)
            yield from linear("classifier", "head.to_labels", bias=True)
        case _:
            pass


def aliases(config: ModelConfig) -> dict[str, str]:
    tied = isinstance(config.head, Unembed) and config.head.tied
    return {"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"} if tied else {}


# Oddities: the norms' epsilon is fixed at 1e-12 and not in the config; sinusoidal positions are stored as if learned;
# the classifier's hidden layer has a ReLU where BERT's has tanh. The class has no pooler, so the bare model gives the
# vector of the first token. A sentence encoder's file may bring the unused head of the masked language model.
DISTILBERT = Family(
    name="distilbert",
    read=read,
    write=write,
    classes={
        "unembed": "DistilBertForMaskedLM",
        "tag": "DistilBertForTokenClassification",
        "classify": "DistilBertForSequenceClassification",
        "pool": "DistilBertModel",
    },
    rows=rows,
    prefix="distilbert.",
    ignored=(r"(distilbert\.)?embeddings\.position_ids",),
    spare=(r"vocab_(transform|layer_norm|projector)\.(weight|bias)",),
    aliases=aliases,
)
