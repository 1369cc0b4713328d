"""The families, by the `model_type` of their config."""

from __future__ import annotations

from pellucid.pretrained.families.bert import BERT
from pellucid.pretrained.families.bloom import BLOOM
from pellucid.pretrained.families.distilbert import DISTILBERT
from pellucid.pretrained.families.gpt2 import GPT2
from pellucid.pretrained.families.llama import LLAMA, MISTRAL
from pellucid.pretrained.families.marian import MARIAN
from pellucid.pretrained.families.qwen import QWEN2, QWEN3
from pellucid.pretrained.families.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA
from pellucid.pretrained.families.t5 import MT5, T5
from pellucid.pretrained.family import Family

FAMILIES: dict[str, Family] = {
    "bert": BERT,
    "distilbert": DISTILBERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "bloom": BLOOM,
    "gpt2": GPT2,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "marian": MARIAN,
    "t5": T5,
    "mt5": MT5,
}
