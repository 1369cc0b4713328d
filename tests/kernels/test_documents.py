"""Documents packed in a row see themselves alone, on every kernel that takes them; the others refuse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pellucid.errors import KernelError
from pellucid.kernels import fused, reference, relu
from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import DenseOperator, one_head
from pellucid.kernels.view import View
from pellucid.model import config as c
from tests.model.small import MECHANISMS, ids, network

ROWS = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, -1], [0, 0, 0, 0, 0, 0, 0, 1, 1]])
CPU = torch.device("cpu")


def seen(mask: Mask) -> Tensor:
    """By a triple loop."""
    length = ROWS.shape[1]
    table = torch.zeros(2, 1, length, length, dtype=torch.bool)
    for text in range(2):
        for i in range(length):
            for j in range(length):
                window = mask.window is None or abs(i - j) < mask.window
                table[text, 0, i, j] = (mask.prefix is None or j <= i) and window and ROWS[text, i] == ROWS[text, j]
    return table


@pytest.mark.parametrize("mask", [Mask(documents=ROWS), Mask(prefix=0, documents=ROWS), Mask(0, 2, None, ROWS)])
def test_a_query_sees_the_keys_of_its_document(mask: Mask) -> None:
    assert not mask.is_everything
    assert not mask.is_only_causal
    assert torch.equal(mask.dense(9, 9).expand(2, 1, 9, 9), seen(mask))
    view = View(9, 9, CPU, mask)
    part = view.rows(3, 7)
    assert torch.equal(part.allowed, view.allowed[:, :, 3:7, : part.keys])


def test_and_shows_what_both_show() -> None:
    other = torch.tensor([[0, 0, 1, 1, 1, 1, 0, 0, 0], [5, 5, 5, 5, 7, 7, 7, 7, 7]])
    both = Mask(documents=ROWS) & Mask(documents=other)
    one, two = (Mask(documents=each).dense(9, 9) for each in (ROWS, other))
    assert torch.equal(both.dense(9, 9), one & two)
    assert (Mask.causal() & Mask(documents=ROWS)).documents is ROWS


@pytest.mark.parametrize("kernel", [fused.sdpa, fused.grouped, relu.normalized_relu])
def test_kernels_agree_with_their_twins_in_values_and_gradients(kernel) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 9, 4, generator=draw).double().requires_grad_() for _ in range(3))
    twin = reference.normalized_relu if kernel is relu.normalized_relu else reference.softmax
    found = []
    for each in (kernel, twin):
        heads = each(query, key, value, scale=0.5, view=View(9, 9, CPU, Mask(prefix=0, documents=ROWS)))
        found.append((heads, *torch.autograd.grad(heads.square().sum(), (query, key, value))))
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-10, atol=1e-10)


POSITIONS = [c.Rotary(), c.Learned(), c.Sinusoidal(), c.ALiBi(), c.T5Buckets(), c.Relative(), c.NoPositions()]


@pytest.mark.parametrize("position", POSITIONS, ids=lambda position: position.kind)
@pytest.mark.parametrize("attention", [c.Softmax(), c.NormalizedRelu()], ids=lambda attention: attention.kind)
def test_a_packed_document_has_the_states_that_it_has_alone(position: c.Position, attention: c.Attention) -> None:
    built = network(position=position, attention=attention)
    texts = [ids(1, length, seed=length) for length in (3, 2, 4)]
    row = torch.cat(texts, 1)
    documents = torch.tensor([[0] * 3 + [1] * 2 + [2] * 4])
    packed = built.states(row, documents=documents)
    alone = torch.cat([built.states(text) for text in texts], 1)
    torch.testing.assert_close(packed, alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_linear_attention_refuses_them(kernel: str) -> None:
    built = network(attention=MECHANISMS["linear_elu"], kernel=kernel)
    with pytest.raises(KernelError, match="other documents"):
        built.states(ids(1, 4), documents=torch.tensor([[0, 0, 1, 1]]))


def test_operators_refuse_them() -> None:
    x, view = torch.randn(2, 1, 9, 4), View(9, 9, CPU, Mask(documents=ROWS))
    with pytest.raises(KernelError, match="one by one"):
        DenseOperator(x, x, scale=1.0, view=view)
    with pytest.raises(KernelError, match="one by one"):
        one_head(x, x, view, 0, 0)
