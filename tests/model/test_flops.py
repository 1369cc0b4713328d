"""The count of operations: by hand where everything is small, and against what PyTorch counts as it runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pellucid.errors import ConfigError
from pellucid.model import config as c
from pellucid.model.flops import decode_flops, flops_per_token
from pellucid.model.transformer import Transformer


def config(**changes: Any) -> c.ModelConfig:
    own: dict[str, Any] = {
        "vocab": 11,
        "width": 8,
        "heads": 4,
        "decoder_blocks": 2,
        "feed_forward": c.Plain(hidden=12),
        "position": c.Rotary(),
        "norm": c.RMSNorm(),
    }
    return c.ModelConfig(**(own | changes))


def test_one_block_by_hand() -> None:
    own = c.ModelConfig(vocab=5, width=4, heads=2, key_value_heads=1, decoder_blocks=1, feed_forward=c.Plain(hidden=3))
    # To query 4 x 4, key 4 x 2, value 4 x 2, output 4 x 4; up 4 x 3 and down 3 x 4: 72 products a token.
    # A query of 2 x 2 numbers against a key, and as many times a value: 8 products a pair. The head: 4 x 5.
    assert decode_flops(own, 1, past=6) == 2 * (72 + 8 * 7 + 20)
    assert decode_flops(own, 3) == 2 * (3 * 72 + 8 * (1 + 2 + 3) + 20)
    narrow = own.model_copy(update={"window": 2})
    assert decode_flops(narrow, 1, past=6) == 2 * (72 + 8 * 2 + 20)
    assert decode_flops(narrow, 3) == 2 * (3 * 72 + 8 * (1 + 2 + 2) + 20)


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"key_value_heads": 2},
    "gated": {"feed_forward": c.Gated(hidden=12)},
    "wide values": {"head_width": 6, "value_width": 4},
    "transform": {"head": c.Unembed(transform="gelu")},
    "relu": {"attention": c.NormalizedRelu()},
    "pair": {"encoder_blocks": 3, "position": c.Sinusoidal()},
    "linear": {"attention": c.Linear()},
    "random": {"attention": c.Linear(features=c.PositiveRandom(count=6)), "key_value_heads": 2},
    "linear pair": {"attention": c.Linear(), "encoder_blocks": 1, "position": c.Sinusoidal()},
}


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_a_step_is_what_pytorch_counts(name: str) -> None:
    own = config(**CASES[name])
    linear = isinstance(own.attention, c.Linear)
    network = Transformer(own, kernel="fused" if linear else "reference", seed=0).eval()
    ids, source = torch.randint(11, (1, 6)), torch.randint(11, (1, 5))
    memory = network.encode(source) if own.is_encoder_decoder else None
    cache = network.new_cache(1, 7)  # as many slots as are filled: a step looks at all of them
    network.decode(ids, memory, cache=cache)
    cache.start_steps(ids.device)
    with FlopCounterMode(display=False) as counter:
        network.step(ids[:, :1], cache)
    assert decode_flops(own, 1, 6, 5 if memory is not None else 0, source_kept=True) == counter.get_total_flops()


@pytest.mark.parametrize("name", ["plain", "grouped", "gated", "wide values", "pair"])
@torch.no_grad()
def test_a_whole_text_is_what_pytorch_counts_less_what_the_mask_hides(name: str) -> None:
    own = config(**CASES[name])
    network = Transformer(own, kernel="reference", seed=0).eval()
    ids, source = torch.randint(11, (1, 6)), torch.randint(11, (1, 5))
    with FlopCounterMode(display=False) as counter:
        memory = network.encode(source) if own.is_encoder_decoder else None
        network.decode(ids, memory, last=True)
    hidden = own.decoder_blocks * 2 * own.heads * (own.key_width + own.values_width) * (6 * 5 // 2)
    assert decode_flops(own, 6, 0, 5 if memory is not None else 0) == counter.get_total_flops() - hidden


def test_a_windowed_encoder_sees_its_window_on_both_sides() -> None:
    wide, narrow = (config(encoder_blocks=1, position=c.Sinusoidal(), window=window) for window in (None, 2))
    less = decode_flops(wide, 1, 0, 5) - decode_flops(narrow, 1, 0, 5)
    assert less == 2 * 4 * (2 + 2) * (25 - (2 + 3 + 3 + 3 + 2))


def test_what_never_takes_a_step_is_refused() -> None:
    with pytest.raises(ConfigError, match="only causal decoders"):
        decode_flops(config(causal=False), 1)


@pytest.mark.parametrize(
    "changes",
    [{}, {"key_value_heads": 2}, {"feed_forward": c.Gated(hidden=12)}, {"head": c.Unembed(tied=False)}],
    ids=["plain", "grouped", "gated", "untied"],
)
def test_learning_from_a_token_is_what_pytorch_counts(changes: dict[str, Any]) -> None:
    own = config(**changes)
    network = Transformer(own, kernel="reference", seed=0)
    with FlopCounterMode(display=False) as counter:
        network(torch.randint(11, (3, 6))).sum().backward()
    assert 3 * 6 * flops_per_token(own, 6) == counter.get_total_flops()
