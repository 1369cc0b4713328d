"""The operator in strips against the twin that forms the matrix, in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pellucid.errors import InputError
from pellucid.kernels import operator_tiled
from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import DenseOperator, cut, one_head
from pellucid.kernels.operator_tiled import TiledOperator, keys_seen, queries_seeing, sees_all
from pellucid.kernels.view import View
from tests.kernels.cases import CPU, draw
from tests.kernels.operator_cases import HEADS, MASKS, SCALE, SIZES, TEXTS, dense_twin, head_batch, product_errors

# Energy, products, and single numbers. Sums of some sixty products of size one, of scores of a few units: in float32
# a score is off by 1e-6 at most, and a weight by as much of itself.
TOLERANCES = {torch.float32: (1e-6, 1e-5, 5e-6), torch.float64: (1e-12, 1e-12, 1e-12)}

every_view = pytest.mark.parametrize(("mask", "size"), list(product(MASKS, SIZES)))
every_type = pytest.mark.parametrize("dtype", TOLERANCES)


@pytest.fixture(autouse=True)
def small_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen rows or columns each, so that several meet."""
    monkeypatch.setattr(operator_tiled, "STRIP", {"cpu": 1})


def pair(mask: str, size: tuple[int, int, int], dtype: torch.dtype, **options) -> tuple[TiledOperator, DenseOperator]:
    query, key, view = head_batch(mask, size, dtype=dtype, **options)
    return TiledOperator(query, key, scale=SCALE, view=view), dense_twin(query, key, view)


def assert_near(found: Tensor, exact: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found.double(), exact.double(), rtol=tolerance, atol=tolerance)


@every_view
@pytest.mark.parametrize("biased", [False, True])
@every_type
def test_equals_its_twin(mask, size, biased, dtype):
    tiled, twin = pair(mask, size, dtype, biased=biased)
    energy, products, numbers = TOLERANCES[dtype]
    errors = product_errors(tiled, twin)
    assert errors["energy"] <= energy
    assert max(errors["apply"], errors["apply_transposed"]) <= products
    assert tiled.apply(draw(TEXTS, HEADS, size[1], 3).to(dtype)).dtype == dtype
    assert_near(tiled.lse(), twin.lse(), numbers)
    assert_near(tiled.row_entropy(), twin.row_entropy(), numbers)
    # A distance is a sum of weights times up to sixty slots.
    assert_near(tiled.row_distance(), twin.row_distance(), 10 * numbers)
    assert_near(tiled.column_mass(), twin.weights.sum(-2), 10 * numbers)
    assert torch.equal(tiled.seeing(), twin.seeing())


@every_view
def test_the_twin_is_the_softmax_written_out(mask, size):
    _, twin = pair(mask, size, torch.float64, biased=True)
    group = torch.arange(HEADS) // 2
    scores = torch.einsum("bhqd,bhkd->bhqk", twin.query, twin.key[:, group]) * SCALE
    slots = torch.arange(size[0])[:, None]
    scores = scores + twin.view.bias[:, torch.arange(size[1]) - slots + size[0] - 1]
    allowed = torch.ones(()).bool() if twin.view.allowed is None else twin.view.allowed
    powers = scores.exp() * allowed
    total = powers.sum(-1, keepdim=True)
    assert_near(twin.weights, torch.where(total > 0, powers / total.clamp(min=1e-300), 0.0), 1e-12)
    assert_near(twin.lse(), total[..., 0].log(), 1e-12)


@every_view
@every_type
def test_single_numbers_of_the_matrix(mask, size, dtype):
    tiled, twin = pair(mask, size, dtype, biased=mask != "none")
    queries, keys, offset = size
    tolerance = TOLERANCES[dtype][2]
    for ahead in (-70, -9, -1, 0, 1, 8, 20, 70):
        expected = torch.zeros(TEXTS, HEADS, queries, dtype=torch.float64)
        for row in range(queries):
            if 0 <= row + offset + ahead < keys:
                expected[..., row] = twin.weights[..., row, row + offset + ahead]
        assert_near(tiled.diagonal(ahead), expected, tolerance)
    for index in (0, keys // 2, keys - 1):
        assert_near(tiled.column(index), twin.weights[..., index], tolerance)
    for rows, columns in parts(queries, keys):
        assert_near(tiled.tile(rows, columns), twin.weights[:, :, rows, columns], tolerance)


@pytest.mark.parametrize("size", SIZES)
@every_type
def test_pooled_is_the_mean_of_each_cell_with_its_edges(size, dtype):
    tiled, twin = pair("prefix and window", size, dtype, biased=True)
    # At 3000 weights at once, of eight heads, a tile has 19 of them along a side.
    for (rows, columns), cell, most in product(parts(*size[:2]), (1, 3, 8, 100), (3000, 2**22)):
        found = tiled.pooled(rows, columns, cell, most=most)
        assert_near(found, means(twin.weights[:, :, rows, columns], cell), TOLERANCES[dtype][2])


def parts(queries: int, keys: int) -> list[tuple[slice, slice]]:
    return [
        (slice(0, queries), slice(0, keys)),
        (slice(None), slice(keys // 2, None)),
        (slice(queries // 3, queries), slice(0, keys - 4)),
        (slice(queries - 1, queries), slice(5, 22)),
    ]


def means(matrix: Tensor, cell: int) -> Tensor:
    rows = [part.sum(-2, keepdim=True) for part in matrix.split(cell, -2)]
    sums = torch.cat([part.sum(-1, keepdim=True) for part in torch.cat(rows, -2).split(cell, -1)], -1)
    high, wide = (torch.tensor([len(part) for part in torch.arange(n).split(cell)]) for n in matrix.shape[-2:])
    return sums / (high[:, None] * wide)


@pytest.mark.parametrize("groups", [1, 2, 4])
@every_type
def test_heads_share_keys_in_groups(groups, dtype):
    tiled, twin = pair("causal and window", SIZES[0], dtype, groups=groups, biased=True)
    errors = product_errors(tiled, twin)
    assert errors["energy"] <= TOLERANCES[dtype][0]
    assert max(errors.values()) <= TOLERANCES[dtype][1]
    assert_near(tiled.diagonal(-2), torch.nn.functional.pad(twin.weights.diagonal(-2, -2, -1), (2, 0)), 5e-6)


@pytest.mark.parametrize("mask", MASKS)
def test_one_head_is_that_head(mask):
    query, key, view = head_batch(mask, SIZES[-1], biased=True)
    whole = dense_twin(query, key, view)
    for text, head in product(range(TEXTS), range(HEADS)):
        own_query, own_key, own = one_head(query, key, view, text, head)
        alone = DenseOperator(own_query, own_key, scale=SCALE, view=own)
        assert torch.equal(alone.weights[0, 0], whole.weights[text, head])


@pytest.mark.parametrize("strip", [1, 900, 2**21])
def test_the_size_of_a_strip_does_not_matter(monkeypatch, strip):
    monkeypatch.setattr(operator_tiled, "STRIP", {"cpu": strip})
    tiled, twin = pair("prefix and window", SIZES[-1], torch.float64, biased=True)
    assert max(product_errors(tiled, twin).values()) <= 1e-12


def test_half_precision_inputs_are_computed_in_float32():
    tiled, twin = pair("causal", SIZES[0], torch.bfloat16)
    errors = product_errors(tiled, twin)
    assert errors["energy"] <= 1e-6
    assert max(errors.values()) <= 1e-5


@pytest.mark.parametrize("blindness", ["causal and padding", "one empty text"])
@every_type
def test_a_blind_query_has_a_row_of_zeros(blindness, dtype):
    tiled, _ = pair(blindness, SIZES[0], dtype, biased=True)
    blind = (~tiled.view.allowed.any(-1)).expand(TEXTS, HEADS, 45)
    assert blind.any()
    assert (tiled.lse()[blind] == -torch.inf).all()
    assert tiled.lse()[~blind].isfinite().all()
    for rows in (tiled.moments.energy, tiled.row_entropy(), tiled.row_distance(), tiled.diagonal(), tiled.column(20)):
        assert (rows[blind] == 0).all()
    assert (tiled.apply(draw(TEXTS, HEADS, 45, 3).to(dtype))[blind] == 0).all()
    assert (tiled.tile(slice(0, 45), slice(3, 40))[blind] == 0).all()
    # What a blind query holds does not reach any key.
    marked = torch.where(blind[..., None], 1e6, 0.0).to(dtype)
    assert (tiled.apply_transposed(marked) == 0).all()


def test_scores_of_hundreds_do_not_overflow():
    query, key, view = head_batch("causal", SIZES[0], dtype=torch.float32)
    tiled = TiledOperator(query * 200, key, scale=SCALE, view=view)
    twin = dense_twin(query * 200, key, view)
    assert twin.lse().max() > 500
    # A score near 1000 is off by 1e-4 in float32, and so is the logarithm of a weight that is neither 0 nor 1.
    assert max(product_errors(tiled, twin).values()) <= 1e-4
    assert_near(tiled.row_entropy(), twin.row_entropy(), 1e-3)


@pytest.mark.parametrize("columns", [1, 5, 64])
def test_long_even_sums_keep_their_digits(monkeypatch, columns):
    """20,001 equal terms are rounded in one direction: added one by one, they would lose three digits."""
    monkeypatch.setattr(operator_tiled, "STRIP", {"cpu": 2**21})
    length = 20_001
    for queries, keys in ((40, length), (length, 40)):
        tiled = TiledOperator(
            torch.zeros(1, 1, queries, 2), torch.zeros(1, 1, keys, 2), scale=1.0, view=View(queries, keys, CPU)
        )
        x, y = torch.ones(1, 1, keys, columns), torch.ones(1, 1, queries, columns)
        assert_near(tiled.apply(x), torch.ones(1, 1, queries, columns), 5e-6)
        assert_near(tiled.apply_transposed(y), torch.full((1, 1, keys, columns), queries / keys), 5e-6 * queries / keys)


# --- bad input ---


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("which", [0, 1])
def test_refuses_what_is_not_finite(value, which):
    *sides, view = head_batch("causal", SIZES[0])
    sides[which][1, 1, 4, 2] = value
    with pytest.raises(InputError, match=rf"the {('queries', 'keys')[which]} hold 1 values.*\[1, 1, 4, 2\]"):
        TiledOperator(*sides, scale=SCALE, view=view)


def test_refuses_sizes_that_do_not_fit():
    query, key, view = head_batch("causal", SIZES[0])
    with pytest.raises(InputError, match=r"\(45, 45\) queries and keys, but \(44, 45\) came"):
        TiledOperator(query[:, :, 1:], key, scale=SCALE, view=view)
    with pytest.raises(InputError, match="4 heads cannot share 3 groups"):
        TiledOperator(query, draw(TEXTS, 3, 45, 6), scale=SCALE, view=view)


@pytest.mark.parametrize("part", [slice(5, 5), slice(8, 3), slice(0, 46), slice(-3, 10), slice(0, 10, 2)])
def test_refuses_tiles_that_are_not_there(part):
    tiled, _ = pair("causal", SIZES[0], torch.float64)
    for make in (tiled.tile, lambda rows, columns: tiled.pooled(rows, columns, 2)):
        with pytest.raises(InputError, match="non-empty range within 45 queries"):
            make(part, slice(0, 10))
        with pytest.raises(InputError, match="non-empty range within 45 keys"):
            make(slice(0, 10), part)


@pytest.mark.parametrize("index", [-1, 45])
def test_refuses_a_column_that_is_not_there(index):
    tiled, _ = pair("causal", SIZES[0], torch.float64)
    with pytest.raises(InputError, match="within 45 keys"):
        tiled.column(index)


@pytest.mark.parametrize("cell", [0, -2])
def test_refuses_to_pool_nothing(cell):
    tiled, _ = pair("causal", SIZES[0], torch.float64)
    with pytest.raises(InputError, match=rf"a cell of {cell} x {cell}"):
        tiled.pooled(slice(0, 4), slice(0, 4), cell)


# --- which strips see which ---


@st.composite
def views(pick: st.DrawFn) -> tuple[View, slice, slice]:
    """A view of one text, and some of its queries and keys."""
    queries, keys, offset = pick(st.integers(1, 20)), pick(st.integers(1, 20)), pick(st.integers(0, 20))
    prefix, window = (pick(st.none() | st.integers(least, 24)) for least in (0, 1))
    padding = pick(st.none() | st.lists(st.booleans(), min_size=keys, max_size=keys))
    mask = Mask(prefix, window, None if padding is None else torch.tensor([padding]))
    parts = [sorted(pick(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in (queries, keys)]
    return View(queries, keys, CPU, mask, None, offset), slice(*parts[0]), slice(*parts[1])


def seen_of(view: View) -> Tensor:
    allowed = torch.ones(1, 1, 1, 1).bool() if view.allowed is None else view.allowed
    return allowed.expand(1, 1, view.queries, view.keys)[0, 0]


@settings(max_examples=400, deadline=None)
@given(views())
def test_strips_leave_out_only_what_nobody_sees(drawn):
    view, rows, keys = drawn
    seen = seen_of(view)
    found, seeing = keys_seen(view, rows), queries_seeing(view, keys)
    assert 0 <= found.start <= found.stop <= view.keys
    assert 0 <= seeing.start <= seeing.stop <= view.queries
    assert not seen[rows, : found.start].any()
    assert not seen[rows, found.stop :].any()
    assert not seen[: seeing.start, keys].any()
    assert not seen[seeing.stop :, keys].any()
    bare = seen_of(replace(view, mask=replace(view.mask, padding=None)))
    # Without padding nothing is taken in vain: the first and the last of each range are seen.
    if found.stop > found.start:
        assert bare[rows, found.start].any()
        assert bare[rows, found.stop - 1].any()
    if sees_all(view, rows, keys):
        assert seen[rows, keys].all()
    elif view.mask.padding is None:
        assert not seen[rows, keys].all()


@settings(max_examples=300, deadline=None)
@given(views(), st.integers(0, 9))
def test_a_cut_view_is_that_part_of_the_view(drawn, seed):
    view, rows, keys = drawn
    view = replace(view, bias=draw(1, view.queries + view.keys - 1, seed=seed))
    part = cut(view, rows, keys)
    assert torch.equal(seen_of(part), seen_of(view)[rows, keys])
    assert torch.equal(part.dense_bias, view.dense_bias[:, :, rows, keys])
