"""Packed answers: what goes in comes out."""

from __future__ import annotations

import numpy as np
import pytest
from httpx import Response

from pellucid.web.payloads import EXACT, LARGEST, compact, pack, pooled
from pellucid.web.shelf import Source, titles
from tests.web.serving import unpack


def test_what_is_packed_comes_out() -> None:
    arrays = {
        "a": np.arange(7, dtype=np.float32),
        "b": np.array([[np.nan, 1.5]], np.float16),
        "c": np.zeros((0, 3), np.float32),
    }
    for name in ("x", "xy", "xyz", "ε"):
        head, found = unpack(Response(200, content=pack({name: 1}, arrays)))
        assert head == {name: 1}
        for key, array in arrays.items():
            assert found[key].dtype == array.dtype
            np.testing.assert_array_equal(found[key], array)


def test_an_answer_that_is_too_large_is_a_fault_of_ours() -> None:
    with pytest.raises(AssertionError, match="more than a page"):
        pack({}, {"a": np.zeros(LARGEST, np.float16)})


def test_many_numbers_are_halved_and_few_or_large_ones_are_not() -> None:
    assert compact(np.ones(EXACT)).dtype == np.float32
    assert compact(np.ones(EXACT + 1)).dtype == np.float16
    assert compact(np.full(EXACT + 1, 1e6)).dtype == np.float32


def test_pooling_leaves_hidden_cells_out() -> None:
    values = np.array([[1, np.nan, 5], [3, np.nan, np.nan], [7, 8, np.nan]])
    np.testing.assert_array_equal(pooled(values, 2, 2), [[2, 5], [7.5, np.nan]])


def test_models_of_one_name_are_told_apart() -> None:
    found = titles(map(Source, ["/a/gpt", "/b/gpt", "/a/gpt", "worked-example"]))
    assert {name: source.model for name, source in found.items()} == {
        "gpt": "/a/gpt",
        "gpt (2)": "/b/gpt",
        "worked-example": "worked-example",
    }


def test_an_adapter_is_named_after_its_model() -> None:
    found = titles([Source("/a/gpt"), Source("/a/gpt", "/x/mine"), Source("/a/gpt", "/y/mine")])
    assert list(found) == ["gpt", "gpt + mine", "gpt + mine (2)"]
    assert found["gpt + mine (2)"].adapter == "/y/mine"
