"""Half precision: finite, in its own dtype, and as far from float64 as its mantissa allows."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch
from torch import Tensor

from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from tests.model.small import MECHANISMS

from .small import ids, network

# Bits of the significand, the implied one included: one rounding errs by at most 2^-bits of the number.
BITS = {torch.bfloat16: 8, torch.float16: 11}
# A score is the result of about forty rounded steps (two blocks). Were all their errors equal and of one sign, they
# would add up to 40 x 2^-bits; we allow that for the root mean square, which random signs keep far under it.
STEPS = 40

POSITIONS: dict[str, list[c.Position]] = {
    "softmax": [c.NoPositions(), c.Rotary(), c.ALiBi(), c.T5Buckets(buckets=8, max_distance=8), c.Relative()],
    "normalized_relu": [c.NoPositions(), c.Rotary(), c.ALiBi(), c.T5Buckets(buckets=8, max_distance=8), c.Relative()],
    "linformer_learned": [c.NoPositions(), c.Sinusoidal()],
    "linformer_random": [c.NoPositions(), c.Learned()],
    "linear_elu": [c.NoPositions(), c.Rotary()],
    "linear_relu": [c.NoPositions(), c.Rotary()],
    "linear_random": [c.NoPositions(), c.Rotary()],
}
CASES = [pytest.param(name, at, id=f"{name}-{at.kind}") for name, positions in POSITIONS.items() for at in positions]


def build(name: str, position: c.Position) -> Transformer:
    stacks = "encoder" if name.startswith("linformer") else "decoder"
    model = network(stacks, attention=MECHANISMS[name], position=position)
    if name == "normalized_relu":
        # It jumps where the last positive score of a row passes zero: a score of 7e-4, rounded to 0 by float16, took a
        # weight from 1 to 0. No precision is enough there, so here every token clearly looks at itself.
        for block in model.decoder.blocks:
            block.attention.to_query.bias.data.fill_(2.0)
            block.attention.to_key.bias.data.fill_(2.0)
    return model


def distance(got: Tensor, wanted: Tensor) -> float:
    """The root mean square of the error, relative to that of the wanted numbers."""
    return ((got.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("dtype", BITS, ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("name", "position"), CASES)
def test_half_precision_is_finite_and_close(name: str, position: c.Position, dtype: torch.dtype):
    half = build(name, position).to(dtype)
    # The twin has the same rounded weights, so that only the arithmetic differs.
    exact = deepcopy(half).double()
    text, keep = ids(2, 10), torch.arange(10) >= torch.tensor([[3], [0]])
    scores, wanted = half(text, padding=keep), exact(text, padding=keep)
    scores.float().square().mean().backward()
    assert scores.dtype == dtype
    assert all(p.grad.dtype == dtype and p.grad.isfinite().all() for p in half.parameters() if p.grad is not None)
    assert distance(scores, wanted) < STEPS * 2.0 ** -BITS[dtype]


@pytest.mark.parametrize(("name", "position"), CASES)
def test_autocast_to_bfloat16_is_finite_and_close(name: str, position: c.Position):
    model = build(name, position)
    single = deepcopy(model).float()
    text = ids(2, 10)
    with torch.autocast("cpu", torch.bfloat16):
        scores = single(text)
    scores.float().square().mean().backward()
    assert scores.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in single.parameters())
    assert distance(scores, model(text)) < STEPS * 2.0 ** -BITS[torch.bfloat16]


@pytest.mark.parametrize("dtype", BITS, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", ["softmax", "normalized_relu", "linear_elu", "linear_random"])
@torch.no_grad()
def test_a_cache_in_half_precision_is_close(name: str, dtype: torch.dtype):
    half = build(name, c.Rotary()).to(dtype)
    text = ids(2, 10)
    cache = half.new_cache(2, 10)
    scores = torch.cat([half(piece, cache=cache) for piece in text.split([4, 1, 5], 1)], 1)
    assert scores.dtype == dtype
    assert distance(scores, deepcopy(half).double()(text)) < STEPS * 2.0 ** -BITS[dtype]


@pytest.mark.parametrize("stacks", ["encoder", "decoder"])
@pytest.mark.parametrize("name", ["linear_elu", "linear_relu", "linear_random"])
@torch.no_grad()
def test_sums_over_2048_keys_do_not_overflow_float16(name: str, stacks: str):
    model = network(stacks, attention=MECHANISMS[name], position=c.NoPositions())
    for block in (model.encoder or model.decoder).blocks:
        # Values about 200: a sum of 2048 of them passes 65504, the largest float16.
        block.attention.to_value.bias.fill_(200.0)
        block.attention.to_output.weight.mul_(0.01)
    half = model.half()
    text = ids(1, 2048)
    scores = half(text)
    assert torch.finfo(torch.float16).max < 200 * 2048
    assert scores.isfinite().all()
    assert distance(scores, deepcopy(half).double()(text)) < STEPS * 2.0 ** -BITS[torch.float16]
