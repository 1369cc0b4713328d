"""Models that compute in bfloat16, as the folder of a run does: every view opens on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app
from tests.web.serving import BASE, PORT, TestClient, random_model

ONE = {"model": "half", "text": "1 2 3 4 5 6"}
TWO = {"model": "pair", "text": "1 2 3 4", "target": "1 2 3"}
HEAD = {"place": 0, "head": 0}


def halved(model: Model) -> Model:
    return replace(model, network=model.network.bfloat16())


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    models = {
        "half": lambda: halved(random_model()),
        "pair": lambda: halved(random_model(encoder_blocks=2, decoder_blocks=2, position=c.Sinusoidal())),
    }
    with TestClient(
        create_app(models, Address(port=PORT), Limits(per_second=1e6, burst=10**6)), base_url=BASE
    ) as opened:
        yield opened


@pytest.mark.parametrize("asked", [ONE, TWO], ids=["half", "pair"])
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("trace", {}),
        ("trace/cell", {"site": "decoder.0.attention.scores", "index": [0, 1, 1]}),
        ("attention", {}),
        ("attention", {"change": "keys_queries"}),
        ("attention/head", HEAD),
        ("map", {}),
        ("spectra", {}),
        ("spectra/head", HEAD),
        ("spectra/rank", {**HEAD, "rank": 2}),
        ("cache", {"written": 2}),
        ("compare", {}),
        ("compare/weights", {}),
        ("compare/heads", {}),
        ("compare/head", HEAD),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_view_opens(web: TestClient, asked: dict[str, Any], path: str, more: dict[str, Any]) -> None:
    answer = web.post(f"/api/{path}", json=asked | more | ({"other": asked["model"]} if "compare" in path else {}))
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("model", ["half", "pair"])
def test_positions_open(web: TestClient, model: str) -> None:
    assert web.post("/api/positions", json={"model": model}).status_code == 200
