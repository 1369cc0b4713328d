"""What results weigh, and that a model's shelf stays within its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from httpx import post

from pellucid.lens.trace import trace
from pellucid.web import shelf as shelves
from pellucid.web.holding import bytes_held
from pellucid.web.security import Limits
from pellucid.web.shelf import Book, Shelf
from tests.web.serving import random_model, served, shelf


def zeros(size: int) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.uint8)


def test_a_storage_counts_once_however_often_it_is_seen() -> None:
    whole, array = zeros(1000), np.zeros(500, np.uint8)
    assert bytes_held(whole) == 1000
    assert bytes_held([whole, whole[:10], [whole.view(10, 100)]]) == 1000
    assert bytes_held((array, array[3:9])) == 500
    assert bytes_held({"a": [array], "b": whole, "c": None}) == 1503


def test_what_a_function_keeps_counts_and_a_model_does_not() -> None:
    kept, model = zeros(1000), random_model()
    assert bytes_held(lambda part: kept[part]) == 1000
    assert bytes_held([model, model.network, lambda: model, next(model.network.parameters())]) == 0


def test_a_trace_weighs_its_matrices() -> None:
    model = random_model()
    found = trace(model, [[1] * 64])
    matrices = sum(step.full.nbytes for step in found.steps if step.site.endswith((".scores", ".weights")))
    every = {step.full.untyped_storage().data_ptr(): step.full.untyped_storage().nbytes() for step in found.steps}
    assert matrices == 3 * 2 * 4 * 64 * 64 * 4
    assert matrices < sum(every.values()) <= bytes_held(found) < 1.2 * sum(every.values())


@pytest.fixture
def book(monkeypatch: pytest.MonkeyPatch) -> Book:
    monkeypatch.setattr(shelves, "KEPT_BYTES", 1000)
    return Shelf({"words": random_model}, Limits())["words"]


def keep(book: Book, name: str, size: int) -> list[Any]:
    book.keep(name, lambda: zeros(size))
    return list(book.kept)


def test_the_oldest_go_when_the_bytes_are_full(book: Book) -> None:
    assert keep(book, "a", 400) == ["a"]
    assert keep(book, "b", 400) == ["a", "b"]
    assert keep(book, "a", 400) == ["b", "a"]
    assert keep(book, "c", 300) == ["a", "c"]
    assert keep(book, "d", 999_999) == ["d"]  # the last one stays
    assert keep(book, "e", 1) == ["e"]


def test_what_grows_while_it_is_kept_is_weighed_again(book: Book) -> None:
    grown: dict[str, torch.Tensor] = book.keep("grown", dict)
    grown["run"] = zeros(900)
    assert keep(book, "next", 200) == ["next"]
    for name in "abcdef":
        keep(book, name, 1)
    assert list(book.kept) == ["c", "d", "e", "f"]


def test_every_view_keeps_something_that_is_weighed() -> None:
    text = {"model": "words", "text": "the cat sat on the mat"}
    asked = {
        "trace": text,
        "attention": text,
        "map": text | {"tokens": 600},
        "spectra/head": text | {"place": 0, "head": 0},
        "cache": text,
    }
    with served(shelf(), Limits(per_second=1e6, burst=10**6)) as server:
        for path, body in asked.items():
            assert post(f"{server.address}/api/{path}", json=body, timeout=60).status_code == 200
            newest = next(reversed(server.shelf["words"].kept.values()))
            assert 1000 < bytes_held(newest) < 20_000_000, path
