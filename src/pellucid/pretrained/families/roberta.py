"""RoBERTa, XLM-RoBERTa and CamemBERT: BERT's blocks with positions that start after the padding's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pellucid.model.config import Classify, Learned, ModelConfig, Pool, Tag, Unembed
from pellucid.pretrained.families.bert import (
    encoder_rows,
    head_kind,
    output_aliases,
    output_rows,
    read_encoder,
    read_head,
)
from pellucid.pretrained.families.bert import write as write_bert
from pellucid.pretrained.family import ACTIVATIONS, ConfigReader, Family
from pellucid.pretrained.table import Row, layer_norm, linear


def read(config: ConfigReader, architecture: str) -> ModelConfig:
    hints = {
        "lm_head.dense.weight": "unembed",
        "classifier.out_proj.weight": "classify",
        "classifier.weight": "tag",
    }
    kind = head_kind(config, architecture, hints)
    project = config.holds("roberta.pooler.dense.weight", without_file=True)
    head = read_head(config, kind, "gelu", Pool(pooling="first", project=project))
    activation = config.choose("hidden_act", ACTIVATIONS, "gelu")
    return read_encoder(config, activation, head, skip=config.take("pad_token_id", int, 1) + 1)


def write(config: ModelConfig) -> dict[str, Any]:
    assert isinstance(config.position, Learned)
    assert config.position.skip > 0
    return write_bert(config) | {"model_type": "roberta", "pad_token_id": config.position.skip - 1}


def rows(config: ModelConfig) -> Iterator[Row]:
    yield from encoder_rows(config, "roberta")
    match config.head:
        case Unembed(tied=tied):
            yield from linear("lm_head.dense", "head.dense", bias=True)
            yield from layer_norm("lm_head.layer_norm", "head.norm")
            yield from output_rows("lm_head", tied=tied)
        case Tag():
            yield from linear("classifier", "head.to_labels", bias=True)
        case Classify():
            yield from linear("classifier.dense", "head.dense", bias=True)
            yield from linear("classifier.out_proj", "head.to_labels", bias=True)
        case Pool(project=True):
            yield from linear("roberta.pooler.dense", "head.dense", bias=True)
        case _:
            pass


def _family(name: str, title: str) -> Family:
    return Family(
        name=name,
        read=read,
        write=lambda config: write(config) | {"model_type": name},
        classes={
            "unembed": f"{title}ForMaskedLM",
            "tag": f"{title}ForTokenClassification",
            "classify": f"{title}ForSequenceClassification",
            "pool": f"{title}Model",
        },
        rows=rows,
        prefix="roberta.",
        ignored=(r"(roberta\.)?embeddings\.(position_ids|token_type_ids)",),
        spare=(r"roberta\.pooler\.dense\.(weight|bias)", r"lm_head\..+"),
        aliases=lambda config: output_aliases(config, "lm_head", "roberta.embeddings.word_embeddings.weight"),
    )


# Oddities: the table of positions starts with rows that no token reads (fairseq numbered positions from the padding's
# id + 1), so a table of 514 rows is a context of 512; a position counts the ids that are not padding's, in ids rather
# than in the mask. The transform before the unembedding is an exact GELU whatever the blocks use. There is one segment.
# The classifier has its own dense layer and no pooler; older files bring an unused one.
ROBERTA = _family("roberta", "Roberta")
XLM_ROBERTA = _family("xlm-roberta", "XLMRoberta")
CAMEMBERT = _family("camembert", "Camembert")
