"""Two models over HTTP: the library's numbers, what has no partner, who is refused; two lanes without a deadlock."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from pellucid.errors import CheckpointError
from pellucid.lens.side_by_side import say, side_by_side
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.spectra.measure import spectrum
from pellucid.spectra.parameters import noise_like, parameter_change
from pellucid.spectra.spectrum import Effort
from pellucid.web.payloads import LARGEST
from pellucid.web.refusal import Refused
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app
from pellucid.web.work import Cancelled, Job, Lane
from tests.web.serving import BASE, PORT, WORDS, TestClient, random_model, tuned, unpack, with_words
from tests.web.test_work import request

TEXT = "the cat sat on the mat because it was tired"
IDS = "1 2 3 4 5 6"
QUERY = "decoder.1.attention.to_query.weight"


def encoder(**changes: Any) -> Model:
    return random_model(encoder_blocks=2, decoder_blocks=0, position=c.Learned(), context=64, **changes)


def broken() -> Model:
    raise CheckpointError("this folder holds half a model")


MODELS = {
    "words": lambda: with_words(random_model()),
    "words + tuned": tuned,
    "deep": lambda: with_words(random_model(decoder_blocks=4)),
    "ids": random_model,
    "pair": lambda: random_model(encoder_blocks=2, decoder_blocks=2, position=c.Sinusoidal()),
    "encoder": encoder,
    "tagger": lambda: encoder(head=c.Tag(labels=3)),
    "linear": lambda: random_model(attention=c.Linear(features=c.EluPlusOne())),
    "large": lambda: random_model(vocab=30),
    "broken": broken,
}


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    app = create_app(MODELS, Address(port=PORT), Limits(per_second=1e6, burst=10**6))
    with TestClient(app, base_url=BASE) as opened:
        yield opened


def asked(other: str = "words + tuned", model: str = "words", text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": model, "other": other, "text": text, **more}


def refused(web: TestClient, path: str, body: Any, field: str, code: str) -> str:
    response = web.post(f"/api/compare{path}", json=body)
    assert response.status_code == 422, response.text
    said = response.json()
    assert (said["field"], said["code"]) == (field, code)
    return str(said["message"])


# --- what both say ---


def test_predictions_are_those_of_the_library(web: TestClient) -> None:
    found = web.post("/api/compare", json=asked()).json()
    models = with_words(random_model()), tuned()
    ids = (tuple(models[0].encode(TEXT)),)
    own = side_by_side(*(say(one.plain(), ids) for one in models))
    assert found["together"] == own.to_json() | {"losses": list(own.losses or ())}
    assert (found["same"], found["apart"], found["odd"], found["alone"]) == (False, None, None, None)
    assert found["tokens"][0] == found["tokens"][1] == TEXT.split()
    assert max(place["variation"] for place in found["together"]["places"]) > 0.01


def test_the_same_model_twice_differs_by_exactly_nothing(web: TestClient) -> None:
    found = web.post("/api/compare", json=asked("words")).json()
    assert found["same"]
    assert found["together"]["identical"]
    assert {place["variation"] for place in found["together"]["places"]} == {0}
    weights = web.post("/api/compare/weights", json=asked("words")).json()["parameters"]
    assert not any(one["differs"] for one in weights)
    _, arrays = unpack(web.post("/api/compare/heads", json=asked("words")))
    np.testing.assert_array_equal(arrays["first_own"], arrays["second_own"])
    head, arrays = unpack(web.post("/api/compare/head", json=asked("words", place=1, head=2)))
    assert (head["largest"], np.nanmax(np.abs(arrays["difference"]))) == (0, 0)


@pytest.mark.parametrize(
    ("model", "other", "apart"),
    [
        ("ids", "encoder", "kind"),
        ("ids", "pair", "texts"),
        ("encoder", "tagger", "kind"),
        ("ids", "large", "vocabulary"),
        ("pair", "pair", None),
        ("tagger", "tagger", None),
        ("ids", "linear", None),
    ],
)
def test_every_kind_of_model(web: TestClient, model: str, other: str, apart: str | None) -> None:
    body = asked(other, model, IDS, **({"target": "3 4"} if model == "pair" else {}))
    found = web.post("/api/compare", json=body).json()
    assert found["apart"] == apart
    assert (found["together"] is None) == (apart is not None)
    if apart:
        assert [len(one["places"][0]) for one in found["alone"]] == [5, 3 if other == "tagger" else 5]
    head, _ = unpack(web.post("/api/compare/heads", json=body))
    assert head["matched"] == (apart is None or other == "tagger")


def test_a_tagger_and_its_encoder_share_weights(web: TestClient) -> None:
    """Heads may differ: what both have is compared."""
    found = web.post("/api/compare", json=asked("tagger", "encoder", IDS)).json()
    assert found["odd"] is None
    names = {
        one["name"]
        for one in web.post("/api/compare/weights", json=asked("tagger", "encoder", IDS)).json()["parameters"]
    }
    assert "encoder.0.attention.to_query.weight" in names
    assert not any(name.startswith("head.") for name in names)


# --- weights ---


def test_weights_are_compared_one_by_one(web: TestClient) -> None:
    found = {one["name"]: one for one in web.post("/api/compare/weights", json=asked()).json()["parameters"]}
    own = parameter_change(random_model(), tuned(), QUERY)
    assert found[QUERY]["relative"] == pytest.approx(own.relative, rel=1e-12)
    assert found[QUERY]["ranks"] == {"numerical": 2, "effective": {"0.9": 2, "0.99": 2}, "of": 32, "factored": True}
    assert found["tokens.weight"] == {
        "name": "tokens.weight", "shape": [24, 32], "relative": 0.0, "differs": False, "ranks": None
    }  # fmt: skip


def test_the_curves_of_a_weight(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/compare/weight", json=asked(weight=QUERY)))
    own = parameter_change(random_model(), tuned(), QUERY)
    assert own.change is not None
    np.testing.assert_allclose(arrays["change"][:2], own.change.spectrum.singular_values[:2], rtol=1e-6)
    assert np.isnan(arrays["change"][2:]).all()
    noise = noise_like(own.change, own.size)
    np.testing.assert_allclose(arrays["noise"], noise.spectrum.singular_values, rtol=1e-6)
    assert head["noise"]["effective"]["0.9"] == noise.spectrum.ranks.at(0.9)
    weight = random_model().network.get_parameter(QUERY).detach().double()
    np.testing.assert_allclose(arrays["own"], torch.linalg.svdvals(weight), rtol=1e-6)
    assert unpack(web.post("/api/compare/weight", json=asked(weight="tokens.weight")))[0]["noise"] is None


def test_models_of_other_shapes_have_no_weights_in_common(web: TestClient) -> None:
    found = web.post("/api/compare", json=asked("deep")).json()
    assert found["odd"] == {"name": "decoder.3.attention.to_key.bias", "first": None, "second": [32]}
    assert found["apart"] is None
    assert "differ in shape" in refused(web, "/weights", asked("deep"), "other", "odd_shape")
    refused(web, "/weight", asked("deep", weight=QUERY), "other", "odd_shape")


# --- heads ---


def test_heads_are_measured_in_both(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/compare/heads", json=asked()))
    assert head["matched"]
    for name, model in (("first", with_words(random_model())), ("second", tuned().plain())):
        found = spectrum(model, TEXT, effort=Effort(tau=(0.9, 0.99)))
        column = head["models"][0]["names"].index("rank_0.9_high")
        wanted = [one.measured.spectrum.effective[0.9][1] for one in found.heads]
        assert arrays[f"{name}_own"][:, :, column].reshape(-1).tolist() == wanted
    other, arrays = unpack(web.post("/api/compare/heads", json=asked("deep")))
    assert not other["matched"]
    assert (arrays["first_own"].shape[0], arrays["second_own"].shape[0]) == (3, 4)


def test_one_head_and_its_difference(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/compare/head", json=asked(place=1, head=2)))

    def weights(model: Model) -> Any:
        network, seen = model.network.with_kernel("reference"), []
        site = network.get_submodule("decoder.1.attention.weights")
        site.register_forward_hook(lambda module, inputs, value: seen.append(value[0, 2].double().numpy()))
        network(torch.tensor([model.encode(TEXT)]))
        return seen[0]

    with torch.no_grad():
        first, second = weights(with_words(random_model())), weights(tuned())
    seen = np.tril(np.ones_like(first, bool))
    np.testing.assert_allclose(arrays["difference"][seen], (second - first)[seen], atol=1e-6)
    assert np.isnan(arrays["difference"][~seen]).all()
    assert (head["verified"], head["shape"]) == (True, [10, 10])
    assert head["relative"] == pytest.approx(np.linalg.norm(second - first) / np.linalg.norm(first), rel=1e-5)


# --- who is refused, and how much is sent ---


def test_what_is_not_there_gets_a_sentence(web: TestClient) -> None:
    refused(web, "", asked(model="nothing"), "model", "no_model")
    refused(web, "", asked("nothing"), "other", "no_model")
    refused(web, "", asked(text=" "), "text", "empty")
    refused(web, "", asked("ids"), "other", "ids")
    assert "half a model" in refused(web, "", asked("broken"), "other", "model")
    assert "256" in refused(web, "", asked(text="the " * 257), "text", "long")
    refused(web, "", asked("encoder", "ids", "1 " * 65), "other", "long")
    refused(web, "/weight", asked(weight="nothing"), "weight", "no_weight")
    refused(web, "/head", asked(place=9, head=0), "head", "no_head")
    refused(web, "/head", asked("words", "deep", place=3, head=0), "other", "no_pair")
    refused(web, "/head", asked(place=-1, head=0), "place", "too_low")


def test_no_answer_is_over_two_megabytes(web: TestClient) -> None:
    long = asked(text=" ".join(WORDS.split()[(k * k * 7) % 20] for k in range(256)))
    for path, body in (
        ("", {}),
        ("/weights", {}),
        ("/weight", {"weight": QUERY}),
        ("/heads", {}),
        ("/head", {"place": 2, "head": 3}),
    ):
        response = web.post(f"/api/compare{path}", json=long | body)
        assert response.status_code == 200, response.text
        assert len(response.content) < LARGEST / 4
    _, arrays = unpack(web.post("/api/compare/head", json=long | {"place": 2, "head": 3}))
    assert {one.dtype for one in arrays.values()} == {np.dtype(np.float16)}


# --- two lanes ---


def test_opposite_orders_do_not_wait_for_each_other(web: TestClient) -> None:
    pairs = [("words", "words + tuned"), ("words + tuned", "words"), ("words", "deep"), ("deep", "words + tuned")] * 4

    def ask(pair: tuple[str, str]) -> float:
        found = web.post("/api/compare", json=asked(pair[1], pair[0])).json()
        return float(found["together"]["places"][3]["variation"])

    with ThreadPoolExecutor(8) as crowd:
        found = list(crowd.map(ask, pairs, timeout=60))
    assert found[0] == found[1]
    assert found[:4] * 4 == found


def test_a_call_within_two_lanes_has_both_to_itself() -> None:
    async def run() -> tuple[list[str], int]:
        first, second, order = Lane(4, 5.0), Lane(4, 5.0), list[str]()

        def slow(name: str) -> Any:
            def call(job: Job) -> None:
                order.append(f"{name} begins")
                time.sleep(0.02)
                order.append(f"{name} ends")

            return call

        both = first.run(request(), lambda job: second.run_within(slow("both"), job), Job())
        await asyncio.gather(
            both, second.run(request(), slow("second"), Job()), first.run(request(), slow("first"), Job())
        )
        left = first.inside + second.inside
        first.close()
        second.close()
        return order, left

    order, left = asyncio.run(run())
    start = order.index("both begins")
    assert order[start + 1] == "both ends"
    assert (len(order), left) == (6, 0)


def test_whoever_waits_for_a_second_lane_can_go_away() -> None:
    async def run() -> None:
        first, second, hold = Lane(2, 5.0), Lane(2, 5.0), threading.Event()
        gone, called = asyncio.Event(), list[int]()
        second.thread.submit(hold.wait, 5)
        job = Job()
        waiting = asyncio.create_task(
            first.run(request(gone), lambda own: second.run_within(lambda _: called.append(1), own), job)
        )
        while second.inside == 0:
            await asyncio.sleep(0.005)
        assert job.state == "waiting"
        gone.set()
        with pytest.raises(Cancelled):
            await waiting
        # The first lane is free although the second is not.
        assert await first.run(request(), lambda own: 7, Job()) == 7
        hold.set()
        assert await second.run(request(), lambda own: 8, Job()) == 8
        assert (called, first.inside, second.inside) == ([], 0, 0)
        first.close()
        second.close()

    asyncio.run(run())


def test_a_call_under_way_in_two_lanes_stops_and_frees_both() -> None:
    async def run() -> None:
        first, second = Lane(2, 5.0), Lane(2, 5.0)
        gone, steps = asyncio.Event(), list[int]()

        def long(job: Job) -> None:
            for step in range(1000):
                job.check()
                steps.append(step)
                time.sleep(0.005)

        task = asyncio.create_task(first.run(request(gone), lambda own: second.run_within(long, own), Job()))
        while not steps:
            await asyncio.sleep(0.005)
        gone.set()
        with pytest.raises(Cancelled):
            await task
        for lane in (first, second):
            assert await lane.run(request(), lambda own: 7, Job()) == 7
            lane.close()
        assert 0 < len(steps) < 200

    asyncio.run(run())


def test_a_full_second_lane_says_so() -> None:
    async def run() -> None:
        first, second, hold = Lane(2, 5.0), Lane(0, 5.0), threading.Event()
        blocking = asyncio.create_task(second.run(request(), lambda own: hold.wait(5), Job()))
        await asyncio.sleep(0.02)
        with pytest.raises(Refused) as told:
            await first.run(request(), lambda own: second.run_within(lambda _: 1, own), Job())
        assert told.value.status == 429
        hold.set()
        assert await blocking
        first.close()
        second.close()

    asyncio.run(run())
