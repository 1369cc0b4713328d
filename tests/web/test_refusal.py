"""Refusals: each has a sentence in both languages, and what the library says stands below it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import pellucid.web
from pellucid.web.refusal import LIMITS
from pellucid.web.security import Limits
from tests.web.serving import client
from tests.web.test_static import strings

# Nobody who uses the page gets these: other sites, clients that went away, addresses typed by hand.
UNSEEN = {"host", "origin", "cancelled", "no_file", "http"}
CODE = re.compile(r'(?:Refused|answer|refused_by)\(\s*(?:\d+|error), "(\w+)"')


def codes() -> set[str]:
    folder = Path(pellucid.web.__file__).parent
    found = {code for file in folder.rglob("*.py") for code in CODE.findall(file.read_text(encoding="utf-8"))}
    return found | {"invalid", *LIMITS.values()}


def test_every_code_has_a_sentence_in_both_languages() -> None:
    assert {"empty", "no_change", "too_low", "model", "busy"} <= codes()
    for language in ("en", "zh"):
        known = strings(language)
        assert [code for code in sorted(codes() - UNSEEN) if f"error.{code}" not in known] == []


def test_no_sentence_leans_on_the_librarys_english() -> None:
    for text in (*strings("en").values(), *strings("zh").values()):
        assert not re.search(r"\{(message|detail)\}", text)


@pytest.mark.parametrize(
    ("path", "body", "code", "said"),
    [
        ("attention", {"model": "words", "text": "the cat", "change": "mask_on"}, "no_change", "hides the future"),
        ("map", {"model": "linear", "text": "1 2"}, "no_map", "needs softmax attention"),
        ("spectra", {"model": "linear", "text": "1 2 3 " * 200}, "no_spectrum", "no matrix-free operator"),
        ("trace/values", {"model": "ids", "text": "1", "site": "logit"}, "no_site", "the nearest are logits"),
        ("positions", {"model": "ids", "length": 1}, "too_low", "greater than or equal to 2"),
        ("positions", {"model": "ids", "length": "long"}, "invalid", "valid integer"),
    ],
)
def test_the_librarys_words_are_the_detail(path: str, body: dict[str, Any], code: str, said: str) -> None:
    with client() as web:
        answer = web.post(f"/api/{path}", json=body)
    assert answer.status_code == 422
    assert answer.json()["code"] == code
    assert said in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "code", "values"),
    [
        ({"model": "words", "text": " "}, "empty", {}),
        ({"model": "words", "text": "cat " * 600}, "long", {"count": 600, "most": 512}),
        ({"model": "words", "text": "c" * 200_001}, "too_many_letters", {"limit": 200_000}),
        ({"model": "ids", "text": "1 x"}, "ids", {"most": 23}),
        ({"model": "worked-example", "text": "I hate"}, "unknown", {"words": "I, love, you, <pad>"}),
        ({"model": "nobody", "text": "I"}, "no_model", {"name": "nobody"}),
    ],
)
def test_what_a_sentence_is_filled_with(body: dict[str, str], code: str, values: dict[str, Any]) -> None:
    with client() as web:
        said = web.post("/api/trace", json=body).json()
    assert (said["code"], said["values"], said["field"] in body) == (code, values, True)
    text = strings("zh")[f"error.{code}"]
    assert set(re.findall(r"\{(\w+)\}", text)) == set(values)


def test_a_text_that_is_too_large_says_how_large_it_may_be() -> None:
    with client(Limits(body=100)) as web:
        said = web.post("/api/trace", json={"model": "words", "text": "the " * 100}).json()
    assert (said["code"], said["values"]) == ("large", {"most": 100})
