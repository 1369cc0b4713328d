"""For whoever cannot see it well or uses no mouse: contrast, the Tab key, names, and no scrolling sideways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pellucid.web.views import VIEWS
from tests.browser.test_pages import WORDS, Visit, visit  # noqa: F401

LOOKS = (Path(__file__).parent / "looks.js").read_text(encoding="utf-8")
SCHEMES = {"light": "en", "dark": "zh"}
CONTROLS = {
    "button",
    "link",
    "textbox",
    "combobox",
    "slider",
    "spinbutton",
    "checkbox",
    "application",
    "DisclosureTriangle",
}
MOST_STOPS = 200


def contrasts(page: Any) -> list[str]:
    """Texts whose contrast with the ground behind them is under 4.5."""
    return list(page.evaluate(f"() => ({LOOKS}).contrasts()"))


def sideways(page: Any) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def nameless(page: Any) -> list[str]:
    """Controls that the browser itself has no name for."""
    nodes = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    controls = [node for node in nodes if not node["ignored"] and node["role"]["value"] in CONTROLS]
    assert len(controls) > 8
    return [str(node) for node in controls if not node["name"]["value"].strip()]


def unreached(page: Any) -> list[str]:
    """Controls at which the Tab key does not stop."""
    count = page.evaluate(f"() => {{ window.looks = {LOOKS}; window.stops = looks.stops(); return stops.length; }}")
    assert 8 < count < MOST_STOPS
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    reached = set()
    for _ in range(count + 3):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("stops.indexOf(document.activeElement)"))
    left = sorted(set(range(count)) - reached)
    return [str(page.evaluate("(place) => looks.named(stops[place])", place)) for place in left]


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_can_be_read_on_a_screen_and_on_a_telephone(visit: Visit, view: str, scheme: str) -> None:  # noqa: F811
    page = visit(view, scheme=scheme, lang=SCHEMES[scheme], **WORDS)
    assert contrasts(page) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.locator("main .card").first.is_visible()
    assert contrasts(page) == []
    assert sideways(page) <= 0


@pytest.mark.parametrize("view", VIEWS)
def test_every_control_has_a_name_and_the_tab_key_reaches_it(visit: Visit, view: str) -> None:  # noqa: F811
    page = visit(view, lang="en", model="worked-example", text="I love")
    assert nameless(page) == []
    assert unreached(page) == []
