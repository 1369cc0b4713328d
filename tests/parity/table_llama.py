"""The rows of Llama, Mistral, Qwen2 and Qwen3 of the parity table.

transformers computes norms and the softmax of these families in float32, whatever the dtype of the model. In float32
that is its own rounding, and the rows compare with transformers as it is. In float64 it would hide everything finer
than 1e-7, so there `unrounded` puts the same formulas in the model's own dtype in their place, and nothing else: angles
stay in float32, as ours do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from tests.parity.case import Case

# 4 heads in 2 groups of 10 numbers each: no two sizes are equal, so that a wrong reshape cannot pass.
SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 40,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
WORDS = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}


@contextmanager
def unrounded() -> Iterator[None]:
    softmax = functional.softmax
    with ExitStack() as stack:
        stack.enter_context(patch.object(functional, "softmax", lambda x, dim, dtype: softmax(x, dim)))
        for family, word in WORDS.items():
            module = import_module(f"transformers.models.{family}.modeling_{family}")
            stack.enter_context(patch.object(getattr(module, f"{word}RMSNorm"), "forward", exact_norm))
        yield


def exact_norm(norm: Any, x: Tensor) -> Tensor:
    return norm.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)


def row(family: str, name: str, head: str = "ForCausalLM", kind: str = "decoder", **options: Any) -> Case:
    """Options of the test itself (length, caches, edit_config) and of the config."""
    word = WORDS[family]
    own = {key: options.pop(key) for key in ("length", "caches", "edit_config") if key in options}
    return Case(
        f"{family} {name}",
        f"{word}{head}",
        f"{word}Config",
        SIZE | options,
        kind,
        takes_positions=True,
        unrounded=unrounded,
        **own,
    )


def scaled(name: str, *, family: str = "llama", caches: bool = True, **parameters: Any) -> Case:
    """Rotary scaling, on a text three times as long as the original context of 8."""
    context = 8 if parameters["rope_type"] == "dynamic" else 32
    rope = {"rope_theta": 50.0} | parameters
    return row(
        family,
        name,
        length=24,
        caches=caches,
        num_hidden_layers=3,
        max_position_embeddings=context,
        rope_parameters=rope,
    )


def in_old_words(config: dict[str, Any]) -> None:
    """As transformers 4 wrote it."""
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    config["rope_scaling"] = None if rope["type"] == "default" else rope


YARN: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}
LLAMA3: dict[str, Any] = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
CLASSIFIER = {"num_labels": 3, "pad_token_id": 1}
FULL, SLIDING = "full_attention", "sliding_attention"

CASES = [
    row("llama", "plain"),
    row("llama", "head width from the width", head_dim=8),
    row("llama", "one group", num_key_value_heads=1, num_attention_heads=8, head_dim=6),
    row("llama", "no groups", num_key_value_heads=None, head_dim=None, num_hidden_layers=3),
    row("llama", "tied", tie_word_embeddings=True),
    row("llama", "biases in attention", attention_bias=True),
    row("llama", "biases in the feed-forward", mlp_bias=True),
    row("llama", "both biases, tied", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    row("llama", "gelu", hidden_act="gelu"),
    row("llama", "gelu tanh", hidden_act="gelu_pytorch_tanh"),
    row("llama", "large epsilon", rms_norm_eps=1e-2),
    row("llama", "large base", rope_parameters={"rope_type": "default", "rope_theta": 500_000.0}),
    row("llama", "old words", rope_parameters={"rope_theta": 777.0, "rope_type": "default"}, edit_config=in_old_words),
    row("llama", "bare model, tied", "Model", "bare", tie_word_embeddings=True),
    row("llama", "bare model", "Model", "last"),
    row("llama", "seen from both sides", is_causal=False, caches=False),
    row("llama", "tagger", "ForTokenClassification", "tag", num_labels=5),
    row("llama", "classifier", "ForSequenceClassification", "classify", **CLASSIFIER),
    scaled("linear scaling", rope_type="linear", factor=3.0),
    scaled("dynamic scaling beyond its context", rope_type="dynamic", factor=2.7, caches=False),
    row("llama", "dynamic scaling", rope_parameters={"rope_type": "dynamic", "factor": 2.7, "rope_theta": 50.0}),
    scaled("yarn", **YARN),
    scaled("yarn by the context", **YARN | {"factor": None}),
    scaled("yarn, its ramp", **YARN, beta_fast=3.0, beta_slow=0.5),
    scaled("yarn, parts of pairs", **YARN, beta_fast=1.2, beta_slow=0.3, truncate=False),
    scaled("yarn, attention factor", **YARN, attention_factor=1.3),
    scaled("yarn, scales of DeepSeek", **YARN, mscale=1.4, mscale_all_dim=0.7),
    scaled("llama 3 scaling", **LLAMA3),
    row(
        "llama",
        "llama 3 scaling in old words",
        length=24,
        rope_parameters=LLAMA3 | {"rope_theta": 50.0},
        edit_config=in_old_words,
    ),
    row("mistral", "plain", sliding_window=None),
    row("mistral", "window", sliding_window=3, num_hidden_layers=3),
    row("mistral", "tied", sliding_window=5, tie_word_embeddings=True),
    row("mistral", "bare model", "Model", "last", sliding_window=4),
    row("mistral", "tagger", "ForTokenClassification", "tag", sliding_window=4, num_labels=5),
    row("mistral", "classifier", "ForSequenceClassification", "classify", sliding_window=4, **CLASSIFIER),
    scaled("yarn", family="mistral", **YARN),
    row("qwen2", "plain"),
    row("qwen2", "tied", tie_word_embeddings=True, num_key_value_heads=1),
    row("qwen2", "window switched off", use_sliding_window=False, sliding_window=3, max_window_layers=0),
    row("qwen2", "window of the last blocks", use_sliding_window=True, sliding_window=3, max_window_layers=1),
    row("qwen2", "window of all blocks", use_sliding_window=True, sliding_window=4, max_window_layers=0),
    row(
        "qwen2",
        "windows by block",
        use_sliding_window=True,
        sliding_window=3,
        num_hidden_layers=3,
        layer_types=[SLIDING, FULL, SLIDING],
    ),
    row("qwen2", "bare model, tied", "Model", "bare", tie_word_embeddings=True),
    row("qwen2", "tagger", "ForTokenClassification", "tag", num_labels=5),
    row("qwen2", "classifier", "ForSequenceClassification", "classify", **CLASSIFIER),
    scaled("yarn", family="qwen2", **YARN),
    row("qwen3", "plain"),
    row("qwen3", "tied, no groups", tie_word_embeddings=True, num_key_value_heads=4, head_dim=6),
    row("qwen3", "biases in attention", attention_bias=True),
    row("qwen3", "large epsilon", rms_norm_eps=1e-2),
    row("qwen3", "window of the last blocks", use_sliding_window=True, sliding_window=3, max_window_layers=1),
    row("qwen3", "bare model", "Model", "last"),
    row("qwen3", "bare model, seen from both sides", "Model", "last", is_causal=False),
    row("qwen3", "tagger", "ForTokenClassification", "tag", num_labels=5),
    row("qwen3", "classifier", "ForSequenceClassification", "classify", **CLASSIFIER),
    scaled("yarn", family="qwen3", **YARN),
]
