"""What a model cannot take is refused with the value seen and the value wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from pellucid.errors import InputError, KernelError, PellucidError
from pellucid.model import config as c
from pellucid.model.inputs import check_prefix

from .small import CONTEXT, VOCAB, ids, network, unchecked


@pytest.fixture(autouse=True)
def _no_shape_checker() -> Iterator[None]:
    with unchecked():
        yield


def keep(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.bool)


def one_too_long() -> Tensor:
    return ids(1, CONTEXT + 1)


REFUSED: dict[str, tuple[str, dict[str, object], Callable[[], tuple[tuple[object, ...], dict[str, object]]], str]] = {
    # name: stacks, changes of the config, arguments and options of the call, what the message says
    "negative ids": ("decoder", {}, lambda: ((torch.tensor([[3, -2]]),), {}), r"0\.\.12 .*13 entries.* from -2 to 3"),
    "too large ids": ("decoder", {}, lambda: ((torch.tensor([[3, 13]]),), {}), r"0\.\.12 .*13 entries.* from 3 to 13"),
    "large ids, encoder": ("encoder", {}, lambda: ((torch.tensor([[99]]),), {}), r"0\.\.12 .* from 99 to 99"),
    "large source ids": (
        "both",
        {"source_vocab": 5},
        lambda: ((torch.tensor([[5]]), ids(1, 2)), {}),
        r"0\.\.4 .*5 entries.* from 5 to 5",
    ),
    "large target ids": ("both", {}, lambda: ((ids(1, 2), torch.tensor([[20]])), {}), r"0\.\.12 .* from 20 to 20"),
    "one axis": ("decoder", {}, lambda: ((ids(4),), {}), r"shape \[batch, length\], not torch.int64 of shape \[4\]"),
    "float ids": (
        "decoder",
        {},
        lambda: ((ids(1, 4).float(),), {}),
        r"integers .* not torch.float32 .*\[1, 4\]",
    ),
    "no tokens": ("decoder", {}, lambda: ((ids(2, 0),), {}), r"empty \(shape \[2, 0\]\): give at least one"),
    "no texts": ("encoder", {}, lambda: ((ids(0, 3),), {}), r"empty \(shape \[0, 3\]\): give at least one"),
    "too long": ("encoder", {"position": c.Learned()}, lambda: ((one_too_long(),), {}), r"needs 13 .* has 12"),
    "too long, linformer": (
        "encoder",
        {"position": c.NoPositions(), "attention": c.Linformer(rank=2)},
        lambda: ((one_too_long(),), {}),
        r"needs 13 positions, but the model has 12: .* at most 12",
    ),
    "padding too short": (
        "decoder",
        {},
        lambda: ((ids(1, 4),), {"padding": keep([1, 1, 1])}),
        r"shape of the ids, \[1, 4\].* not torch.bool of shape \[1, 3\]",
    ),
    "padding of integers": (
        "encoder",
        {},
        lambda: ((ids(1, 3),), {"padding": keep([1, 1, 0]).long()}),
        r"booleans .*\[1, 3\].* not torch.int64 of shape \[1, 3\]",
    ),
    "target padding too short": (
        "both",
        {},
        lambda: ((ids(1, 3), ids(1, 4)), {"target_padding": keep([1, 1, 1])}),
        r"\[1, 4\].* not torch.bool of shape \[1, 3\]",
    ),
    "a hole": (
        "decoder",
        {},
        lambda: ((ids(2, 5),), {"padding": keep([1] * 5, [1, 0, 1, 0, 1])}),
        r"text 1 has 3 separate runs .* before the text or after it",
    ),
    "a hole in the source": (
        "both",
        {},
        lambda: ((ids(1, 3), ids(1, 2)), {"padding": keep([1, 0, 1])}),
        r"text 0 has 2 separate runs",
    ),
    "segments": ("encoder", {}, lambda: ((ids(1, 3),), {"segments": ids(1, 3)}), "an encoder .* takes no segments"),
    "large segments": (
        "encoder",
        {"segments": 2},
        lambda: ((ids(1, 3),), {"segments": torch.tensor([[0, 1, 2]])}),
        r"segments must lie in 0\.\.1 .*2 entries.* from 0 to 2",
    ),
    "short segments": (
        "encoder",
        {"segments": 2},
        lambda: ((ids(1, 3),), {"segments": torch.tensor([[0, 1]])}),
        r"\[1, 3\], not \[1, 2\]",
    ),
    "segments of another batch": (
        "encoder",
        {"segments": 2},
        lambda: ((ids(2, 3),), {"segments": torch.tensor([[0, 1, 1]] * 3)}),
        r"\[2, 3\].* not \[3, 3\]",
    ),
    "a target for a decoder": ("decoder", {}, lambda: ((ids(1, 3), ids(1, 3)), {}), "a decoder .* takes no target"),
    "a target for an encoder": ("encoder", {}, lambda: ((ids(1, 3), ids(1, 3)), {}), "an encoder .* takes no target"),
    "a prefix for an encoder": ("encoder", {}, lambda: ((ids(1, 3),), {"prefix": 2}), "an encoder .* takes no prefix"),
    "no target": ("both", {}, lambda: ((ids(1, 3),), {}), r"needs both texts: call it with \(source_ids, target_ids\)"),
    "another batch": ("both", {}, lambda: ((ids(3, 2), ids(2, 2)), {}), "memory holds 3 texts, but 2 came"),
    "a negative prefix": ("decoder", {}, lambda: ((ids(1, 3),), {"prefix": -4}), "a prefix of -4 tokens"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_value_seen_and_the_value_wanted(name: str):
    stacks, changes, call, message = REFUSED[name]
    arguments, options = call()
    with pytest.raises(InputError, match=message):
        network(stacks, **changes)(*arguments, **options)


def test_learned_positions_count_the_cached_tokens():
    model = network(position=c.Learned())
    cache = model.new_cache(1, 40)
    model(ids(1, CONTEXT - 1), cache=cache)
    with pytest.raises(InputError, match="needs 13 positions, but the model has 12"):
        model(ids(1, 2), cache=cache)


def test_learned_positions_do_not_count_padding():
    model, text = network(position=c.Learned()), one_too_long()
    padding = torch.arange(CONTEXT + 1)[None] > 0
    torch.testing.assert_close(model(text, padding=padding)[:, 1:], model(text[:, 1:]))


def test_other_positions_have_no_limit():
    assert network()(ids(1, 5 * CONTEXT)).shape == (1, 5 * CONTEXT, VOCAB)


@pytest.mark.parametrize("prefix", [-1, torch.tensor([2, -1])])
def test_a_negative_prefix_is_refused_even_behind_padding(prefix: int | Tensor):
    with pytest.raises(InputError, match="prefix of -1 tokens"):
        check_prefix(prefix, keep([0, 0, 0, 1], [1] * 4), 0, 4, cached=False)


@pytest.mark.parametrize("attention", [c.Softmax(), c.NormalizedRelu(), c.Linear()])
def test_an_unknown_kernel_is_refused_with_the_names_of_the_known_ones(attention: c.Attention):
    with pytest.raises(KernelError, match="no kernel is called 'fussed': choose one of fused, flex, reference"):
        network(attention=attention, kernel="fussed")


def test_the_flex_kernel_is_refused_on_a_cpu():
    with pytest.raises(KernelError, match=r"runs on a GPU, but the query is on cpu, .* Use kernel='fused'"):
        network(kernel="flex")(ids(1, 3))


@pytest.mark.parametrize("attention", [c.NormalizedRelu(), c.Linear()])
def test_the_flex_kernel_is_for_softmax(attention: c.Attention):
    with pytest.raises(KernelError, match=r"flex kernel is for softmax attention, not for .*: use 'fused'"):
        network(attention=attention, kernel="flex")


@pytest.mark.parametrize("call", ["encode", "decode"])
def test_a_single_stack_says_which_call_it_takes(call: str):
    model = network("decoder" if call == "encode" else "encoder")
    with pytest.raises(InputError, match=f"no {call}r: call it, or use {'decode' if call == 'encode' else 'encode'}"):
        getattr(model, call)(ids(1, 3))


def test_linear_attention_refuses_a_prefix_with_its_length():
    with pytest.raises(PellucidError, match=r"linear attention cannot hide the future after a prefix of 2"):
        network(attention=c.Linear())(ids(1, 4), prefix=2)


HEADS: list[c.Head] = [
    c.Unembed(),
    c.Tag(labels=3),
    *(c.Classify(labels=3, pooling=pooling) for pooling in ("first", "last", "mean", "max")),
    *(c.Pool(pooling=pooling, normalize=True) for pooling in ("first", "last", "mean", "max")),
]


@pytest.mark.parametrize("head", HEADS, ids=lambda head: f"{head.kind}-{getattr(head, 'pooling', '')}")
@pytest.mark.parametrize("stacks", ["encoder", "decoder"])
@pytest.mark.parametrize("kernel", ["fused", "reference"])
def test_a_text_of_padding_alone_gives_finite_scores_and_gradients(head: c.Head, stacks: str, kernel: str):
    model = network(stacks, head=head, kernel=kernel)
    scores = model(ids(2, 4), padding=keep([0] * 4, [1] * 4))
    scores.sum().backward()
    assert scores.isfinite().all()
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("attention", [c.Softmax(), c.NormalizedRelu(), c.Linear(), c.Linear(features=c.Relu())])
def test_a_source_of_padding_alone_gives_finite_scores(attention: c.Attention):
    scores = network("both", attention=attention)(ids(2, 3), ids(2, 4), padding=keep([0] * 3, [1] * 3))
    assert scores.isfinite().all()
