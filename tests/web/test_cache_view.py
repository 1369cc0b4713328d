"""The cache's view: the steps of a film as the page gets them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pellucid.generation.film import film
from pellucid.model import config as c
from pellucid.model.cache import cache_bytes, source_bytes
from pellucid.web.payloads import LARGEST
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app
from tests.web.serving import BASE, PORT, TestClient, random_model, shelf, unpack, with_words
from tests.web.test_views import TEXT, asked, refused

WINDOWS: dict[str, Any] = {"window": (3, None, 5), "key_value_heads": 2}


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    models = shelf() | {
        "windows": lambda: random_model(**WINDOWS),
        "tags": lambda: random_model(head=c.Tag(labels=3)),
        "short": lambda: random_model(position=c.Learned(), context=8),
        "deep": lambda: random_model(width=512, heads=2, decoder_blocks=8, head_width=256),
    }
    app = create_app(models, Address(port=PORT), Limits(per_second=1e6, burst=10**6))
    with TestClient(app, base_url=BASE) as opened:
        yield opened


def test_steps_are_those_of_the_film(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/cache", json=asked(written=6, group=1)))
    model = with_words(random_model())
    own = film(model, [model.encode(TEXT)], 6)
    assert head["tokens"] == [model.decode([one]) for one in own.ids]
    assert [(step["past"], step["read"]) for step in head["steps"]] == [(0, 10), *((10 + k, 1) for k in range(5))]
    for step, frame in zip(head["steps"], own.frames, strict=True):
        assert step["flops"] == [frame.flops, frame.flops_without]
        assert step["change"] <= head["allowed"] * step["largest"]
        assert sum(step["held"]) == cache_bytes(model.config, 1, frame.past + frame.read, model.dtype)
    assert own.keys is not None
    np.testing.assert_allclose(arrays["key"], own.keys[:, 1].numpy(), rtol=1e-6)
    np.testing.assert_allclose(arrays["query"], own.queries[:, 1].numpy(), rtol=1e-6)
    assert head["formulas"][0].startswith("<math")


def test_windows_and_grouped_heads(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/cache", json=asked("windows", "1 2 3 4 5 6", written=4, group=1)))
    assert (head["windows"], head["groups"]) == ([3, None, 5], 2)
    row = 2 * 2 * 8 * 4  # two parts, two heads of eight float32
    assert [step["held"] for step in head["steps"]] == [[3 * row, (6 + k) * row, 5 * row] for k in range(4)]
    own = film(random_model(**WINDOWS), [[1, 2, 3, 4, 5, 6]], 4)
    np.testing.assert_allclose(arrays["query"], own.queries[:, 2].numpy(), rtol=1e-6)  # the group's first head
    refused(web, "/api/cache", asked("windows", "1 2", group=2), "group", "no_head")


def test_linear_attention_keeps_a_state_of_one_size(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/cache", json=asked("linear", "1 2 3", written=5)))
    assert head["state"] == [4, 8, 9]
    assert {tuple(step["held"]) for step in head["steps"]} == {(4 * 8 * 9 * 4,) * 3}
    assert {step["flops"][0] for step in head["steps"][1:]} == {head["steps"][1]["flops"][0]}
    assert set(arrays) == {"query"}


def test_the_source_is_kept_once(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/cache", json=asked("pair", "1 2 3 4", target="5 6", written=3)))
    config = random_model(encoder_blocks=2, decoder_blocks=2, position=c.Sinusoidal())
    assert {step["of_source"] for step in head["steps"]} == {source_bytes(config.config, 1, 4, config.dtype)}
    assert arrays["source_key"].shape == (2, 4, 8)
    assert head["source"] == ["1", "2", "3", "4"]


@pytest.mark.parametrize(("model", "why"), [("encoder", "encoder"), ("tags", "head"), ("worked-example", "not_causal")])
def test_who_writes_nothing_gets_a_reason(web: TestClient, model: str, why: str) -> None:
    text = "I love" if model == "worked-example" else "1 2"
    assert unpack(web.post("/api/cache", json=asked(model, text)))[0]["why"] == why


def test_no_more_is_written_than_the_model_can_read(web: TestClient) -> None:
    head, _ = unpack(web.post("/api/cache", json=asked("short", "1 2 3 4 5", written=20)))
    assert len(head["steps"]) == 4
    assert len(head["tokens"]) == 9  # eight that are read and the last that is not


def test_bad_requests_get_a_sentence(web: TestClient) -> None:
    refused(web, "/api/cache", asked(text=" "), "text", "empty")
    refused(web, "/api/cache", asked(written=0), "written", "too_low")
    refused(web, "/api/cache", asked(written=65), "written", "too_high")
    refused(web, "/api/cache", asked(text="the " * 257), "text", "long")


def test_pictures_of_a_deep_model_fit(web: TestClient) -> None:
    body = asked("deep", "1 " * 250, written=4)
    response = web.post("/api/cache", json=body)
    assert len(response.content) < LARGEST
    _, arrays = unpack(response)
    assert arrays["key"].shape == (8, 253, 64)  # four numbers a pixel
    keys = film(random_model(width=512, heads=2, decoder_blocks=8, head_width=256), [[1] * 250], 4).keys
    assert keys is not None
    means = keys[:, 0].reshape(8, 253, 64, 4).mean(-1).numpy()
    np.testing.assert_allclose(arrays["key"], means, rtol=1e-3, atol=1e-3)
