"""The training's view: a model's record as the page gets it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pellucid
from pellucid.pretrained.facade import Origin
from pellucid.training.config import Record
from pellucid.training.recording import RECORD, read_recording
from pellucid.web.payloads import LARGEST
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app
from tests.web.recorded import STEPS, trained
from tests.web.serving import BASE, PORT, TestClient, random_model, unpack
from tests.web.test_views import refused


def client(folder: Path) -> TestClient:
    models = {
        "recorded": lambda: pellucid.load(folder),
        "forged": lambda: replace(random_model(), origin=Origin(folder)),
        "bare": random_model,
    }
    app = create_app(models, Address(port=PORT), Limits(per_second=1e6, burst=10**6))
    return TestClient(app, base_url=BASE)


def frame(step: int, blocks: int, heads: int, size: float = 1.0) -> dict[str, Any]:
    numbers = {"entropy": size, "sink": 0.5, "stable_rank": size, "effective_rank": [size, size]}
    return {"step": step, "heads": [{"block": b, "head": h, **numbers} for b in range(blocks) for h in range(heads)]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture
def forged(tmp_path: Path) -> Iterator[tuple[TestClient, Path]]:
    with client(tmp_path) as web:
        yield web, tmp_path / RECORD


def test_a_film_is_what_the_run_recorded(folder: Path) -> None:
    with client(folder) as web:
        head, arrays = unpack(web.post("/api/training", json={"model": "recorded"}))
    own = read_recording(folder)
    assert own is not None
    assert head["steps"] == STEPS
    assert head["losses"][0] is None
    assert head["losses"][1:] == list(own.losses[1:])
    assert head["losses"][-1] < head["losses"][1]
    assert [place["block"] for place in head["places"]] == [0, 1]
    for name, values in own.values.items():
        np.testing.assert_allclose(arrays[name], values, rtol=1e-6)


def test_a_model_without_a_record_says_so(forged: tuple[TestClient, Path]) -> None:
    web, _ = forged
    for name in ("bare", "forged"):
        assert unpack(web.post("/api/training", json={"model": name}))[0]["recorded"] is False


def test_the_lines_that_the_page_proposes_are_lines_of_a_run_file() -> None:
    script = (files("pellucid.web") / "static/views/training.js").read_text(encoding="utf-8")
    lines = re.search(r'RUN_FILE = ("[^"]+");', script)
    assert lines is not None
    proposed = Record(**tomllib.loads(json.loads(lines[1]))["record"])
    assert proposed.points > 0


def test_a_long_film_is_thinned_and_keeps_its_ends(forged: tuple[TestClient, Path]) -> None:
    web, file = forged
    file.write_text("".join(json.dumps(frame(step, 16, 16)) + "\n" for step in range(600)))
    response = web.post("/api/training", json={"model": "forged"})
    head, arrays = unpack(response)
    assert (head["steps"][0], head["steps"][-1]) == (0, 599)
    assert len(head["steps"]) == len(arrays["sink"]) == 400_000 // (16 * 16 * 4)
    assert len(response.content) < LARGEST


def test_numbers_that_do_not_fit_in_half_precision_still_fit(forged: tuple[TestClient, Path]) -> None:
    web, file = forged
    file.write_text("".join(json.dumps(frame(step, 16, 16, 1e9)) + "\n" for step in range(400)))
    response = web.post("/api/training", json={"model": "forged"})
    assert len(response.content) < LARGEST
    assert unpack(response)[1]["entropy"].max() == pytest.approx(1e9)


@pytest.mark.parametrize("text", ["{", json.dumps(frame(0, 400, 200)), '{"step": 0, "heads": [{"block": 0}]}'])
def test_a_bad_record_is_a_sentence(forged: tuple[TestClient, Path], text: str) -> None:
    web, file = forged
    file.write_text(text + "\n")
    refused(web, "/api/training", {"model": "forged"}, "model", "no_record")
