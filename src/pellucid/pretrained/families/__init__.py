"""The families, by the `model_type` of their config."""

from __future__ import annotations

from pellucid.pretrained.families.gpt2 import GPT2
from pellucid.pretrained.family import Family

FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
}
