from dataclasses import replace
from itertools import product

import pytest
import torch

from pellucid.kernels.mask import Mask
from pellucid.kernels.view import View
from tests.kernels.cases import BATCH, HEADS, MASKS, SIZES, problem, shows

every_view = pytest.mark.parametrize(("name", "size"), list(product(MASKS, SIZES)))


def view_of(name, size, *, biased=True):
    return problem(name, *size, biased=biased).view


@pytest.mark.parametrize("size", SIZES)
def test_dense_bias_holds_the_entry_of_each_distance(size):
    queries, keys, offset = size
    view = view_of("none", size)
    assert view.dense_bias.shape == (1, HEADS, queries, keys)
    entry_of = {t - (queries - 1) - offset: t for t in range(queries + keys - 1)}
    for i, j in product(range(queries), range(keys)):
        distance = j - (i + offset)
        assert torch.equal(view.dense_bias[0, :, i, j], view.bias[:, entry_of[distance]])


@every_view
def test_rows_see_what_they_saw_in_the_whole(name, size):
    whole = view_of(name, size)
    for start in range(whole.queries):
        for stop in range(start + 1, whole.queries + 1):
            part = whole.rows(start, stop)
            assert torch.equal(part.dense_bias, whole.dense_bias[:, :, start:stop, : part.keys])
            expected = seen(whole)[:, :, start:stop]
            assert torch.equal(seen(part), expected[..., : part.keys])
            assert not expected[..., part.keys :].any()


def seen(view):
    allowed = torch.tensor(True) if view.allowed is None else view.allowed
    return allowed.expand(BATCH, 1, view.queries, view.keys)


@pytest.mark.parametrize(("stop", "keys"), [(1, 7), (3, 9), (5, 9)])
def test_rows_of_a_causal_view_drop_the_keys_of_the_future(stop, keys):
    assert view_of("causal", (5, 9, 6)).rows(0, stop).keys == keys


@every_view
def test_blind_are_the_queries_that_may_look_at_nothing(name, size):
    queries, keys, offset = size
    view = view_of(name, size)
    expected = torch.tensor(
        [
            [not any(shows(view.mask, text, i + offset, j) for j in range(keys)) for i in range(queries)]
            for text in range(BATCH)
        ]
    )[:, None, :, None]
    blind = torch.tensor(False) if view.blind is None else view.blind
    assert torch.equal(blind.expand_as(expected), expected)


@pytest.mark.parametrize("name", ["none", "causal", "prefix", "prefix per text", "window", "causal and window"])
def test_blind_is_not_worked_out_where_the_form_of_the_mask_rules_it_out(name):
    assert view_of(name, (7, 7, 0)).blind is None


@every_view
def test_additive_is_the_bias_where_a_query_may_look_and_minus_infinity_elsewhere(name, size):
    view = view_of(name, size)
    may_look = seen(view) | (False if view.blind is None else view.blind)
    shape = (BATCH, HEADS, view.queries, view.keys)
    expected = view.dense_bias.expand(shape).masked_fill(~may_look, -torch.inf)
    assert torch.equal(view.additive.expand(shape), expected)


@every_view
def test_additive_without_a_bias_is_boolean(name, size):
    view = view_of(name, size, biased=False)
    may_look = seen(view) | (False if view.blind is None else view.blind)
    assert (view.additive is None) == (view.allowed is None)
    if view.additive is not None:
        assert view.additive.dtype == torch.bool
        assert torch.equal(view.additive.expand_as(may_look), may_look)


def test_square_causal_needs_a_square_and_nothing_but_the_future_hidden():
    square = view_of("causal", (7, 7, 0), biased=False)
    assert square.is_square_causal
    assert not view_of("causal", (7, 7, 0), biased=True).is_square_causal
    assert not view_of("causal", (3, 9, 6), biased=False).is_square_causal
    assert not view_of("causal", (4, 9, 0), biased=False).is_square_causal
    assert not replace(square, offset=1).is_square_causal
    for name in set(MASKS) - {"causal"}:
        assert not view_of(name, (7, 7, 0), biased=False).is_square_causal


def test_a_view_goes_to_a_device_with_all_it_holds():
    mask = Mask(prefix=torch.tensor([2]), window=3, padding=torch.tensor([[False, True, True, True]]))
    view = View(4, 4, torch.device("meta"), mask, torch.arange(7.0)[None])
    moved = view.to(torch.device("cpu"))
    assert moved.allowed is not None
    assert moved.allowed.device.type == "cpu"
    assert torch.equal(moved.allowed, View(4, 4, torch.device("cpu"), mask).allowed)
    assert torch.equal(moved.bias, view.bias)
    assert moved.mask.window == 3
