"""Task heads, against the formulas written out plainly from the last stack's states."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from pellucid.model import config as c
from pellucid.model.transformer import Transformer

from .small import VOCAB, ids, network

TEXT = ids(3, 5)
PADDING = {
    "none": None,
    "left": torch.arange(5) >= torch.tensor([[2], [0], [4]]),
    "right": torch.arange(5) < torch.tensor([[3], [5], [1]]),
}
POOLINGS = ["first", "last", "mean", "max"]


def states(model: Transformer, padding: Tensor | None) -> Tensor:
    """What the head reads."""
    caught: list[Tensor] = []
    hook = model.final.norm.register_forward_hook(lambda *call: caught.append(call[2]))
    model(TEXT, padding=padding)
    hook.remove()
    return caught[0].detach()


def pooled(x: Tensor, pooling: str, padding: Tensor | None) -> Tensor:
    vectors = []
    for index, text in enumerate(x):
        real = text if padding is None else text[padding[index]]
        vectors.append({"first": real[0], "last": real[-1], "mean": real.mean(0), "max": real.amax(0)}[pooling])
    return torch.stack(vectors)


def linear(x: Tensor, layer: torch.nn.Linear) -> Tensor:
    return x @ layer.weight.T + (0 if layer.bias is None else layer.bias)


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("stacks", ["encoder", "decoder"])
def test_tag_is_a_linear_map_of_each_token(stacks: str, side: str):
    model = network(stacks, head=c.Tag(labels=7))
    wanted = linear(states(model, PADDING[side]), model.head.to_labels)
    torch.testing.assert_close(model(TEXT, padding=PADDING[side]), wanted)
    assert wanted.shape == (3, 5, 7)


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("hidden", ["tanh", "relu", "gelu", None])
def test_classify_pools_the_real_tokens(pooling: str, side: str, hidden: str | None):
    model = network("encoder", head=c.Classify(labels=7, pooling=pooling, hidden=hidden))
    vector = pooled(states(model, PADDING[side]), pooling, PADDING[side])
    if hidden is not None:
        activation = {"tanh": torch.tanh, "relu": torch.relu, "gelu": functional.gelu}[hidden]
        vector = activation(linear(vector, model.head.dense))
    torch.testing.assert_close(model(TEXT, padding=PADDING[side]), linear(vector, model.head.to_labels))


def test_classify_can_do_without_a_bias():
    model = network("encoder", head=c.Classify(labels=7, hidden=None, bias=False))
    assert model.head.to_labels.bias is None
    torch.testing.assert_close(model(TEXT), states(model, None)[:, 0] @ model.head.to_labels.weight.T)


@pytest.mark.parametrize("side", PADDING)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
def test_pool_gives_one_vector_per_text(pooling: str, side: str, project: bool, normalize: bool):
    model = network("encoder", head=c.Pool(pooling=pooling, project=project, normalize=normalize))
    wanted = pooled(states(model, PADDING[side]), pooling, PADDING[side])
    if project:
        wanted = torch.tanh(linear(wanted, model.head.dense))
    if normalize:
        wanted = wanted / wanted.square().sum(-1, keepdim=True).sqrt()
    got = model(TEXT, padding=PADDING[side])
    torch.testing.assert_close(got, wanted)
    assert not normalize or torch.allclose(got.norm(dim=-1), torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("transform", [None, "gelu"])
def test_unembed_is_a_product_with_the_token_table_or_a_matrix_of_its_own(
    tied: bool, bias: bool, scale: float, transform: str | None
):
    model = network(head=c.Unembed(tied=tied, bias=bias, scale=scale, transform=transform))
    x = states(model, None)
    if transform is not None:
        x = functional.gelu(linear(x, model.head.dense))
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        x = x * model.head.norm.weight + model.head.norm.bias
    matrix = model.tokens.weight if tied else model.head.weight
    wanted = scale * x @ matrix.T + (model.head.bias if bias else 0)
    torch.testing.assert_close(model(TEXT), wanted)
    assert wanted.shape == (3, 5, VOCAB)


@pytest.mark.parametrize("tied", [True, False])
def test_only_a_free_unembedding_has_a_matrix_of_its_own(tied: bool):
    names = [name for name, _ in network(head=c.Unembed(tied=tied)).named_parameters()]
    assert ("head.weight" in names) != tied


def test_a_tied_table_learns_from_both_its_uses():
    model = network(head=c.Unembed(tied=True))
    model(TEXT)[..., 0].sum().backward()
    unread = sorted(set(range(VOCAB)) - set(TEXT.flatten().tolist()) - {0})
    assert (model.tokens.weight.grad[0] != 0).any()
    assert (model.tokens.weight.grad[TEXT[0, 0]] != 0).any()
    assert (model.tokens.weight.grad[unread] == 0).all()
