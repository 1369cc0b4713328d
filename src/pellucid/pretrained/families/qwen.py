"""Qwen2 and Qwen3: as Llama, with windows for some blocks; Qwen2 with biases, Qwen3 with norms of query and key."""

from __future__ import annotations

from typing import Any

from pellucid.errors import CheckpointError
from pellucid.model.config import ModelConfig
from pellucid.pretrained.families.llama import FULL, SLIDING, llama_like, same_biases, unless_absent
from pellucid.pretrained.family import ConfigReader


def _read_qwen2(config: ConfigReader) -> dict[str, Any]:
    config.expect("use_mrope", None, False)
    config.expect("mlp_bias", None, False)
    config.ignore("attention_bias")  # says nothing in this family: query, key and value have one, the output has none
    return {
        "biases": same_biases(True, output=False),
        "window": _layered_window(config),
        "key_value_heads": unless_absent(config, "num_key_value_heads", 32),
    }


def _read_qwen3(config: ConfigReader) -> dict[str, Any]:
    config.expect("use_mrope", None, False)
    config.expect("mlp_bias", None, False)
    config.expect("use_qk_norm", None, True)
    attention = config.take("attention_bias", bool, False)
    return {
        "biases": same_biases(attention, output=attention),
        "window": _layered_window(config),
        "key_value_heads": unless_absent(config, "num_key_value_heads", 32),
        "head_width": unless_absent(config, "head_dim", 128),
        "query_key_norm": True,
    }


def _layered_window(config: ConfigReader) -> int | tuple[int | None, ...] | None:
    """One window for the blocks that `layer_types` names, or for those from max_window_layers on."""
    blocks = range(config.take("num_hidden_layers", int))
    used = config.take("use_sliding_window", bool, False)
    window, first = unless_absent(config, "sliding_window", 4096), config.take("max_window_layers", int, 28)
    kinds = config.optional("layer_types", list)
    window = window if used else None
    if kinds is None:
        kinds = [SLIDING if window is not None and block >= first else FULL for block in blocks]
    known = (FULL,) if window is None else (FULL, SLIDING)
    if len(kinds) != len(blocks) or any(kind not in known for kind in kinds):
        raise CheckpointError(
            f"config.json says layer_types = {kinds} with use_sliding_window = {used} and sliding_window = {window}, "
            f"but can be built with {len(blocks)} entries of {' or '.join(known)}"
        )
    windows = tuple(window if kind == SLIDING else None for kind in kinds)
    return windows if len(set(windows)) > 1 else next(iter(windows), None)


def _write_qwen2(config: ModelConfig) -> dict[str, Any]:
    windows = [config.window_of(block) for block in range(config.decoder_blocks)]
    sizes = set(windows) - {None}
    assert len(sizes) <= 1
    return {
        "use_sliding_window": bool(sizes),
        "sliding_window": next(iter(sizes), None),
        "max_window_layers": next((block for block, window in enumerate(windows) if window), len(windows)),
        "layer_types": [FULL if window is None else SLIDING for window in windows],
    }


def _write_qwen3(config: ModelConfig) -> dict[str, Any]:
    return _write_qwen2(config) | {"attention_bias": config.biases.output}


# Oddities: `attention_bias` says nothing in Qwen2, and all four maps in Qwen3. The window, where `use_sliding_window`
# switches it on, is for the *last* blocks, those from `max_window_layers` on; `layer_types` of newer files says it for
# each block, and wins. Files keep a `sliding_window` that is switched off. Qwen3 without `head_dim` has heads of 128,
# and both without `num_key_value_heads` have 32 groups.
QWEN2 = llama_like("qwen2", "Qwen2", _read_qwen2, _write_qwen2)
QWEN3 = llama_like("qwen3", "Qwen3", _read_qwen3, _write_qwen3)
