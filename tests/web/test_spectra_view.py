"""Spectra over HTTP: what the library says, the model's run at a rank, and who is refused."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from pellucid.errors import InputError
from pellucid.lens.edit import Replace, edit
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.spectra.measure import spectrum
from pellucid.spectra.spectrum import Effort
from pellucid.spectra.watch import Place
from pellucid.web import head_grid
from pellucid.web.low_rank import open_head, run_at
from pellucid.web.payloads import LARGEST
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app
from pellucid.web.shelf import Book
from pellucid.web.work import Lane
from tests.web.serving import BASE, PORT, WORDS, TestClient, random_model, unpack, with_words

TEXT = "the cat sat on the mat because it was tired"
IDS = "1 2 3 4 5 6"


def encoder(**changes: Any) -> Model:
    return random_model(encoder_blocks=2, decoder_blocks=0, position=c.Learned(), context=64, **changes)


MODELS = {
    "words": lambda: with_words(random_model()),
    "pair": lambda: random_model(encoder_blocks=2, decoder_blocks=2, position=c.Sinusoidal()),
    "grouped": lambda: random_model(key_value_heads=2),
    "encoder": encoder,
    "tagger": lambda: encoder(head=c.Tag(labels=3)),
    "classifier": lambda: encoder(head=c.Classify(labels=3)),
    "pooler": lambda: encoder(head=c.Pool()),
    "linformer": lambda: encoder(attention=c.Linformer(rank=4)),
    "relu": lambda: random_model(attention=c.NormalizedRelu()),
    "linear": lambda: random_model(attention=c.Linear(features=c.EluPlusOne())),
}


def exact(model: Model) -> Model:
    return Model(model.config, model.network.double())


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    app = create_app(MODELS, Address(port=PORT), Limits(per_second=1e6, burst=10**6))
    with TestClient(app, base_url=BASE) as opened:
        yield opened


def asked(model: str = "words", text: str = TEXT, **more: Any) -> dict[str, Any]:
    return {"model": model, "text": text, **more}


def at(web: TestClient, rank: int, model: str = "words", text: str = TEXT, **more: Any) -> dict[str, Any]:
    return unpack(web.post("/api/spectra/rank", json=asked(model, text, rank=rank, place=1, head=2) | more))[0]


def refused(web: TestClient, path: str, body: Any, field: str, code: str) -> str:
    response = web.post(f"/api/spectra{path}", json=body)
    assert response.status_code == 422, response.text
    said = response.json()
    assert (said["field"], said["code"]) == (field, code)
    return str(said["message"])


def test_the_grid_is_what_the_library_measures(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/spectra", json=asked()))
    found = spectrum(with_words(random_model()), TEXT, effort=Effort(tau=(0.9, 0.99)))
    assert [place["block"] for place in head["places"]] == [0, 1, 2]
    assert arrays["own"].shape == (3, 4, len(head["names"]))
    for name, of in (("own", "measured"), ("baseline", "baseline")):
        numbers = dict(zip(head["names"], arrays[name][1, 2], strict=True))
        measured = getattr(found.heads[6], of)
        assert (numbers["rank_0.9_low"], numbers["rank_0.9_high"]) == measured.spectrum.effective[0.9]
        assert numbers["stable"] == pytest.approx(measured.spectrum.stable, rel=1e-6)
        assert numbers["sink"] == pytest.approx(measured.statistics.sink, rel=1e-6)


def test_every_attention_of_two_texts(web: TestClient) -> None:
    body = asked("pair", "1 2 3 4 5", target="1 2 3")
    head, _ = unpack(web.post("/api/spectra", json=body))
    assert [(one["stack"], one["kind"]) for one in head["places"]][1:4] == [
        ("encoder", "self"),
        ("decoder", "self"),
        ("decoder", "cross"),
    ]
    one, arrays = unpack(web.post("/api/spectra/head", json=body | {"place": 3, "head": 1}))
    assert (one["site"], one["shape"], one["ranks"]) == ("decoder.0.cross", [3, 5], 3)
    assert arrays["values"].shape == (4, 3)


def test_a_head_and_its_curves(web: TestClient) -> None:
    head, arrays = unpack(web.post("/api/spectra/head", json=asked(place=1, head=2)))
    assert (head["exact"], head["ranks"], head["verified"]) == (True, 10, True)
    found = spectrum(with_words(random_model()), TEXT)
    values = np.array(found.heads[6].measured.spectrum.values)
    kept = values > 1e-5 * values[0]
    np.testing.assert_allclose(arrays["values"][2][kept], values[kept], rtol=1e-6)
    assert np.isnan(arrays["values"][2][~kept]).all()
    matrix = np.nan_to_num(arrays["picture"]).astype(np.float64)
    np.testing.assert_allclose(np.linalg.svd(matrix)[1], values, atol=1e-6)


def test_the_model_runs_on_with_the_truncated_head(web: TestClient) -> None:
    found = at(web, 3)
    model = with_words(random_model())
    ids = [model.encode(TEXT)]
    network = model.network.with_kernel("reference")
    site = network.get_submodule("decoder.1.attention.weights")

    def cut(module: Any, inputs: Any, value: torch.Tensor) -> torch.Tensor:
        u, s, v = np.linalg.svd(value[0, 2].double().numpy())
        changed = value.clone()
        changed[0, 2] = torch.tensor((u[:, :3] * s[:3]) @ v[:3])
        return changed

    with torch.no_grad():
        before = network(torch.tensor(ids)).softmax(-1)[0, -1].double().numpy()
        site.register_forward_hook(cut)
        after = network(torch.tensor(ids)).softmax(-1)[0, -1].double().numpy()
    assert found["outcome"]["variation"] == pytest.approx(abs(before - after).sum() / 2, abs=1e-6)
    first = found["outcome"]["entries"][0]
    assert (first["before"], first["after"]) == (
        pytest.approx(before.max(), abs=1e-6),
        pytest.approx(after[before.argmax()], abs=1e-6),
    )
    assert found["verified"]
    assert found["negative"] > 0


def test_errors_fall_with_the_rank_to_nothing(web: TestClient) -> None:
    errors = [at(web, rank)["error"] for rank in range(1, 11)]
    assert errors == sorted(errors, reverse=True)
    whole = at(web, 10)
    assert whole["error"] == 0
    assert whole["output"] < 1e-6
    assert whole["outcome"]["variation"] < 1e-6
    assert (whole["negative"], whole["appeared"]) == (0, 0)


@pytest.mark.parametrize(
    ("model", "kind"),
    [("grouped", "next"), ("encoder", "token"), ("tagger", "token"), ("classifier", "text"), ("pooler", "vector"),
     ("linformer", "token"), ("relu", "next"), ("linear", "next")],
)  # fmt: skip
def test_every_head_and_mechanism(web: TestClient, model: str, kind: str) -> None:
    cut, whole = at(web, 1, model, IDS), at(web, 4, model, IDS)
    assert cut["outcome"]["kind"] == kind
    assert cut["output"] > 0
    name = "vector" if kind == "vector" else "variation"
    assert cut["outcome"][name] > 1e-7
    if model == "linformer":  # four columns: that is all of it
        assert whole["error"] == 0
        assert whole["output"] < 1e-6


@pytest.mark.parametrize(
    ("model", "place"),
    [
        ("grouped", Place("decoder", 1, "self")),
        ("pair", Place("decoder", 1, "cross")),
        ("pair", Place("encoder", 0, "self")),
    ],
)
def test_a_long_text_needs_no_matrix(model: str, place: Place) -> None:
    """The run that replaces the head's output gives what replacing its weights gives."""
    book = Book(model, lambda: exact(MODELS[model]()), Lane(1, 60.0))
    ids: tuple[tuple[int, ...], ...] = (tuple((k * k * 7) % 20 for k in range(530)),)
    if model == "pair":
        ids = (*ids, (1, 2, 3, 4))
    opened = open_head(book, ids, place, 2, lambda done, total: None)
    assert not opened.found.exact
    assert opened.value is not None
    rank = min(9, opened.found.ranks - 1)
    output, edited = run_at(book, ids, opened, rank)
    replaced = Replace(opened.found.rows(rank), (0, 2))
    text, *target = [[list(one)] for one in ids]
    again = edit(book.formed, text, {f"{opened.site}.weights": replaced}, *target)
    torch.testing.assert_close(edited.after, again.after, rtol=0, atol=1e-12)
    torch.testing.assert_close(edited.before, again.before, rtol=0, atol=1e-12)
    assert edited.largest_change > 1e-8
    down, across = opened.each
    small, near = opened.picture_at(rank), opened.found.rows(rank).numpy()
    whole = opened.rows(slice(0, opened.shape[0])).numpy()
    assert opened.picture[3, 1] == pytest.approx(whole[3 * down : 4 * down, across : 2 * across].mean(), abs=1e-15)
    part = near[3 * down : 4 * down, across : 2 * across]
    assert small[3, 1] == pytest.approx(part.mean(), abs=1e-12)
    assert small.shape == opened.picture.shape
    assert output.shape == opened.output.shape
    book.lane.close()


def test_no_answer_is_over_two_megabytes(web: TestClient) -> None:
    long = asked(text=" ".join(WORDS.split()[(k * k * 7) % 20] for k in range(600)))
    for path, body in (("", {}), ("/head", {"place": 2, "head": 3}), ("/rank", {"place": 2, "head": 3, "rank": 128})):
        response = web.post(f"/api/spectra{path}", json=long | body)
        assert response.status_code == 200, response.text
        assert len(response.content) < LARGEST / 4
    message = refused(web, "/rank", long | {"place": 2, "head": 3, "rank": 129}, "rank", "no_rank")
    assert "1 to 128" in message


def test_what_is_not_there_gets_a_sentence(web: TestClient) -> None:
    refused(web, "", asked(text=" "), "text", "empty")
    refused(web, "", asked(text="the " * 5000), "text", "long")
    refused(web, "/head", asked(place=9, head=0), "head", "no_head")
    refused(web, "/head", asked(place=0, head=9), "head", "no_head")
    refused(web, "/rank", asked(place=0, head=0, rank=0), "rank", "too_low")
    refused(web, "/rank", asked(place=0, head=0, rank=11), "rank", "no_rank")
    refused(web, "/rank", asked("pair", IDS, target="x", place=0, head=0, rank=1), "target", "ids")


def test_the_library_says_why_there_is_no_spectrum(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no matrix-free operator" in refused(web, "", asked("linear", "1 2 3 " * 180), "text", "no_spectrum")

    def blind(*arguments: Any, **options: Any) -> Any:
        raise InputError("every query of this head may look at nothing")

    monkeypatch.setattr(head_grid, "spectrum", blind)
    assert "nothing" in refused(web, "", asked("relu", "1 2 3 4 5 6 7"), "text", "no_spectrum")
