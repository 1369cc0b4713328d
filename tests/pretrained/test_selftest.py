"""The self-test holds on every tiny preset and catches what it is there to catch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pellucid.model.config import Linear, ModelConfig, PositiveRandom
from pellucid.model.presets import PRESETS, preset
from pellucid.model.stack import Stack
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.selftest import SelfTest, selftest

TINY = [name for name in PRESETS if name.startswith("tiny-")]


def built(config: ModelConfig) -> Model:
    return Model(config, Transformer(config, seed=0).double().eval())


def failing(result: SelfTest) -> list[str]:
    return [check.name for check in result.checks if not check.holds]


@pytest.mark.parametrize("name", TINY)
def test_it_holds_on_every_tiny_preset(name: str) -> None:
    result = selftest(built(preset(name)))
    assert result.holds, failing(result)
    assert [check.name for check in result.checks if check.error is not None]
    assert all(check.note for check in result.checks if check.error is None)


def test_it_holds_for_linear_attention_with_random_features() -> None:
    config = preset("tiny-llama").model_copy(update={"attention": Linear(features=PositiveRandom(count=16))})
    assert selftest(built(config)).holds


def test_a_leaking_future_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change_stack(monkeypatch, lambda x: x + 1e-6 * x.mean(1, keepdim=True))
    assert "the future does not leak" in failing(selftest(built(preset("tiny-gpt2"))))


def test_a_batch_that_mixes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    change_stack(monkeypatch, lambda x: x + 1e-6 * x.mean(0, keepdim=True))
    assert "batching changes nothing" in failing(selftest(built(preset("tiny-bert"))))


def test_positions_that_count_padding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind_to_padding(padding: Tensor | None, tokens: int, offset: int, device: torch.device) -> Tensor:
        return torch.arange(offset, offset + tokens, device=device)[None]

    monkeypatch.setattr("pellucid.model.transformer.places_of", blind_to_padding)
    assert failing(selftest(built(preset("tiny-gpt2")))) == ["padding changes nothing"]


def test_a_wrong_kernel_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    from pellucid.kernels import reference

    right = reference.softmax_weights
    monkeypatch.setattr(reference, "softmax_weights", lambda matrix, *rest: right(matrix * 1.0001, *rest))
    assert failing(selftest(built(preset("tiny-bert")))) == ["the fused kernel equals the reference kernel"]


def change_stack(monkeypatch: pytest.MonkeyPatch, change: Callable[[Tensor], Tensor]) -> None:
    right = Stack.forward
    monkeypatch.setattr(Stack, "forward", lambda self, x, *rest, **more: right(self, change(x), *rest, **more))
