"""T5's and mT5's rows of the parity table.

transformers computes the mean square of T5's norm in float32 whatever the dtype of the model. In float32 that is its
own rounding, and the rows compare with transformers as it is. In float64 it would hide everything finer than 1e-7, so
there the reference computes the same formula in float64, and nothing else is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.parity.case import Case

SIZE = {
    "vocab_size": 64,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_heads": 4,
    "num_layers": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 9,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}


class FreeUnembeddingCase(Case):
    """transformers 5 ties the tables when it builds a model; a file with an lm_head of its own undoes that."""

    def build(self, dtype: torch.dtype) -> Any:
        network = super().build(dtype)
        network.lm_head.weight = nn.Parameter(torch.randn_like(network.shared.weight) * 0.15)
        return network


@contextmanager
def unrounded() -> Iterator[None]:
    from transformers.models.mt5.modeling_mt5 import MT5LayerNorm
    from transformers.models.t5.modeling_t5 import T5LayerNorm

    with patch.object(T5LayerNorm, "forward", exact_norm), patch.object(MT5LayerNorm, "forward", exact_norm):
        yield


def exact_norm(self: Any, x: Tensor) -> Tensor:
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


def t5(name: str, case: type[Case] = Case, **options: object) -> Case:
    model, config = "T5ForConditionalGeneration", "T5Config"
    return case(f"t5 {name}", model, config, SIZE | options, "encoder-decoder", unrounded=unrounded)


def mt5(name: str, case: type[Case] = Case, **options: object) -> Case:
    model, config = "MT5ForConditionalGeneration", "MT5Config"
    return case(f"mt5 {name}", model, config, SIZE | options, "encoder-decoder", unrounded=unrounded)


CASES = [
    t5("1.0"),
    t5("1.1", FreeUnembeddingCase, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    t5("1.1, tied", feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    t5("scaled logits, free unembedding", FreeUnembeddingCase),
    t5("gated silu", feed_forward_proj="gated-silu"),
    t5("gated exact gelu", feed_forward_proj="gated-gelu", dense_act_fn="gelu"),
    t5("plain exact gelu", feed_forward_proj="gelu"),
    t5("plain gelu_new", feed_forward_proj="gelu_new"),
    t5("wide heads", d_kv=12),
    t5("deep encoder", num_layers=3, num_decoder_layers=1),
    t5("deep decoder", num_layers=1, num_decoder_layers=3),
    t5("many buckets", relative_attention_num_buckets=32, relative_attention_max_distance=128),
    t5("large epsilon", layer_norm_epsilon=1e-2),
    mt5("plain", FreeUnembeddingCase),
    mt5("tied"),
    mt5("relu", FreeUnembeddingCase, feed_forward_proj="relu", d_kv=4),
]
