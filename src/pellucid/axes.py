"""The words for the axes of every tensor that has a name."""

from __future__ import annotations

from typing import Final

BATCH: Final = "batch"
QUERY: Final = "query"
KEY: Final = "key"
TOKEN: Final = "token"
HEADS: Final = "heads"
KEY_VALUE_HEADS: Final = "key_value_heads"
HEAD_WIDTH: Final = "head_width"
VALUE_WIDTH: Final = "value_width"
WIDTH: Final = "width"
HIDDEN: Final = "hidden"
VOCAB: Final = "vocab"
LABEL: Final = "label"
