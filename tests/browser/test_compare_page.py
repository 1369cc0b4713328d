"""Two models as a person compares them: choose the second, see what differs, follow a token, a weight, a head."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_pages import LANGUAGES, TEXT, WORDS, Visit, ready, state, until, visit  # noqa: F401

TUNED = {**WORDS, "other": "words + tuned"}


def tile(page: Any, name: str) -> str:
    return str(page.locator(f"[data-tile={name}]").inner_text())


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_base_and_its_fine_tune(visit: Visit, language: str) -> None:  # noqa: F811
    page = visit("compare", lang=language, **WORDS, scheme="dark" if language == "zh" else "light")
    assert page.locator("#field-other").input_value() == "words + tuned"
    assert {"en": "Another answer", "zh": "最可能答案"}[language] in tile(page, "predictions")
    assert {"en": "6 of 51", "zh": "51 个中的 6 个"}[language] in tile(page, "weights")
    assert {"en": "of rank 2 at most", "zh": "秩最多为 2"}[language] in tile(page, "weights")
    assert "→" in tile(page, "heads")
    assert page.locator(".chip").count() == 19
    page.locator(".chip").nth(4).click()
    until(page, lambda: "at=4" in state(page))
    after = {"en": "After “the” (token 4)", "zh": "在“the”\uff08词元 4\uff09之后"}[language]
    page.locator(".compare-predictions h3", has_text=after).wait_for()
    assert page.locator(".duel tbody tr").count() >= 5
    assert page.locator(".compare-weights .rank-cell").count() == 18
    assert page.locator("tr[data-fact=numerical] td").all_inner_texts() == ["2", "32"]
    assert page.locator(".compare-grids figure").count() == 3
    assert page.locator("[data-matrix] canvas.heat").count() == 3
    page.locator("[data-grid='1'] .rank-cell").nth(6).click()
    page.locator(".compare-pictures h3", has_text="decoder.1.attention").wait_for()
    assert "place=1&head=2" in state(page)
    assert page.locator(".compare-pictures .badge.good").count() == 1


def test_a_shared_address_shows_the_same(visit: Visit) -> None:  # noqa: F811
    weight = "decoder.2.attention.to_query.weight"
    page = visit("compare", lang="en", at=7, weight=weight, place=2, head=1, measure="entropy", **TUNED)
    assert page.locator(".chip[aria-pressed=true]").inner_text() == "it"
    assert page.locator(".weight-told h3").inner_text() == weight
    assert page.locator(".compare-pictures h3").inner_text() == "decoder.2.attention · head 1"
    assert page.locator("#field-measure").input_value() == "entropy"


def test_swapping_turns_the_difference_round(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", lang="en", **TUNED)
    before = page.locator("[data-grid='2'] .rank-cell").all_inner_texts()
    page.locator("#swap").click()
    until(page, lambda: page.locator("#field-model").input_value() == "words + tuned")
    ready(page, "compare")
    swapped = {"+": "\u2212", "\u2212": "+"}
    after = page.locator("[data-grid='2'] .rank-cell").all_inner_texts()
    assert after == [swapped.get(cell[0], cell[0]) + cell[1:] for cell in before]


def test_the_second_model_is_there_again_after_another_tab(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", lang="en", at=3, model="ids", text="1 2 3 4 5", other="linear")
    page.locator("#field-other").select_option("alibi")
    until(page, lambda: "other=alibi" in state(page))
    for view in ("trace", "compare"):
        page.locator(f"#tabs a[href^='#/{view}?']").click()
        ready(page, view)
        assert "other=alibi" in state(page)
        assert "at=3" not in state(page)
    assert page.locator("#field-other").input_value() == "alibi"
    page.go_back()
    page.go_back()
    ready(page, "compare")
    assert page.locator("#field-other").input_value() == "alibi"


def test_the_same_model_twice(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", lang="en", **{**WORDS, "other": "words"})
    assert "exactly zero" in page.locator("p.same").inner_text()
    assert "Equal to the bit" in tile(page, "predictions")
    assert "0 of 51" in tile(page, "weights")
    assert set(page.locator("[data-grid='2'] .rank-cell").all_inner_texts()) == {"="}
    assert "equal to the bit" in page.locator(".compare-pictures").inner_text()


def test_models_that_have_little_in_common(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", lang="en", model="ids", text="1 2 3 4 5", other="pair")
    assert "different shapes" in tile(page, "weights")
    assert page.locator(".compare-weights").is_hidden()
    assert "no common places" in page.locator(".compare-predictions .odd").inner_text()
    assert page.locator("[data-alone] .prediction").count() == 2
    assert page.locator(".compare-grids figure").count() == 2
    assert page.locator(".compare-grids .rank-cell[tabindex='0']").count() == 2
    assert page.locator(".compare-pictures").count() == 0
    page.locator("[data-alone=first] .chip").nth(1).click()
    page.locator("[data-alone=first] h3", has_text="After “2” (token 1)").wait_for()
    page.locator("#field-other").select_option("linear")
    until(page, lambda: "0 of 51" in tile(page, "weights"))
    page.locator(".compare-pictures h3").wait_for()


@pytest.mark.parametrize(
    ("language", "other", "said"),
    [
        ("en", "ids", "came without a tokenizer"),
        ("zh", "worked-example", "I, love, you"),
        ("en", "none", "not on the list"),
    ],
)
def test_a_refusal_stands_beside_the_second_model(visit: Visit, language: str, other: str, said: str) -> None:  # noqa: F811
    page = visit("compare", expect=("422",), lang=language, **{**WORDS, "other": other})
    page.wait_for_selector("#problem-other:not([hidden])")
    assert said in page.locator("#problem-other").inner_text()
    page.locator("#field-other").select_option("words + tuned")
    page.locator(".compare-pictures h3").wait_for()
    assert page.locator("#problem-other").is_hidden()
    assert page.locator("#field-other").get_attribute("aria-invalid") is None


def test_a_long_text_and_a_wrong_weight_are_refused_beside_their_fields(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", expect=("422",), lang="en", model="words", text="cat " * 300)
    page.wait_for_selector("#problem-text:not([hidden])")
    assert "256 are the most" in page.locator("#problem-text").inner_text()
    page = visit("compare", expect=("422",), lang="en", weight="nothing", **TUNED)
    page.wait_for_selector("#problem-weight:not([hidden])")
    page.locator(".compare-pictures h3").wait_for()


def test_the_keyboard_walks_through_tokens_weights_and_heads(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", lang="en", at=3, **TUNED)
    page.locator(".chip[aria-pressed=true]").focus()
    page.keyboard.press("ArrowRight")
    until(page, lambda: "at=4" in state(page))
    assert page.evaluate("document.activeElement.dataset.chip") == "4"
    for grid, name in ((".compare-weights", "weight=decoder.0.attention.to_key"), ("[data-grid='0']", "head=")):
        page.locator(f"{grid} .rank-cell[tabindex='0']").focus()
        page.keyboard.press("ArrowLeft")
        until(page, lambda name=name: name in state(page))


def test_the_grid_of_weights_shows_sizes_or_ranks(visit: Visit) -> None:  # noqa: F811
    page = visit("compare", lang="en", **TUNED)
    cells = page.locator(".compare-weights .rank-cell")
    assert cells.nth(0).inner_text() == "61.3"
    page.locator("#by-rank").click()
    until(page, lambda: cells.nth(0).inner_text() == "2")
    assert cells.nth(1).inner_text() == "="
    assert "by=rank" in state(page)
    cells.nth(0).hover()
    assert "effective rank 2 of 32" in page.locator(".weight-grid .readout").inner_text()
