"""The GELU of the training loop is PyTorch's, in value and gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn import functional

from pellucid.model.feed_forward import ACTIVATIONS
from pellucid.model.presets import gpt2
from pellucid.model.transformer import Transformer
from pellucid.training.activation import NUMBERS, gelu_tanh, keep_slopes
from pellucid.training.batches import Source
from pellucid.training.data import prepare
from pellucid.training.distributed import World
from pellucid.training.loop import Loop
from pellucid.training.objective import Objective
from tests.training.runs import run_of, stories

PLAIN = ACTIVATIONS["gelu_tanh"]


@pytest.mark.parametrize("count", [1, 1000, NUMBERS, NUMBERS + 7])
def test_values_and_gradients_are_those_of_the_plain_form(count: int) -> None:
    x = torch.linspace(-12, 12, count).requires_grad_()
    exact = x.detach().double().requires_grad_()
    direction = torch.linspace(-1, 2, count)
    found, wanted = gelu_tanh(x), PLAIN(exact)
    torch.testing.assert_close(found, wanted.float(), rtol=1e-6, atol=1e-6)
    slope, slope_wanted = torch.autograd.grad(found, x, direction)[0], torch.autograd.grad(wanted, exact, direction)[0]
    torch.testing.assert_close(slope, slope_wanted.float(), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("x", [-1e4, -80.0, 0.0, 80.0, 1e4])
def test_far_from_zero_it_is_flat_or_the_identity(x: float) -> None:
    place = torch.tensor([x], requires_grad=True)
    value = gelu_tanh(place)
    (slope,) = torch.autograd.grad(value, place)
    assert value.item() == max(x, 0)
    assert slope.item() == (0.5 if x == 0 else float(x > 0))


def test_a_second_pass_back_is_refused() -> None:
    x = torch.randn(9, requires_grad=True)
    value = gelu_tanh(x).sum()
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace operation"):
        value.backward()


def test_any_layout_will_do() -> None:
    x = torch.randn(6, 5, 4)
    for turned in (x.transpose(0, 2), x[::2], x[:0]):
        leaf = turned.detach().requires_grad_()
        found, wanted = gelu_tanh(leaf), PLAIN(leaf)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        slopes = (torch.autograd.grad(each.sum(), leaf)[0] for each in (found, wanted))
        torch.testing.assert_close(*slopes, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_numbers_and_evaluations_take_pytorchs(dtype: torch.dtype) -> None:
    x = torch.randn(50)
    assert torch.equal(gelu_tanh(x), functional.gelu(x, approximate="tanh"))
    with torch.no_grad():
        assert torch.equal(gelu_tanh(x.requires_grad_()), functional.gelu(x, approximate="tanh"))
    other = x.detach().to(dtype).requires_grad_()
    assert torch.equal(gelu_tanh(other), functional.gelu(other, approximate="tanh"))


def test_a_network_learns_with_it_and_its_twins_do_not() -> None:
    network = Transformer(gpt2(2, 16, 2, vocab=11, context=8), seed=0)
    ids = torch.arange(8)[None]
    wanted = torch.autograd.grad(network(ids).square().sum(), list(network.parameters()))
    assert keep_slopes(network) == 2
    assert keep_slopes(network) == 0
    found = torch.autograd.grad(network(ids).square().sum(), list(network.parameters()))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert network.with_kernel("reference").decoder.blocks[0].feed_forward.activation is PLAIN


@pytest.mark.parametrize("compiled", [False, True])
def test_the_loop_keeps_slopes_where_nothing_is_compiled(
    tmp_path: Path, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Objective, "compile", lambda self: None)
    run = run_of(tmp_path, stories(tmp_path), compute={"device": "cpu", "compile": compiled})
    prepared = prepare(run, tmp_path / "data")
    source = Source(prepared.train, run, prepared.words, training=True)
    network = Transformer(gpt2(1, 16, 2, vocab=11, context=8), seed=0)
    Loop(run, World(torch.device("cpu")), network, source, None, tmp_path)
    assert (network.decoder.blocks[0].feed_forward.activation is PLAIN) == compiled
