from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.kernels.mask import Mask
from tests.kernels.cases import BATCH, MASKS, SIZES, shows

small = st.integers(0, 6)
prefixes = st.none() | small | st.lists(small, min_size=BATCH, max_size=BATCH).map(torch.tensor)
windows = st.none() | st.integers(1, 6)


@st.composite
def sized_masks(draw, masks=1):
    """Some masks over the same number of keys, and that number."""
    keys = draw(st.integers(1, 6))
    rows = st.lists(st.lists(st.booleans(), min_size=keys, max_size=keys), min_size=BATCH, max_size=BATCH)
    paddings = st.none() | rows.map(torch.tensor)
    return [Mask(draw(prefixes), draw(windows), draw(paddings)) for _ in range(masks)], keys


def table(mask, queries, keys, offset):
    """The mask by a double loop, in the shape of attention."""
    rows = [[[shows(mask, text, i + offset, j) for j in range(keys)] for i in range(queries)] for text in range(BATCH)]
    return torch.tensor(rows)[:, None]


def assert_dense_is(mask, expected, offset):
    queries, keys = expected.shape[-2:]
    dense = mask.dense(queries, keys, offset)
    seen = torch.tensor(True) if dense is None else dense
    assert torch.equal(seen.expand_as(expected), expected)


@settings(deadline=None)
@given(sized_masks(), st.integers(1, 5), small)
def test_dense_is_the_condition_for_each_pair(case, queries, offset):
    (mask,), keys = case
    assert_dense_is(mask, table(mask, queries, keys, offset), offset)


@settings(deadline=None)
@given(sized_masks(masks=2), st.integers(1, 5), small)
def test_and_shows_what_both_masks_show(case, queries, offset):
    (one, other), keys = case
    both = table(one, queries, keys, offset) & table(other, queries, keys, offset)
    assert_dense_is(one & other, both, offset)


@pytest.mark.parametrize(("name", "size"), list(product(MASKS, SIZES)))
def test_dense_of_the_masks_in_use(name, size):
    queries, keys, offset = size
    mask = MASKS[name](keys)
    assert_dense_is(mask, table(mask, queries, keys, offset), offset)


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "offset"),
    [
        (Mask(), 5, 5, 0),
        (Mask.causal(), 1, 5, 4),
        (Mask.causal(), 2, 5, 6),
        (Mask(window=5), 5, 5, 0),
        (Mask(window=5), 2, 5, 3),
        (Mask.causal() & Mask(window=9), 1, 9, 8),
    ],
)
def test_dense_is_none_where_nothing_is_hidden(mask, queries, keys, offset):
    assert table(mask, queries, keys, offset).all()
    assert mask.dense(queries, keys, offset) is None


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "offset"),
    [(Mask.causal(), 2, 5, 3), (Mask(window=4), 5, 5, 0), (Mask(window=4), 1, 5, 4), (Mask.causal(), 4, 5, 0)],
)
def test_dense_is_not_none_one_slot_before_that(mask, queries, keys, offset):
    assert not mask.dense(queries, keys, offset).all()


def test_the_names_of_masks():
    real = torch.ones(BATCH, 3, dtype=torch.bool)
    assert Mask().is_everything
    assert Mask.causal().is_causal
    assert Mask.causal().is_only_causal
    assert not Mask.causal().is_everything
    assert not Mask(prefix=1).is_causal
    assert not Mask(prefix=torch.tensor([0, 0])).is_causal
    for part in (Mask(window=2), Mask(padding=real)):
        both = Mask.causal() & part
        assert both.is_causal
        assert not both.is_only_causal
        assert not part.is_everything


def test_first_keys_cut_the_padding():
    mask = MASKS["padding left"](6)
    assert torch.equal(mask.first_keys(2).dense(1, 2), mask.dense(1, 6)[..., :2])
    assert Mask(window=2).first_keys(2).padding is None
