"""The training's view as a person uses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pellucid
from pellucid.training.recording import read_recording
from tests.browser.conftest import served
from tests.browser.test_access import contrasts
from tests.browser.test_pages import LANGUAGES, Visit, state, until, visit  # noqa: F401
from tests.web.recorded import STEPS, trained
from tests.web.serving import random_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return trained(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def site(folder) -> Iterator[str]:
    with served({"recorded": lambda: pellucid.load(folder), "bare": random_model}) as address:
        yield address


def shows(page: Any, value: float, of: str = "") -> bool:
    """Whether the number beside the grid is this one, as far as it is written out."""
    name, _, number = page.locator("#chosen-head").inner_text().replace("\uff1a", ":").rpartition(":")
    return of in name and float(number) == pytest.approx(value, abs=1e-4)


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_film(visit: Visit, folder, language: str) -> None:  # noqa: F811
    page = visit("training", lang=language, model="recorded", scheme="dark" if language == "zh" else "light")
    own = read_recording(folder)
    assert own is not None
    assert shows(page, own.values["entropy"][0, 0, 0])
    page.locator("[data-player=step]").click()
    until(page, lambda: shows(page, own.values["entropy"][1, 0, 0]))
    assert "frame=1" in state(page)
    page.select_option("#field-measure", "stable_rank")
    until(page, lambda: shows(page, own.values["stable_rank"][1, 0, 0]))
    assert page.locator(".film-curves path.curve.strong").count() == 1
    assert page.locator(".film-curves .chart .curve").count() == 2
    assert f"{own.losses[1]:.4f}" in page.locator("#loss-now").inner_text()
    title = {"en": "All heads at step 1", "zh": "第 1 步的所有头"}[language]
    assert title in page.locator(".film-grid").inner_text()


def test_a_head_is_chosen_on_the_grid_and_followed(visit: Visit, folder) -> None:  # noqa: F811
    page = visit("training", lang="en", model="recorded", frame=7)
    own = read_recording(folder)
    assert own is not None
    grid = page.locator("canvas.heat")
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    until(page, lambda: "place=1" in state(page) and "head=1" in state(page))
    until(page, lambda: shows(page, own.values["entropy"][7, 1, 1], of="block 1, head 1"))
    assert "frame=7" in state(page)  # the arrow keys of the grid are its own
    assert page.evaluate("document.activeElement.className") == "heat"
    assert "the heads of block 1" in page.locator(".film-curves h3").inner_text()


def test_it_plays_to_the_end(visit: Visit) -> None:  # noqa: F811
    page = visit("training", lang="en", model="recorded", frame=5)
    mark = page.locator(".film-curves .rule")
    before = float(mark.get_attribute("x1"))
    page.locator("[data-player=play]").click()
    until(page, lambda: f"Step {STEPS[-1]} " in page.locator(".player output").inner_text())
    assert float(mark.get_attribute("x1")) > before
    until(page, lambda: page.locator("[data-player=play]").inner_text() == "Play")


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_film_says_how_to_make_one(visit: Visit, language: str) -> None:  # noqa: F811
    page = visit("training", lang=language, model="bare")
    assert "[record]\npoints = 40" in page.locator(".training-none pre").inner_text()
    assert {"en": "run file", "zh": "运行文件"}[language] in page.locator(".training-none").inner_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_telephone(visit: Visit, scheme: str) -> None:  # noqa: F811
    page = visit("training", width=390, lang={"light": "en", "dark": "zh"}[scheme], scheme=scheme, model="recorded")
    assert page.locator("canvas.heat").is_visible()
    assert contrasts(page) == []
