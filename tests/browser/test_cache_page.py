"""The cache's view as a person uses it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.browser.test_access import contrasts
from tests.browser.test_pages import LANGUAGES, Visit, ready, state, until, visit  # noqa: F401

TEXT = "the cat sat on the mat"
# How many pixels of each row have a hue, in the first two parts of a block's picture.
HUES = """(canvas, rows) => {
  const tall = (canvas.height - 18) / rows;
  const { data, width } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const hue = (x, y) => Math.abs(data[4 * (y * width + x)] - data[4 * (y * width + x) + 2]) > 8;
  const row = (left, k) => Array.from({ length: 92 }, (_, x) => hue(left + 2 + x, Math.floor(16 + (k + 0.5) * tall)));
  return [60, 168].map((left) => Array.from({ length: rows }, (_, k) => row(left, k).filter(Boolean).length));
}"""


def shown(page: Any) -> tuple[int, int]:
    """How many rows of the first block are reused and computed."""
    figure = page.locator(".cache-rows figure").first
    return int(figure.get_attribute("data-kept")), int(figure.get_attribute("data-computed"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_step_by_step(visit: Visit, language: str) -> None:  # noqa: F811
    page = visit("cache", lang=language, model="words", text=TEXT, scheme="dark" if language == "zh" else "light")
    assert shown(page) == (0, 6)
    assert page.locator("#query-rows").inner_text().count("6") == 2
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("[data-player=step]").click()
    until(page, lambda: shown(page) == (6, 1))
    assert not any("/api/" in url for url in asked)  # a step waits for nobody
    assert "step=1" in state(page)
    said = page.locator(".said").inner_text()
    assert {"en": "6 reused, 1 computed", "zh": "复用 6 行"}[language] in said
    assert page.locator(".chips .now").inner_text() in said
    assert page.locator(".prediction tbody tr").count() == 5
    assert page.locator(".prediction th").first.inner_text() == page.locator(".chips .next").inner_text()
    assert 0 < float(page.locator("#logit-change").inner_text().split()[0]) < 1e-5
    assert page.locator("#logit-change .badge.good").count() == 1
    assert page.locator(".cache-why math").count() == 1
    page.locator("[data-player=back]").click()
    until(page, lambda: shown(page) == (0, 6))


def test_reused_rows_are_grey_and_new_ones_are_not(visit: Visit) -> None:  # noqa: F811
    page = visit("cache", lang="en", model="words", text=TEXT, step=3)
    canvas = page.locator(".cache-rows canvas").first
    for part in canvas.evaluate(HUES, 6 + 15):
        assert part.pop(8) > 40  # the ninth row is new
        assert part == [0] * 20
    canvas.hover(position={"x": 190, "y": 20})
    assert "K of token 0 “the”: reused" in page.locator(".cache-rows .readout").inner_text()


def test_the_keyboard_steps_and_plays(visit: Visit) -> None:  # noqa: F811
    page = visit("cache", lang="en", model="words", text=TEXT, written=4)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    until(page, lambda: shown(page) == (7, 1))
    page.keyboard.press("Home")
    until(page, lambda: shown(page) == (0, 6))
    page.keyboard.press(" ")
    assert page.locator("[data-player=play]").inner_text() == "Pause"
    until(page, lambda: shown(page) == (8, 1))
    until(page, lambda: page.locator("[data-player=play]").inner_text() == "Play")
    assert "step=3" in state(page)
    page.locator("#field-text").focus()
    page.keyboard.press("ArrowLeft")
    assert "step=3" in state(page)


def test_bytes_and_operations(visit: Visit) -> None:  # noqa: F811
    page = visit("cache", lang="en", model="words", text=TEXT, step=2)
    row = page.locator("[data-step='2'] td").all_inner_texts()
    # 8 tokens x 3 blocks x 2 x 32 numbers of 4 bytes
    assert row[1:4] == ["7", "1", "6 KiB"]
    assert page.locator("[data-step][aria-current]").get_attribute("data-step") == "2"
    assert page.locator(".charts svg.chart .rule").count() == 3
    assert page.locator("[data-chart=all] path.curve").count() == 4
    page.locator("#field-written").fill("3")
    page.locator("#field-written").press("Tab")
    until(page, lambda: page.locator("[data-step]").count() == 3)
    assert "written=3" in state(page)


def test_a_source_is_drawn_once(visit: Visit) -> None:  # noqa: F811
    page = visit("cache", lang="en", model="pair", text="1 2 3 4", step=2)
    assert page.locator("[data-source]").count() == 2
    assert "Computed once" in page.locator(".cache-rows").inner_text()


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_to_keep_is_a_sentence(visit: Visit, language: str) -> None:  # noqa: F811
    page = visit("cache", lang=language, model="encoder", text="1 2 3")
    assert {"en": "An encoder reads", "zh": "编码器一次读完"}[language] in page.locator(".cache-none").inner_text()


def test_linear_attention_shows_its_sums(visit: Visit) -> None:  # noqa: F811
    page = visit("cache", lang="zh", model="linear", text="1 2 3", step=1, width=390)
    assert page.locator(".state-box").count() == 3
    assert contrasts(page) == []
    ready(page, "cache")
