"""Gradients against finite differences, in float64. Elsewhere they are compared with those of the naive twin."""

import pytest
import torch
from torch.autograd import gradcheck

from pellucid.kernels import fused, linear, reference, relu
from pellucid.kernels.linear import Phi, State
from pellucid.kernels.linformer import project
from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from pellucid.model.positions import Rotation
from tests.kernels.cases import CPU, draw

TEXTS, HEADS, GROUPS, TOKENS, WIDTH, VALUES = 2, 2, 1, 4, 3, 2
MASK = Mask.causal() & Mask(padding=torch.tensor([[False, True, True, True], [True, True, True, True]]))

KERNELS = {
    "softmax": reference.softmax,
    "normalized_relu": reference.normalized_relu,
    "sdpa": fused.sdpa,
    "tiled relu": lambda *operands, **rest: relu.normalized_relu(*operands, **rest, tile=3),
}


def leaf(*shape, seed):
    return draw(*shape, seed=seed).requires_grad_()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("mask", [Mask(), MASK], ids=["everything", "causal and padding"])
def test_scored_kernels(kernel, mask):
    query, key = leaf(TEXTS, HEADS, TOKENS, WIDTH, seed=1), leaf(TEXTS, GROUPS, TOKENS, WIDTH, seed=2)
    value, bias = leaf(TEXTS, GROUPS, TOKENS, VALUES, seed=3), leaf(HEADS, 2 * TOKENS - 1, seed=4)
    view = View(TOKENS, TOKENS, CPU, bias=bias)
    # The relu has a kink at zero: all scores must be far from it, measured in steps of 1e-6.
    assert reference.scores(query, key, scale=0.5, view=view).abs().min() > 1e-3

    def attend(query, key, value, bias):
        return KERNELS[kernel](query, key, value, scale=0.5, view=View(TOKENS, TOKENS, CPU, mask, bias))

    assert gradcheck(attend, (query, key, value, bias))


def test_sdpa_of_a_square_causal_view():
    """This one leaves the mask to PyTorch."""
    view = View(TOKENS, TOKENS, CPU, Mask.causal())
    operands = [leaf(TEXTS, HEADS, TOKENS, width, seed=width) for width in (WIDTH, WIDTH, VALUES)]
    assert gradcheck(lambda q, k, v: fused.sdpa(q, k, v, scale=0.5, view=view), operands)


def features(seed):
    return (draw(1, HEADS, TOKENS, 4, seed=seed).abs() + 0.1).requires_grad_()


def rotation():
    angle = torch.arange(TOKENS)[:, None] * torch.tensor([1.0, 0.2], dtype=torch.float64)
    return Rotation(angle.cos()[None, None], angle.sin()[None, None], interleaved=True)


def test_linear_read():
    def attend(query, key, value):
        q, k = (Phi(x, rotation().turn(x)) for x in (query, key))
        return linear.read(q, linear.summarize(k, value), value.dtype)

    assert gradcheck(attend, (features(1), features(2), leaf(1, HEADS, TOKENS, VALUES, seed=3)))


def test_linear_causal_with_a_past():
    def attend(query, key, value, moments, normalizer):
        q, k = (Phi(x, rotation().turn(x)) for x in (query, key))
        heads, state = linear.causal(q, k, value, State(moments, normalizer), chunk=3)
        return heads, state.moments, state.normalizer

    past = leaf(1, HEADS, 4, VALUES, seed=4), (draw(1, HEADS, 4, seed=5).abs() + 0.1).requires_grad_()
    assert gradcheck(attend, (features(1), features(2), leaf(1, HEADS, TOKENS, VALUES, seed=3), *past))


@pytest.mark.parametrize("shift", [False, True])
def test_attention_by_positive_random_features(shift):
    """The features of a query may be shifted by what autograd does not see, because it cancels."""
    projection = linear.gaussian_rows(5, WIDTH, orthogonal=True, generator=torch.Generator().manual_seed(0))

    def attend(query, key, value):
        q = linear.positive_random(query, projection, 0.5, shift=shift)
        k = linear.positive_random(key, projection, 0.5)
        return linear.read(Phi(q, q), linear.summarize(Phi(k, k), value), value.dtype)

    assert gradcheck(attend, [leaf(1, HEADS, TOKENS, WIDTH, seed=seed) for seed in (1, 2, 3)])


def test_linformer():
    query, key, value = (leaf(TEXTS, HEADS, TOKENS, width, seed=width) for width in (WIDTH, WIDTH, VALUES))
    mixtures = leaf(1, 2, TOKENS, seed=5), leaf(1, 2, TOKENS, seed=6)

    def attend(query, key, value, key_mixture, value_mixture):
        mixed = project(key_mixture, key, MASK.padding), project(value_mixture, value, MASK.padding)
        return fused.sdpa(query, *mixed, scale=0.5, view=View(TOKENS, 2, CPU))

    assert gradcheck(attend, (query, key, value, *mixtures))


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotation(interleaved):
    angle = draw(1, 1, TOKENS, 2, seed=1)
    rotation = Rotation(angle.cos(), angle.sin(), interleaved)
    assert gradcheck(rotation.turn, leaf(TEXTS, HEADS, TOKENS, 5, seed=2))
