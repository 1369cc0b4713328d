"""BLOOM's config in the words of every release, and what it cannot be."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import CheckpointError
from pellucid.model.config import ALiBi, Classify, ModelConfig, Rotary, Tag
from pellucid.model.presets import bloom
from pellucid.pretrained.families.bloom import BLOOM, head_by_head
from pellucid.pretrained.family import ConfigReader
from tests.parity import table_bloom
from tests.parity.case import Case

NEW = {"model_type": "bloom", "vocab_size": 24, "hidden_size": 24, "n_head": 6, "n_layer": 2}
# bigscience/bloom-560m as it was released, with its sizes made tiny.
RELEASED = {
    "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0,
    "attention_softmax_in_fp32": True,
    "bias_dropout_fusion": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "unk_token_id": 0,
    "hidden_dropout": 0.0,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "masked_softmax_fusion": True,
    "model_type": "bloom",
    "n_embed": 24,
    "n_inner": None,
    "n_layer": 2,
    "num_attention_heads": 6,
    "offset_alibi": 100,
    "pretraining_tp": 1,
    "seq_length": 2048,
    "skip_bias_add": True,
    "skip_bias_add_qkv": False,
    "transformers_version": "4.20.0",
    "use_cache": True,
    "vocab_size": 24,
}


def read(config: dict[str, Any]) -> ModelConfig:
    reader = ConfigReader(config)
    found = BLOOM.read(reader, "BloomForCausalLM")
    reader.finish()
    return found


@pytest.mark.parametrize(
    "config",
    [
        NEW,
        RELEASED,
        RELEASED | {"pretraining_tp": 4, "slow_but_exact": False},
        NEW | {"slow_but_exact": True},
        NEW | {"n_embed": 24, "num_attention_heads": 6, "num_hidden_layers": 2, "n_inner": 96},
    ],
)
def test_all_releases_say_the_same(config: dict[str, Any]) -> None:
    assert read(config) == bloom(2, 24, 6, vocab=24)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"apply_residual_connection_post_layernorm": True}, "apply_residual_connection_post_layernorm"),
        ({"n_embed": 48}, "hidden_size = 24 and n_embed = 48"),
        ({"num_attention_heads": 4}, "n_head = 6 and num_attention_heads = 4"),
        ({"n_inner": 50}, "n_inner = 50"),
        ({"slow_but_exact": True, "pretraining_tp": 4}, "slow_but_exact"),
        ({"rotary": True}, "rotary"),
        ({"hidden_size": None}, "hidden_size"),
    ],
)
def test_what_is_not_bloom_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read(NEW | change)


@pytest.mark.parametrize("head", [None, Tag(labels=3), Classify(labels=3, pooling="last", hidden=None, bias=False)])
def test_our_config_is_written_and_read_back(head: Any) -> None:
    config = bloom(2, 24, 6, vocab=24)
    config = config if head is None else config.model_copy(update={"head": head})
    assert BLOOM.express(config, getattr(head, "labels", 0)) is not None
    assert config.position == ALiBi()


@pytest.mark.parametrize(
    "change", [{"position": Rotary()}, {"embedding_norm": False}, {"placement": "post"}, {"window": 8}]
)
def test_what_bloom_has_no_words_for_is_not_written(change: dict[str, Any]) -> None:
    assert BLOOM.express(bloom(2, 24, 6, vocab=24).model_copy(update=change)) is None


def test_the_fused_map_holds_three_heads_in_turn() -> None:
    row = head_by_head("fused", "query", "key", "value", heads=2)
    fused = torch.tensor([0, 0, 10, 10, 20, 20, 1, 1, 11, 11, 21, 21])
    query, key, value = row.split(fused)
    assert (query.tolist(), key.tolist(), value.tolist()) == ([0, 0, 1, 1], [10, 10, 11, 11], [20, 20, 21, 21])
    assert torch.equal(row.join((query, key, value)), fused)


@pytest.mark.parametrize("case", table_bloom.CASES[:3], ids=lambda case: case.name)
def test_the_reference_as_it_is_rounds_to_float32_in_float64(case: Case, tmp_path: Path) -> None:
    """What the parity table leaves out in float64: it must be rounding, and not a difference of formulas."""
    network = case.build(torch.float64)
    model = pellucid.load(case.save(network, tmp_path))
    inputs = case.inputs(model.config.vocab, None)
    wanted = replace(case, unrounded=nullcontext).reference(network, inputs)
    error = (model.logits(inputs["ids"]) - wanted).abs().max() / wanted.abs().max()
    assert 1e-9 < error < 1e-6
