"""Whatever is asked of the interface, the answer is a result or a refusal, never a fault."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from tests.web.serving import BASE, TestClient, client, shelf, unpack

REACHED = 0.8  # of the paths: so many gave a result, or the requests would prove little
MAPPED = "alibi"  # whose map stays open
# What makes random requests reach the models: names that are on the list, texts that they read, heads that they have.
TELLING: dict[str, dict[str, Any]] = {
    "model": {"enum": sorted(set(shelf()) - {MAPPED})},
    "other": {"enum": sorted(set(shelf()) - {MAPPED})},
    "text": {"anyOf": [{"type": "string", "pattern": "^([1-9] ){1,9}[1-9]$"}, {"enum": ["I love", "日本"]}]},
    "target": {"enum": ["1", "1 2 3", "the cat", "", None]},
    "site": {"enum": ["embedding.sum", "decoder.0.attention.scores", "decoder.1.residual.out", "logits", "nothing"]},
    "weight": {"enum": ["decoder.0.attention.to_query", "decoder.0.feed_forward.up", "tokens", "nothing"]},
    "place": {"type": "integer", "minimum": 0, "maximum": 5},
    "head": {"type": "integer", "minimum": 0, "maximum": 4},
    "block": {"type": "integer", "minimum": 0, "maximum": 3},
    "rank": {"type": "integer", "minimum": 1, "maximum": 8},
    "index": {"enum": [[0, 0], [1, 0], [0, 0, 0], [3, 0, 0], [40, 0]]},
    # A map of 65,536 tokens takes a minute.
    "tokens": {"type": "integer", "minimum": 0, "maximum": 1500},
}


def telling(interface: dict[str, Any], tile: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The interface with values that mean something."""
    found = deepcopy(interface)
    for schema in found["components"]["schemas"].values():
        for name in TELLING.keys() & schema.get("properties", {}).keys():
            schema["properties"][name] = TELLING[name]
    for parameter in found["paths"]["/api/map/tile/{model}/{name}/{level}/{row}/{column}"]["get"]["parameters"]:
        parameter["schema"] = tile[parameter["name"]]
    return found


def requests_for(web: TestClient) -> list[st.SearchStrategy[Case]]:
    """For each operation, requests that mean something, any that its description allows, and some that it does not."""
    interface = web.get("/api/openapi.json").json()
    opened = unpack(web.post("/api/map", json={"model": MAPPED, "text": "1 2 3", "tokens": 600}))[0]
    tile: dict[str, dict[str, Any]] = {"model": {"enum": [MAPPED]}, "name": {"enum": [opened["map"]]}}
    tile |= {name: {"type": "integer", "minimum": 0, "maximum": 3} for name in ("level", "row", "column")}
    reaching, plain = operations(telling(interface, tile)), operations(interface)
    return [
        *(one.as_strategy(generation_mode=GenerationMode.POSITIVE) for one in [*reaching, *plain]),
        *(one.as_strategy(generation_mode=GenerationMode.NEGATIVE) for one in reaching if one.path != "/api/start"),
    ]


def operations(interface: dict[str, Any]) -> list[Any]:
    return [found.ok() for found in schemathesis.openapi.from_dict(interface).get_all_operations()]


def ask_all(web: TestClient, requests: st.SearchStrategy[Case], count: int) -> Counter[tuple[str, int]]:
    """How often each path was answered by each status."""
    told: Counter[tuple[str, int]] = Counter()

    @seed(0)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests)
    def ask(case: Case) -> None:
        asked = case.as_transport_kwargs(base_url=BASE)
        named = {{"data": "content"}.get(name, name): value for name, value in asked.items() if name != "cookies"}
        answer = web.request(**named)
        told[case.path, answer.status_code] += 1
        assert answer.status_code < 500, answer.text

    ask()
    return told


@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
def test_no_request_is_answered_by_a_fault(count: int) -> None:
    told: Counter[tuple[str, int]] = Counter()
    with client() as web:
        asked = requests_for(web)
        # Some operations have fewer requests than their share.
        for one in asked:
            told += ask_all(web, one, 1 + count * 12 // 10 // len(asked))
    assert told.total() >= count
    paths, answered = {path for path, _ in told}, {path for path, status in told if status == 200}
    assert len(answered) >= REACHED * len(paths), paths - answered
