"""The spectra as a person uses them: choose a head, slide its rank, see what is left."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_pages import LANGUAGES, TEXT, WORDS, Visit, state, until, visit  # noqa: F401

LONG = " ".join(TEXT.split() * 28)


def slide(page: Any, rank: int) -> None:
    page.locator("#field-rank").fill(str(rank))
    page.wait_for_selector(f".rank-body[data-rank='{rank}']")


def error(page: Any) -> float:
    return float(page.locator("[data-tile=matrix] .big").inner_text().removesuffix(" %"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_spectra(visit: Visit, language: str) -> None:  # noqa: F811
    page = visit("spectra", lang=language, **WORDS, scheme="dark" if language == "zh" else "light")
    assert page.locator(".rank-cell").count() == 12
    assert {"en": "With random weights", "zh": "随机权重"}[language] in page.locator(".rank-told .told").inner_text()
    page.locator(".rank-cell").nth(6).hover()
    said = {"en": "block 1, head 2: effective rank", "zh": "块 1\uff0c头 2\uff1a有效秩"}[language]
    assert said in page.locator(".rank-told .readout").inner_text()
    page.locator(".rank-cell").nth(6).click()
    until(page, lambda: "place=1&head=2" in state(page))
    page.locator(".told-head h2", has_text={"en": "block 1, head 2", "zh": "块 1\uff0c头 2"}[language]).wait_for()
    assert page.locator(".told-head path.curve.other").count() == 4  # three curves and one in the key
    assert page.locator("tr[data-fact='rank.9'] td").count() == 2
    slide(page, 2)
    rough = error(page)
    assert rough > 10
    assert page.locator("[data-matrix] canvas.heat").count() == 3
    assert int(page.locator(".odd").get_attribute("data-negative") or 0) > 0
    assert page.locator(".compared tbody tr").count() >= 5
    slide(page, 19)
    assert error(page) == 0
    page.wait_for_selector(".fine")
    assert page.locator("[data-tile=matrix] .badge.good").count() == 1
    slide(page, 4)
    assert 0 < error(page) < rough
    until(page, lambda: "rank=4" in state(page))


def test_arrow_keys_choose_a_head(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", **WORDS)
    page.locator(".rank-cell[aria-pressed=true]").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    page.locator(".told-head h2", has_text="block 1, head 1").wait_for()
    assert page.evaluate("document.activeElement.dataset.row + ',' + document.activeElement.dataset.column") == "1,1"
    assert page.locator(".rank-cell[tabindex='0']").count() == 1
    page.locator("#field-rank").focus()
    before = page.locator(".rank-slider output").inner_text()
    page.keyboard.press("ArrowRight")
    until(page, lambda: page.locator(".rank-slider output").inner_text() != before)


def test_colours_against_random_weights(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", place=1, head=2, **WORDS)
    plain = page.locator(".rank-cell").nth(6)
    rank, colour = plain.inner_text(), plain.evaluate("(cell) => cell.style.background")
    page.locator("#against-random").click()
    until(page, lambda: plain.inner_text().startswith("\u00d7"))
    assert plain.evaluate("(cell) => cell.style.background") != colour
    page.locator("[id='tau-0.99']").click()
    until(page, lambda: "tau=0.99" in state(page))
    page.locator("#against-length").click()
    until(page, lambda: plain.inner_text().isdigit() and int(plain.inner_text()) > int(rank))
    assert "hold 99 %" in page.locator(".rank-told .told").inner_text()


def test_a_shared_address_and_a_fast_slider(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", place=2, head=3, rank=5, **WORDS)
    assert page.locator(".rank-slider output").inner_text() == "Rank 5 of 19"
    assert page.locator(".rank-body").get_attribute("data-rank") == "5"
    for rank in (1, 3, 6, 9, 12, 8):  # older places are overtaken
        page.locator("#field-rank").fill(str(rank))
    page.wait_for_selector(".rank-body[data-rank='8']")
    page.wait_for_timeout(300)
    assert page.locator(".rank-body").get_attribute("data-rank") == "8"


def test_cross_attention(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", model="pair", text="1 2 3 4 5 6", target="1 2 3", place=3)
    assert page.locator(".rank-grid span").all_inner_texts() == [
        "encoder 0", "encoder 1", "block 0", "block 0, cross", "block 1", "block 1, cross"
    ]  # fmt: skip
    assert page.locator("#field-rank").get_attribute("max") == "3"


def test_a_long_text_has_fewer_ranks(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", expect=("none",), model="words", text=LONG)
    page.wait_for_selector("main[data-ready=spectra]", timeout=60_000)
    assert page.locator("#field-rank").get_attribute("max") == "128"
    assert "128 of 532 ranks" in page.locator("main").inner_text()
    slide(page, 40)
    assert page.locator("[data-tile=matrix] .badge.good").count() == 1


def test_a_refusal_stands_beside_the_text(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", expect=("422",), lang="zh", model="linear", text="1 2 3 " * 180)
    page.wait_for_selector("#problem-text:not([hidden])")
    assert "no matrix-free operator" in page.locator("#problem-text").inner_text()
    assert "512" in page.locator("#problem-text").inner_text()
