"""BLOOM's rows of the parity table.

transformers rounds BLOOM in three places whatever the dtype of the model: ALiBi's slopes and biases and the softmax go
through float32, and sqrt(2/pi) in GELU is 0.79788456. In float32 that is its own rounding, and the rows compare with
transformers as it is. In float64 it would hide everything finer than 1e-7, so there the reference computes the same
formulas without these roundings: `unrounded` puts exact ones in their place, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from tests.parity.case import Case

SIZE = {"vocab_size": 64, "hidden_size": 48, "n_head": 4, "n_layer": 2, "bos_token_id": 0, "eos_token_id": 0}


@contextmanager
def unrounded() -> Iterator[None]:
    from transformers.models.bloom import modeling_bloom

    softmax = functional.softmax
    with (
        patch.object(modeling_bloom, "build_alibi_tensor", exact_alibi),
        patch.object(modeling_bloom.F, "softmax", lambda x, dim, dtype: softmax(x, dim)),
        patch.object(modeling_bloom, "bloom_gelu_forward", lambda x: functional.gelu(x, approximate="tanh")),
    ):
        yield


def exact_alibi(real: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
    """As theirs, [batch x heads, 1, key]: slope x the key's position among the real ones, in float64."""
    power = 1 << (heads.bit_length() - 1)
    slopes = [2 ** (-8 / power * step) for step in range(1, power + 1)]
    slopes += [2 ** (-4 / power * step) for step in range(1, 2 * (heads - power), 2)]
    place = ((real.cumsum(-1) - 1) * real).double()
    bias = torch.tensor(slopes, dtype=torch.float64)[:, None] * place[:, None]
    return bias.flatten(0, 1)[:, None].to(dtype)


def bloom(name: str, model: str = "BloomForCausalLM", kind: str = "decoder", **options: object) -> Case:
    return Case(f"bloom {name}", model, "BloomConfig", SIZE | options, kind, unrounded=unrounded)


def in_old_words(config: dict[str, Any]) -> None:
    """The config of the releases of 2022."""
    config["n_embed"] = config.pop("hidden_size")
    config["num_attention_heads"] = config.pop("n_head")
    config |= {"offset_alibi": 100, "seq_length": 2048, "skip_bias_add": True, "skip_bias_add_qkv": False}
    config |= {"attention_softmax_in_fp32": True, "masked_softmax_fusion": True, "bias_dropout_fusion": True}
    config |= {"n_inner": None, "unk_token_id": 0, "pretraining_tp": 4}


CASES = [
    bloom("4 heads"),
    bloom("6 heads", n_head=6),
    bloom("12 heads", n_head=12),
    bloom("one head, one block", n_head=1, n_layer=1),
    bloom("bare model", "BloomModel", "bare", n_head=6),
    replace(bloom("old config", n_head=6), edit_config=in_old_words),
    bloom("large epsilon", layer_norm_epsilon=1e-2),
    bloom("free unembedding", tie_word_embeddings=False),
    bloom("tagger", "BloomForTokenClassification", "tag", num_labels=5, n_head=6),
    bloom("classifier", "BloomForSequenceClassification", "classify", num_labels=3, pad_token_id=1, n_head=6),
]
