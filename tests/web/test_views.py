"""Every endpoint: what it answers, to whom it says no, and how much it sends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pellucid.lens.trace import trace
from pellucid.model.positions import alibi_slopes
from pellucid.web.payloads import LARGEST
from tests.web.serving import TestClient, client, random_model, unpack, with_words

TEXT = "the cat sat on the mat because it was tired"
SCORES = "decoder.0.attention.scores"


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    with client() as opened:
        yield opened


def asked(model: str = "words", text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": model, "text": text, **more}


def refused(web: TestClient, path: str, body: Any, field: str | None, code: str) -> str:
    response = web.post(path, json=body)
    assert response.status_code == 422, response.text
    said = response.json()
    assert (said["field"], said["code"]) == (field, code)
    assert said["message"]
    return str(said["message"])


# --- start ---


def test_the_start_lists_models_views_and_colours(web: TestClient) -> None:
    start = web.get("/api/start").json()
    assert start["models"][0]["name"] == "worked-example"
    assert start["views"] == ["trace", "attention", "map", "spectra", "positions", "cache", "compare", "training"]
    assert {len(colours) for colours in start["palettes"].values()} == {256}


def test_the_interface_describes_itself(web: TestClient) -> None:
    paths = web.get("/api/openapi.json").json()["paths"]
    assert {"/api/start", "/api/model", "/api/trace/cell", "/api/attention/head", "/api/map", "/api/positions"} <= set(
        paths
    )


def test_a_model_is_described(web: TestClient) -> None:
    example = web.post("/api/model", json={"model": "worked-example"}).json()
    assert (example["example"], example["context"], example["worked_example"]) == ("I love", 2, True)
    assert web.post("/api/model", json={"model": "ids"}).json()["words"] is False
    assert web.post("/api/model", json={"model": "pair"}).json()["two_texts"] is True


def test_a_path_is_no_model(web: TestClient) -> None:
    for name in ("../words", "/etc/passwd", "src/pellucid/pretrained/bundled/worked-example", ""):
        refused(web, "/api/model", {"model": name}, "model", "no_model")
    assert web.get("/static/../server.py").status_code == 404
    assert web.get("/static/%2e%2e/server.py").status_code == 404


def test_the_page_and_its_files_are_served(web: TestClient) -> None:
    assert "<main" in web.get("/").text
    assert web.get("/static/app.js").headers["content-type"].startswith("text/javascript")
    assert web.get("/static/none.js").status_code == 404


# --- trace ---


def test_a_trace_says_what_the_library_says(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/trace", json=asked()))
    own = trace(with_words(random_model()), TEXT)
    assert [step["site"] for step in head["steps"]] == [step.site for step in own.steps]
    assert all(step["verified"] and step["formula"].startswith("<math") for step in head["steps"])
    weights = own["decoder.1.attention.weights"].value[0].numpy()
    shown = arrays["decoder.1.attention.weights"]
    hidden = np.triu(np.ones(weights.shape[1:], bool), 1)
    assert np.isnan(shown[:, hidden]).all()
    np.testing.assert_allclose(shown[:, ~hidden], weights[:, ~hidden], rtol=1e-6)


def test_the_worked_example_has_the_note_beside_it(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/trace", json=asked("worked-example", "I love")))
    assert head["note"]["entries"] == 84
    assert set(arrays) == {step["site"] for step in head["steps"]}
    assert head["steps"][-1]["words"] == ["I", "love", "you", "<pad>"]
    assert unpack(web.post("/api/trace", json=asked("worked-example", "love I")))[0]["note"] is None


def test_values_of_one_step(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/trace/values", json=asked(site=SCORES)))
    assert head["each"] == [1, 1]
    assert arrays[SCORES].shape == (4, 10, 10)
    refused(web, "/api/trace/values", asked(site="decoder.9.attention.scores"), "text", "no_site")


def test_a_long_step_is_pooled_to_its_size(web: TestClient) -> None:
    long = asked(text=" ".join(["the cat sat on the mat ,"] * 70))
    first = web.post("/api/trace", json=long)
    assert len(first.content) < LARGEST
    head, arrays = unpack(web.post("/api/trace/values", json=long | {"site": SCORES}))
    assert head["each"] == [2, 1]
    assert arrays[SCORES].dtype == np.float16
    assert arrays[SCORES].nbytes <= 1_000_000


@pytest.mark.parametrize("model", ["words", "pair", "encoder", "t5", "alibi", "linear", "worked-example"])
def test_every_step_opens_its_arithmetic(web: TestClient, model: str) -> None:
    text = "I love" if model == "worked-example" else "1 2 3" if model != "words" else "the cat sat"
    body = asked(model, text)
    head, arrays = unpack(web.post("/api/trace", json=body))
    sizes = {
        step["site"]: ([1, *step["shape"]] if len(step["shape"]) == 2 else step["shape"]) for step in head["steps"]
    }
    for step in head["steps"]:
        index = [size - 1 for size in step["shape"]]
        found = web.post("/api/trace/cell", json=body | {"site": step["site"], "index": index}).json()
        assert found["verified"], found
        value = arrays[step["site"]].reshape(step["shape"])[tuple(index)]
        assert np.isnan(value) if found["value"] is None else found["value"] == pytest.approx(float(value), rel=1e-5)
        for operand in found["operands"]:
            bounds = [operand[name] for name in ("slices", "rows", "columns")]
            for (first, end), size in zip(bounds, sizes[operand["site"]], strict=True):
                assert 0 <= first < end <= size


def test_the_operands_of_a_score_are_its_query_and_its_key(web: TestClient) -> None:
    found = web.post("/api/trace/cell", json=asked(site=SCORES, index=[1, 5, 2])).json()
    query, key = found["operands"]
    assert (query["site"], query["slices"], query["rows"]) == ("decoder.0.attention.query", [1, 2], [5, 6])
    assert (key["site"], key["slices"], key["rows"]) == ("decoder.0.attention.key", [1, 2], [2, 3])


def test_bad_texts_get_a_sentence_beside_their_field(web: TestClient) -> None:
    refused(web, "/api/trace", asked(text="  "), "text", "empty")
    refused(web, "/api/trace", asked("ids", "one two"), "text", "ids")
    refused(web, "/api/trace", asked("ids", "99999"), "text", "ids")
    refused(web, "/api/trace", asked(text="the " * 600), "text", "long")
    refused(web, "/api/trace", asked("encoder", "1 " * 65), "text", "long")
    refused(web, "/api/trace", asked("nobody"), "model", "no_model")
    refused(web, "/api/trace", asked("pair", "1 2", target="x"), "target", "ids")
    refused(web, "/api/trace", {"model": "words"}, "text", "invalid")
    refused(web, "/api/trace", asked(file="/etc/passwd"), "file", "invalid")
    assert "love" in refused(web, "/api/trace", asked("worked-example", "I love cats"), "text", "unknown")
    refused(web, "/api/trace/cell", asked(site=SCORES, index=[0, 99, 0]), "text", "no_cell")
    refused(web, "/api/trace/cell", asked(site=SCORES, index=[0, 0]), "text", "no_cell")
    refused(web, "/api/trace/cell", asked(site=SCORES, index=[]), "index", "invalid")
    for body in (rb'{"model":"words","text":"\ud800"}', rb'{"model":"\ud800","text":"a"}', rb'{"\ud800":"words"}'):
        answer = web.post("/api/trace", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        assert answer.json()["message"]
    for body in (b"", b"{", b"[]", b"null", b"\xff"):
        answer = web.post("/api/trace", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422)


# --- attention ---


def test_thumbnails_of_every_head(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/attention", json=asked()))
    assert arrays["own"].shape[:2] == (3, 4)
    assert [place["block"] for place in head["places"]] == [0, 1, 2]
    assert all(place["verified"] for place in head["places"])
    head, _ = unpack(web.post("/api/attention", json=asked("pair", "1 2 3", target="4 5")))
    assert [(place["stack"], place["kind"]) for place in head["places"]][1:4] == [
        ("encoder", "self"),
        ("decoder", "self"),
        ("decoder", "cross"),
    ]


def test_one_head_and_the_difference_of_a_change(web: TestClient) -> None:
    chosen = asked(place=1, head=2, change="temperature", temperature=0.1)
    _, arrays = unpack(web.post("/api/attention/head", json=chosen))
    for name in ("own", "changed"):
        np.testing.assert_allclose(np.nansum(arrays[name], 1), 1, rtol=1e-5)
    assert np.nanmax(arrays["changed"][5:]) > np.nanmax(arrays["own"][5:])
    head, _ = unpack(web.post("/api/attention", json=asked(change="temperature", temperature=0.1)))
    assert head["largest_change"] > 0
    assert head["compared"]


@pytest.mark.parametrize(
    "change", ["no_scaling", "keys_queries", "cosine", "distance", "relu", "mask_off", "positions_off"]
)
def test_every_change(web: TestClient, change: str) -> None:
    head, arrays = unpack(web.post("/api/attention", json=asked(change=change)))
    assert arrays["own"].shape == arrays["changed"].shape
    assert head["largest_change"] > 0


def test_a_change_that_the_model_does_not_allow(web: TestClient) -> None:
    refused(web, "/api/attention", asked(change="mask_on"), "change", "no_change")
    refused(web, "/api/attention", asked("linear", "1 2", change="relu"), "change", "no_change")
    refused(web, "/api/attention", asked(change="dropout"), "change", "invalid")
    refused(web, "/api/attention", asked(temperature=0), "temperature", "not_above")
    refused(web, "/api/attention/head", asked(place=99, head=0), "head", "no_head")
    unpack(web.post("/api/attention", json=asked("encoder", "1 2 3", change="mask_on")))


def test_written_tokens_become_rows(web: TestClient) -> None:
    short = asked(text="the cat", written=3)
    head, _ = unpack(web.post("/api/attention", json=short))
    assert len(head["tokens"]) == 5
    model = with_words(random_model())
    ids = model.encode("the cat")
    for _ in range(3):
        ids.append(int(model.logits([ids])[0, -1].argmax()))
    assert head["tokens"] == [model.decode([one]) for one in ids]
    refused(web, "/api/attention", asked("worked-example", "I", written=5), "written", "no_room")
    refused(web, "/api/attention", asked("words", "the", written=99), "written", "too_high")


# --- map ---


def test_tiles_are_the_means_of_the_weights(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/map", json=asked(tokens=600, block=1, head=2)))
    assert (head["queries"], head["levels"], len(head["tokens"])) == (600, 3, 600)
    model = with_words(random_model())
    ids = (model.encode(TEXT) * 60)[:600]
    weights = trace(model, [ids], sites=["decoder.1.attention.weights"]).steps[0].value[0, 2].numpy()
    for level, row, column in ((0, 0, 0), (1, 1, 0), (2, 2, 1)):
        cell = 2 ** (2 - level)
        path = f"/api/map/tile/words/{head['map']}/{level}/{row}/{column}"
        tile = unpack(web.get(path))[1]["tile"] / head["scale"]
        part = weights[row * 256 * cell : (row + 1) * 256 * cell, column * 256 * cell : (column + 1) * 256 * cell]
        high, wide = (-(-size // cell) for size in part.shape)
        means = [
            [part[i * cell : (i + 1) * cell, j * cell : (j + 1) * cell].mean() for j in range(wide)]
            for i in range(high)
        ]
        np.testing.assert_allclose(tile, means, rtol=2e-3, atol=1e-7)
    seen = np.where(weights > 0, weights, 1)
    np.testing.assert_allclose(arrays["entropy"], -(weights * np.log(seen)).sum(1), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(arrays["sink"], weights[:, 0], rtol=1e-4)


def test_a_map_of_cross_attention_is_not_square(web: TestClient) -> None:
    head, _ = unpack(web.post("/api/map", json=asked("pair", "1 2 3 4 5", target="1 2", kind="cross")))
    assert (head["queries"], head["keys"]) == (2, 5)
    assert len(head["keys_tokens"]) == 5


def test_maps_that_are_not_there(web: TestClient) -> None:
    refused(web, "/api/map", asked(block=9), "head", "no_map")
    refused(web, "/api/map", asked(head=9), "head", "no_map")
    refused(web, "/api/map", asked("linear", "1 2"), "head", "no_map")
    refused(web, "/api/map", asked("encoder", "1 2", tokens=65, stack="encoder"), "tokens", "context")
    refused(web, "/api/map", asked(tokens=10**9), "tokens", "too_high")
    gone = web.get(f"/api/map/tile/words/{'0' * 32}/0/0/0")
    assert (gone.status_code, gone.json()["code"]) == (410, "map_closed")
    assert web.get("/api/map/tile/words/..%2f..%2fetc/0/0/0").status_code in (404, 422)
    head, _ = unpack(web.post("/api/map", json=asked()))
    assert web.get(f"/api/map/tile/words/{head['map']}/0/1/0").status_code == 422
    assert web.get(f"/api/map/tile/words/{head['map']}/7/0/0").status_code == 422


# --- positions ---


def test_positions_at_the_users_own_length(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/positions", json={"model": "words", "length": 100, "width": 16}))
    assert arrays["sinusoidal"].shape == (100, 16)
    assert arrays["sinusoidal"][3, 0] == pytest.approx(np.sin(3), abs=1e-3)
    assert arrays["rotary"][3, 0] == pytest.approx(3)
    assert head["slopes"] == alibi_slopes(8)
    assert arrays["alibi"][0, 7] == pytest.approx(-7 * 0.5)
    assert arrays["decay_rotary"][0] == pytest.approx(1)
    _, far = unpack(web.post("/api/positions", json={"model": "words", "length": 65536, "width": 256, "heads": 32}))
    assert far["places"][[0, -1]].tolist() == [0, 65535]


def test_a_models_own_positions(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/positions", json={"model": "t5", "length": 20}))
    assert head["own"] == "t5_buckets"
    assert arrays["own_bias"].shape == (4, 39)
    _, arrays = unpack(web.post("/api/positions", json={"model": "worked-example", "length": 20}))
    assert torch.tensor(arrays["own_vectors"]).shape == (2, 3)
    refused(web, "/api/positions", {"model": "t5", "length": 1}, "length", "too_low")
    refused(web, "/api/positions", {"model": "t5", "width": 5}, "width", "not_multiple")


# --- sizes ---


def test_no_answer_is_over_two_megabytes(web: TestClient) -> None:
    long = asked(text="the cat " * 256)
    bodies = {
        "/api/trace": long,
        "/api/attention": asked(text="the cat " * 512, change="no_scaling"),
        "/api/attention/head": asked(text="the cat " * 512, change="no_scaling", place=2, head=3),
        "/api/map": asked(tokens=4096),
        "/api/positions": {"model": "t5", "length": 65536, "width": 256, "heads": 32},
    }
    for path, body in bodies.items():
        response = web.post(path, json=body)
        assert response.status_code == 200, response.text
        assert len(response.content) < LARGEST, path
