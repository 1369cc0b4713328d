"""GPT-2's rows of the parity table."""

from __future__ import annotations

from tests.parity.case import Case

SIZE = {
    "vocab_size": 64,
    "n_embd": 32,
    "n_head": 4,
    "n_layer": 2,
    "n_positions": 40,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def gpt2(name: str, model: str = "GPT2LMHeadModel", kind: str = "decoder", **options: object) -> Case:
    return Case(f"gpt2 {name}", model, "GPT2Config", SIZE | options, kind, takes_positions=True)


CASES = [
    gpt2("plain"),
    gpt2("bare model", "GPT2Model", "bare"),
    gpt2("exact gelu", activation_function="gelu"),
    gpt2("relu, odd inner width", activation_function="relu", n_inner=50),
    gpt2("unscaled scores", scale_attn_weights=False),
    gpt2("free unembedding", tie_word_embeddings=False),
    gpt2("large epsilon", layer_norm_epsilon=1e-2),
    gpt2("tagger", "GPT2ForTokenClassification", "tag", num_labels=5),
    gpt2("classifier", "GPT2ForSequenceClassification", "classify", num_labels=3, pad_token_id=1),
]
