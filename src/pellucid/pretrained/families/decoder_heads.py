"""The heads that the families of decoders store alike."""

from __future__ import annotations

from collections.abc import Iterator

from pellucid.model.config import Classify, ModelConfig, Tag, Unembed
from pellucid.pretrained.table import Row, linear, same


def head_rows(config: ModelConfig, *, tagger: str) -> Iterator[Row]:
    """The unembedding, unless it is the token table; the tagger, under the family's name for it; the classifier."""
    match config.head:
        case Unembed(tied=False):
            yield same("lm_head.weight", "head.weight")
        case Tag():
            yield from linear(tagger, "head.to_labels", bias=True)
        case Classify():
            yield from linear("score", "head.to_labels", bias=False)
        case _:
            pass


def tied_head(config: ModelConfig, table: str) -> dict[str, str]:
    """A tied unembedding may stand in a file a second time."""
    tied = isinstance(config.head, Unembed) and config.head.tied
    return {"lm_head.weight": table} if tied else {}
