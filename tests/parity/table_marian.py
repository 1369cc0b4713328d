"""Marian's rows of the parity table.

Sources are padded on the right only: transformers gives the padding on the left positions of its own, so that a text
moves when it is padded; ours does not. Marian's tokenizer pads on the right.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.case import Case

SIZE = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 40,
    "scale_embedding": True,
    "activation_function": "swish",
    "pad_token_id": 63,
    "decoder_start_token_id": 63,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
}


class MarianCase(Case):
    """Neither the fixed table of positions nor the bias of the logits is a parameter to be made random like others."""

    def build(self, dtype: torch.dtype) -> Any:
        network = super().build(torch.float32)
        with torch.no_grad():
            for stack in (network.model.encoder, network.model.decoder):
                stack.embed_positions.weight.copy_(stack.embed_positions.create_weight())
            network.final_logits_bias.normal_(0, 0.5)
        return network.to(dtype)


def marian(name: str, **options: object) -> Case:
    model, config = "MarianMTModel", "MarianConfig"
    return MarianCase(f"marian {name}", model, config, SIZE | options, "encoder-decoder", paddings=("right",))


TWO_TABLES = {"share_encoder_decoder_embeddings": False, "vocab_size": 70, "decoder_vocab_size": 64}

CASES = [
    marian("plain"),
    marian("relu", activation_function="relu"),
    marian("gelu", activation_function="gelu"),
    marian("unscaled embedding", scale_embedding=False),
    marian("deep encoder", encoder_layers=3, decoder_layers=1),
    marian("two tables", **TWO_TABLES),
    marian("two tables, free unembedding", **TWO_TABLES, tie_word_embeddings=False),
    marian("odd head width", d_model=36),
]
