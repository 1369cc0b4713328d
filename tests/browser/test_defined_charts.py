"""Charts that the library defines, as a person sees them: in both languages, on a telephone, by keyboard, offline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pellucid.report.spectrum_page import spectrum_page
from tests.browser.test_access import contrasts, nameless, sideways
from tests.browser.test_pages import LANGUAGES, WORDS, Visit, until, visit  # noqa: F401
from tests.spectra.made_up import spectra

PAIR = {"model": "pair", "text": "1 2 3 4 5 6", "target": "1 2 3"}
FIGURES = ("sinks", "looks", "decays")


def see_all(page: Any) -> None:
    for figure in FIGURES:
        page.locator(f"[data-figure={figure}]").scroll_into_view_if_needed()
        page.wait_for_selector(f"[data-figure={figure}] svg")


def circles(page: Any, figure: str = "sinks") -> Any:
    return page.locator(f"[data-figure={figure}] path[aria-roledescription=circle]")


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_charts_are_drawn(visit: Visit, language: str) -> None:  # noqa: F811
    page = visit("spectra", lang=language, **WORDS, scheme="dark" if language == "zh" else "light")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    see_all(page)
    assert sum(url.endswith("/static/vega.js") for url in asked) == 1
    assert [circles(page, figure).count() for figure in FIGURES] == [24, 24, 24]
    shown = page.locator("[data-figure=sinks] svg").text_content()
    for word in {"en": ("first key", "block", "measured"), "zh": ("第一个键", "块", "实测")}[language]:
        assert word in shown
    said = page.locator("[data-figure=looks] [role=graphics-document]").get_attribute("aria-label")
    assert said == page.locator("[data-figure=looks] > p").inner_text()
    circles(page).nth(6).hover()
    page.wait_for_selector("#vg-tooltip-element.visible")
    told = page.locator("#vg-tooltip-element").inner_text()
    assert {"en": "decoder 1", "zh": "解码器 1"}[language] in told
    assert contrasts(page) == []


def width_of_sinks(page: Any) -> float:
    """A chart that is being drawn anew has none yet."""
    box = page.locator("[data-figure=sinks] svg").bounding_box()
    return float("inf") if box is None else float(box["width"])


def test_a_list_chosen_by_keyboard_changes_every_chart_and_outlives_a_turn(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", **PAIR)
    see_all(page)
    assert nameless(page) == []
    before = circles(page, "decays").nth(0).get_attribute("aria-label")
    page.locator("[data-figure=sinks] select").focus()
    page.keyboard.press("End")
    lists = page.locator(".vega-bind select")
    until(page, lambda: lists.evaluate_all("(all) => all.map((one) => one.value)") == ["decoder cross"] * 3)
    until(page, lambda: circles(page, "decays").nth(0).get_attribute("aria-label") != before)
    assert "decoder 0 cross" in circles(page).nth(0).get_attribute("aria-label")
    wide = width_of_sinks(page)
    page.set_viewport_size({"width": 390, "height": 844})
    until(page, lambda: width_of_sinks(page) < min(wide, 390))
    assert sideways(page) <= 0
    assert lists.nth(0).input_value() == "decoder cross"


def test_a_chart_that_fails_says_so_in_its_place(visit: Visit) -> None:  # noqa: F811
    page = visit("spectra", lang="en", **WORDS)
    page.route("**/api/spectra/figure", lambda route: route.fulfill(json={}))
    page.locator(".all-heads").scroll_into_view_if_needed()
    page.wait_for_selector("[data-figure=sinks] .problem")
    assert page.locator(".rank-cell").count() == 12


def test_the_offline_page_draws_them_too(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "spectra.html"
    file.write_text(spectrum_page(spectra()), encoding="utf-8")
    page = browser.new_page()
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(file.as_uri())
    until(page, lambda: page.locator(".chart svg.marks").count() == 5)
    page.locator("#heads thead button").nth(3).click()
    assert page.locator("#heads th[aria-sort=ascending]").count() == 1
    assert errors == []
    page.close()
