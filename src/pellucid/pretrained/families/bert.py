"""BERT: learned positions and segments, post-norm with a norm on the embedding; and the block that RoBERTa shares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from pellucid.errors import CheckpointError
from pellucid.model.config import (
    Activation,
    Classify,
    Head,
    LayerNorm,
    Learned,
    ModelConfig,
    Plain,
    Pool,
    Tag,
    Unembed,
)
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family, activation_word
from pellucid.pretrained.table import Row, layer_norm, linear, same

# The ends of their classes' names, and our heads. Scores for pre-training are those of the masked language model.
CLASSES = {
    "ForMaskedLM": "unembed",
    "ForPreTraining": "unembed",
    "LMHeadModel": "unembed",
    "ForCausalLM": "unembed",
    "ForTokenClassification": "tag",
    "ForSequenceClassification": "classify",
    "Model": "pool",
}


def read(config: ConfigReader, architecture: str) -> ModelConfig:
    activation = config.choose("hidden_act", ACTIVATIONS, "gelu")
    hints = {"cls.predictions.transform.dense.weight": "unembed"}
    kind = head_kind(config, architecture, hints)
    project = config.holds("bert.pooler.dense.weight", without_file=True)
    head = read_head(config, kind, activation, Pool(pooling="first", project=project))
    return read_encoder(config, activation, head)


def read_encoder(config: ConfigReader, activation: Activation, head: Head, skip: int = 0) -> ModelConfig:
    """All but the head, as BERT's config and those of its descendants say it."""
    config.expect("position_embedding_type", "absolute", None)
    config.expect("is_decoder", False, None)
    config.expect("add_cross_attention", False, None)
    config.expect("pruned_heads", {}, None)
    ignore_history(config)
    config.ignore("add_pooling_layer")
    segments = config.take("type_vocab_size", int, 2)
    if segments < 1:
        raise CheckpointError(f"config.json says type_vocab_size = {segments}, but this family has one or more")
    return ModelConfig(
        vocab=config.take("vocab_size", int),
        width=config.take("hidden_size", int),
        heads=config.take("num_attention_heads", int),
        encoder_blocks=config.take("num_hidden_layers", int),
        context=config.take("max_position_embeddings", int) - skip,
        position=Learned(skip=skip),
        norm=LayerNorm(epsilon=config.take("layer_norm_eps", float, 1e-12)),
        placement="post",
        embedding_norm=True,
        segments=segments,
        feed_forward=Plain(hidden=config.take("intermediate_size", int), activation=activation),
        head=head,
    )


def ignore_history(config: ConfigReader) -> None:
    """What released configs carry from transformers 1 to 5, and no forward pass reads."""
    # TensorFlow's first releases described a pooler that no one built; transformers 2 and 3 added the rest.
    config.ignore("directionality", "pooler_type", "pooler_fc_size", "pooler_num_attention_heads")
    config.ignore("pooler_num_fc_layers", "pooler_size_per_head")
    config.ignore("eos_token_ids", "xla_device", "tie_encoder_decoder")
    config.ignore("cross_attention_hidden_size", "language", "name")
    # What a cross-encoder does with its scores, after the model.
    config.ignore("sbert_ce_default_activation_function", "sentence_transformers")


def head_kind(config: ConfigReader, architecture: str, hints: dict[str, str]) -> str:
    """Which head their class has; where the config names no class, the tensors do."""
    for end, kind in CLASSES.items():
        if architecture.endswith(end):
            return kind
    if architecture:
        known = ", ".join(CLASSES)
        raise CheckpointError(f"config.json names the class {architecture!r}, but only those in {known} can be built")
    return next((kind for tensor, kind in hints.items() if config.holds(tensor, without_file=False)), "pool")


def read_head(
    config: ConfigReader, kind: str, transform: Activation, pool: Pool, hidden: Literal["tanh", "relu"] = "tanh"
) -> Head:
    tied = config.take("tie_word_embeddings", bool, True)
    match kind:
        case "unembed":
            return Unembed(tied=tied, bias=True, transform=transform)
        case "tag":
            return Tag(labels=config.labels)
        case "classify":
            return Classify(labels=config.labels, hidden=hidden)
        case _:
            return pool


def write(config: ModelConfig) -> dict[str, Any]:
    feed_forward, norm, position = config.feed_forward, config.norm, config.position
    assert isinstance(feed_forward, Plain)
    assert isinstance(norm, LayerNorm)
    assert isinstance(position, Learned)
    assert config.context is not None
    return {
        "model_type": "bert",
        "vocab_size": config.vocab,
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "num_hidden_layers": config.encoder_blocks,
        "intermediate_size": feed_forward.hidden,
        "hidden_act": activation_word(feed_forward.activation),
        "max_position_embeddings": config.context + position.skip,
        "type_vocab_size": config.segments,
        "layer_norm_eps": norm.epsilon,
        "tie_word_embeddings": not isinstance(config.head, Unembed) or config.head.tied,
    }


def rows(config: ModelConfig) -> Iterator[Row]:
    yield from encoder_rows(config, "bert")
    match config.head:
        case Unembed(tied=tied):
            yield from linear("cls.predictions.transform.dense", "head.dense", bias=True)
            yield from layer_norm("cls.predictions.transform.LayerNorm", "head.norm")
            yield from output_rows("cls.predictions", tied=tied)
        case Tag():
            yield from linear("classifier", "head.to_labels", bias=True)
        case Classify():
            yield from linear("bert.pooler.dense", "head.dense", bias=True)
            yield from linear("classifier", "head.to_labels", bias=True)
        case Pool(project=True):
            yield from linear("bert.pooler.dense", "head.dense", bias=True)
        case _:
            pass


def encoder_rows(config: ModelConfig, model: str) -> Iterator[Row]:
    yield same(f"{model}.embeddings.word_embeddings.weight", "tokens.weight")
    yield same(f"{model}.embeddings.position_embeddings.weight", "encoder.positions.table.weight")
    yield same(f"{model}.embeddings.token_type_embeddings.weight", "embedding.segment_table.weight")
    yield from layer_norm(f"{model}.embeddings.LayerNorm", "embedding.normalize")
    for block in range(config.encoder_blocks):
        theirs, ours = f"{model}.encoder.layer.{block}", f"encoder.{block}"
        for name in ("query", "key", "value"):
            yield from linear(f"{theirs}.attention.self.{name}", f"{ours}.attention.to_{name}", bias=True)
        yield from linear(f"{theirs}.attention.output.dense", f"{ours}.attention.to_output", bias=True)
        yield from layer_norm(f"{theirs}.attention.output.LayerNorm", f"{ours}.after_attention")
        yield from linear(f"{theirs}.intermediate.dense", f"{ours}.feed_forward.up", bias=True)
        yield from linear(f"{theirs}.output.dense", f"{ours}.feed_forward.down", bias=True)
        yield from layer_norm(f"{theirs}.output.LayerNorm", f"{ours}.after_feed_forward")


def output_rows(head: str, *, tied: bool) -> Iterator[Row]:
    """Two names for one bias where it is tied; the decoder's is the one that is read where it is not."""
    if tied:
        yield same(f"{head}.bias", "head.bias")
    else:
        yield from linear(f"{head}.decoder", "head", bias=True)


def output_aliases(config: ModelConfig, head: str, table: str) -> dict[str, str]:
    if isinstance(config.head, Unembed) and config.head.tied:
        return {f"{head}.decoder.weight": table, f"{head}.decoder.bias": f"{head}.bias"}
    return {}


# Oddities: files of the first years call a norm's weight and bias gamma and beta, and carry the counter `position_ids`;
# a masked language model's file may bring the pooler and the next-sentence head of pre-training, and a tagger's or a
# sentence encoder's the pooler, all unused. The transform before the unembedding uses the blocks' activation. Positions
# count from 0 whether or not padding comes first, where ours count real tokens. A class without a pooler is not told
# apart from one with it by the config: the file is asked.
BERT = Family(
    name="bert",
    read=read,
    write=write,
    classes={
        "unembed": "BertForMaskedLM",
        "tag": "BertForTokenClassification",
        "classify": "BertForSequenceClassification",
        "pool": "BertModel",
    },
    rows=rows,
    prefix="bert.",
    ignored=(r"(bert\.)?embeddings\.(position_ids|token_type_ids)",),
    spare=(r"bert\.pooler\.dense\.(weight|bias)", r"cls\..+"),
    renamed={r"LayerNorm\.gamma$": "LayerNorm.weight", r"LayerNorm\.beta$": "LayerNorm.bias"},
    aliases=lambda config: output_aliases(config, "cls.predictions", "bert.embeddings.word_embeddings.weight"),
)
