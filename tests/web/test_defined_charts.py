"""Charts that the library defines: the measured numbers in them, their words in both languages, and what draws them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from pellucid.figures.gallery import GALLERY
from pellucid.spectra.measure import spectrum
from pellucid.spectra.results import Head
from pellucid.web import head_grid
from pellucid.web.payloads import LARGEST
from pellucid.web.views import spectra as subject
from tests.spectra.made_up import spectra as made_up
from tests.web.serving import TestClient, client, random_model, unpack, with_words
from tests.web.test_static import strings

TEXT = "the cat sat on the mat because it was tired"
FIGURES = get_args(subject.Drawn)
STATISTICS = {"sinks": ("sink", "heaviest"), "looks": ("entropy", "distance"), "decays": ("alpha", "r2")}


@pytest.fixture(scope="module")
def web() -> Iterator[TestClient]:
    with client() as opened:
        yield opened


def defined(web: TestClient, figure: str, text: str = TEXT) -> dict[str, Any]:
    response = web.post("/api/spectra/figure", json={"model": "words", "text": text, "figure": figure})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert len(response.content) < LARGEST
    found: dict[str, Any] = response.json()
    return found


def numbers(head: Head, of: str) -> dict[str, Any]:
    found = head.measured if of == "measured" else head.baseline
    assert found is not None
    return {**found.statistics.to_json(), **found.spectrum.decay.to_json()}


@pytest.mark.parametrize("figure", FIGURES)
def test_a_chart_holds_what_was_measured(web: TestClient, figure: str) -> None:
    (rows,) = defined(web, figure)["datasets"].values()
    heads = {(head.block, head.head): head for head in spectrum(with_words(random_model()), TEXT).heads}
    assert len(rows) == 2 * len(heads) == 24
    for row in rows:
        expected = numbers(heads[row["block"], row["number"]], row["of"])
        assert [row[name] for name in STATISTICS[figure]] == [
            pytest.approx(expected[name], rel=1e-9) for name in STATISTICS[figure]
        ]


def test_nothing_is_measured_for_a_chart(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"model": "words", "text": "a dog ran over the green hill"}
    unpack(web.post("/api/spectra", json=body))
    monkeypatch.delattr(head_grid, "spectrum")
    for figure in FIGURES:
        assert defined(web, figure, body["text"])["hconcat"]


def test_a_chart_without_numbers_is_neither_offered_nor_drawn(web: TestClient) -> None:
    body = {"model": "words", "text": "the"}
    assert unpack(web.post("/api/spectra", json=body))[0]["figures"] == ["sinks", "looks"]
    answer = web.post("/api/spectra/figure", json=body | {"figure": "decays"})
    assert (answer.status_code, answer.json()["code"]) == (422, "no_figure")


def test_too_many_heads_get_a_sentence(web: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LARGEST", 2000)
    answer = web.post("/api/spectra/figure", json={"model": "words", "text": TEXT, "figure": "sinks"})
    assert (answer.status_code, answer.json()["code"]) == (422, "many_heads")


def words_of(part: Any) -> Iterator[str]:
    """What a reader reads in a definition: titles, lists and the names of colours."""
    if isinstance(part, list):
        for one in part:
            yield from words_of(one)
    if not isinstance(part, dict):
        return
    yield from (part[key] for key in ("title", "text", "subtitle") if isinstance(part.get(key), str))
    yield from (name for name in part.get("scale", {}).get("domain", []) if isinstance(name, str))
    if "bind" in part:
        yield part["bind"]["name"].strip()
        for option in part["bind"]["options"]:
            yield from option.split()
    for key, value in part.items():
        if key != "datasets":
            yield from words_of(value)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_word_of_a_chart_is_in_both_languages(web: TestClient, figure: str) -> None:
    pair = {"model": "pair", "text": "1 2 3 4", "target": "1 2 3", "figure": figure}
    words = {*words_of(defined(web, figure)), *words_of(web.post("/api/spectra/figure", json=pair).json())}
    assert {"block", "measured", "random weights", "cross", "encoder"} < words
    english, chinese = strings("en"), strings("zh")
    for word in words:
        assert english[f"chart.{word}"] == word
        assert chinese[f"chart.{word}"] != word


@pytest.mark.parametrize("figure", FIGURES)
def test_the_page_calls_a_chart_what_the_gallery_calls_it(figure: str) -> None:
    known = strings("en")
    assert known[f"spectra.figure.{figure}"] == GALLERY[figure].title
    assert known[f"spectra.figure.{figure}.text"] == GALLERY[figure].words


def test_a_large_model_stays_below_two_megabytes() -> None:
    for figure in FIGURES:
        assert len(json.dumps(GALLERY[figure].draw(made_up(32, 32)).to_dict())) < LARGEST


def test_vega_comes_from_the_installed_package_and_is_asked_for_once(web: TestClient) -> None:
    found = web.get("/static/vega.js")
    assert found.headers["content-type"] == "text/javascript; charset=utf-8"
    assert found.headers["cache-control"] == "no-cache"
    assert "expressionInterpreter" in found.text
    assert found.text.rstrip().endswith("as default};")
    again = web.get("/static/vega.js", headers={"If-None-Match": found.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "export function fitted(" in web.get("/static/fit.js").text


def test_no_policy_is_weakened_for_it(web: TestClient) -> None:
    for path in ("/", "/static/vega.js"):
        policy = web.get(path).headers["content-security-policy"]
        assert "script-src 'self'; style-src 'self';" in policy
        assert "unsafe" not in policy
