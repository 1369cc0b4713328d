"""The page as a person uses it: each view, in both languages, with a screenshot that is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.browser.conftest import ARTEFACTS

TEXT = "The cat sat on the mat because it was tired and a dog ran over the green hill ."
WORDS = {"model": "words", "text": TEXT}
LANGUAGES = ("en", "zh")
# How many pixels of the map's lowest row are painted.
PAINTED = """(canvas) => canvas.getContext("2d").getImageData(0, 639, 640, 1).data
  .filter((x, k) => k % 4 === 3 && x).length"""
Visit = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, site: str, request: pytest.FixtureRequest) -> Iterator[Visit]:
    """Open a view, wait until it is shown; at the end, a screenshot, and no error on the console."""
    opened: list[tuple[Any, list[str], list[str]]] = []

    def go(view: str, *, width: int = 1280, scheme: str = "light", expect: tuple[str, ...] = (), **state: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, locale="en-US")
        page = context.new_page()
        page.set_default_timeout(30_000)
        errors: list[str] = []
        page.on("console", lambda said: errors.append(said.text) if said.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on(
            "request", lambda asked: errors.append(asked.url) if not asked.url.startswith((site, "data:")) else None
        )
        opened.append((page, errors, list(expect)))
        page.goto(f"{site}/#/{view}?{urlencode(state)}")
        if not expect:
            ready(page, view or "trace")
        return page

    yield go
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    for place, (page, errors, expected) in enumerate(opened):
        name = request.node.name.replace("[", "-").replace("]", "")
        page.screenshot(path=ARTEFACTS / f"{name}-{place}.png")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        page.context.close()
        assert [one for one in errors if not any(known in one for known in expected)] == []
        assert wide <= 0, "the page scrolls sideways"


def ready(page: Any, view: str) -> None:
    page.wait_for_selector(f"main[data-ready={view}]")


def state(page: Any) -> str:
    return str(page.evaluate("decodeURIComponent(location.hash)"))


def until(page: Any, holds: Callable[[], bool]) -> None:
    """Playwright's own wait would be evaluated in the page, which its policy forbids."""
    for _ in range(1500):
        if holds():
            return
        page.wait_for_timeout(20)
    raise AssertionError(state(page))


# --- the first screen ---


def test_a_newcomer_follows_a_number_to_the_prediction(visit: Visit) -> None:
    page = visit("")
    assert page.locator("#field-text").input_value() == "I love"
    assert page.locator(".badge.good").count() > 20
    assert page.locator(".badge.bad").count() == 0
    assert "love" in page.locator(".prediction").inner_text()
    page.locator("[id='step-decoder.0.attention.scores'] table.numbers:not(.printed) td button").nth(2).click()
    panel = page.locator(".panel")
    panel.get_by_text("= 0.164545").wait_for()
    assert "cell=decoder.0.attention.scores[0,1,0]" in state(page)
    assert page.locator("[id='step-decoder.0.attention.query'] td.operand").count() == 3
    assert page.locator("[id='step-decoder.0.attention.key'] td.operand").count() == 3
    panel.get_by_text("→ decoder.0.attention.key").click()
    assert page.evaluate("document.activeElement.id") == "step-decoder.0.attention.key"


@pytest.mark.parametrize("width", [1280, 390])
def test_arrows_lead_from_a_word_to_the_prediction(visit: Visit, width: int) -> None:
    page = visit("trace", lang="en", width=width)
    page.locator("#first-number").click()
    way = ["embedding.tokens"]
    while True:
        page.locator(".panel .site", has_text=f"{way[-1]}[").wait_for()
        if page.locator(".panel .arrived").count():
            break
        onward = page.locator(".onward button")
        names = [name.removeprefix("\u2193 ").split("[")[0] for name in onward.all_inner_texts()]
        # The first word reaches the last one's prediction by its key.
        chosen = next((place for place, name in enumerate(names) if name.endswith(".key")), 0)
        way.append(names[chosen])
        onward.nth(chosen).click()
    assert way[:6] == [f"embedding.{one}" for one in ("tokens", "sum")] + [
        f"decoder.0.attention.{one}" for one in ("input", "key", "scores", "weights")
    ]
    assert way[-2:] == ["logits", "probabilities"]
    assert len(way) == len(set(way)) < 20
    # The likeliest word after both
    assert "cell=probabilities[1,1]" in state(page)
    assert "0.5957" in page.locator(".panel").inner_text()
    assert page.locator(".prediction td").nth(1).inner_text() == "59.57 %"


def test_the_note_stands_beside_with_its_mistakes(visit: Visit) -> None:
    page = visit("trace", lang="en")
    assert page.locator(".printed").count() == 15
    assert page.locator(".printed .fresh-mistake").count() == 20
    assert "34 of its 84" in page.locator(".lead").inner_text()


@pytest.mark.parametrize("language", LANGUAGES)
def test_trace(visit: Visit, language: str) -> None:
    page = visit("trace", lang=language, **WORDS, scheme="dark" if language == "zh" else "light")
    page.locator("summary").nth(2).click()  # a block that was closed
    weights = page.locator("[id='step-decoder.1.attention.weights'] canvas.heat").nth(1)
    weights.scroll_into_view_if_needed()
    weights.click(position={"x": 4, "y": 60})
    page.wait_for_selector(".panel.open .lines li")
    assert "decoder.1.attention.weights[1," in state(page)
    assert "sum =" in page.locator(".panel .lines").inner_text()
    assert {"en": "Arithmetic", "zh": "算式"}[language] in page.locator(".panel").inner_text()
    page.keyboard.press("ArrowDown")
    assert "→" in page.locator("[id='step-decoder.1.attention.weights'] .readout").inner_text()


def test_a_shared_address_shows_the_same(visit: Visit) -> None:
    page = visit("trace", lang="zh", theme="dark", cell="decoder.0.attention.scores[1,5,2]", **WORDS)
    assert "decoder.0.attention.scores[1,5,2]" in page.locator(".panel .site").inner_text()
    assert page.locator("#field-model").input_value() == "words"
    assert page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


# --- attention ---


@pytest.mark.parametrize("language", LANGUAGES)
def test_attention(visit: Visit, language: str) -> None:
    page = visit("attention", lang=language, **WORDS)
    assert page.locator(".thumb").count() == 12
    page.locator(".thumb").nth(6).click()
    page.locator(".large h2", has_text="decoder.1.attention").wait_for()
    assert page.locator(".thumb[aria-pressed=true]").count() == 1
    page.select_option("#field-change", "no_scaling")
    page.wait_for_selector("[data-matrix=difference] canvas")
    assert page.locator(".compared tbody tr").count() >= 5
    assert {"en": "Largest change", "zh": "最大变化"}[language] in page.locator(".told").inner_text()
    page.locator(".large .switch button").nth(1).click()
    page.wait_for_selector("svg.lines .word")
    page.locator("svg.lines .word").nth(3).hover()
    assert page.locator("svg.lines line.faint").count() > 0
    assert "change=no_scaling" in state(page)


def test_a_change_that_cannot_be_says_so_beside_its_field(visit: Visit) -> None:
    page = visit("attention", expect=("422",), lang="zh", **WORDS)
    ready(page, "attention")
    page.select_option("#field-change", "mask_on")
    page.wait_for_selector("#problem-change:not([hidden])")
    assert "这个改动不适用于这个模型" in page.locator("#problem-change").inner_text()
    assert page.locator(".thumb").count() == 12


def test_written_tokens_appear(visit: Visit) -> None:
    page = visit("attention", lang="en", model="words", text="the cat", written=3)
    assert page.locator("#field-written").input_value() == "3"
    page.locator(".large .switch button").nth(1).click()
    page.wait_for_selector("svg.lines")
    assert page.locator("svg.lines .word").count() == 10


# --- map ---


@pytest.mark.parametrize("language", LANGUAGES)
def test_map(visit: Visit, language: str) -> None:
    page = visit("map", lang=language, tokens=2048, scheme="dark" if language == "zh" else "light", **WORDS)
    canvas = page.locator("canvas.deep")
    assert "2048 \u00d7 2048" in page.locator(".map-top").inner_text()
    page.wait_for_selector("canvas.deep[data-level='2'][data-missing='0']")
    canvas.focus()
    for _ in range(4):
        page.keyboard.press("+")
    page.wait_for_selector("canvas.deep[data-level='3'][data-missing='0']")
    until(page, lambda: "at=" in state(page))
    assert {"en": "query 1024", "zh": "查询 1024"}[language] in page.locator(".map-told .readout").inner_text()
    assert canvas.evaluate(PAINTED) > 300
    page.locator(".map-top button").nth(2).click()
    until(page, lambda: "at=" not in state(page))
    page.select_option("#field-head", "3")
    until(page, lambda: "head=3" in state(page))
    ready(page, "map")


def test_a_map_that_is_too_long_says_so_beside_its_field(visit: Visit) -> None:
    page = visit("map", expect=("422",), lang="en", model="worked-example", text="I love", tokens=99)
    page.wait_for_selector("#problem-tokens:not([hidden])")
    assert page.locator("#problem-tokens").inner_text() == "This model reads 2 tokens at most, not 99."


def test_long_work_shows_progress_and_can_be_cancelled(visit: Visit, site: str) -> None:
    page = visit("map", expect=("none",), lang="en", tokens=30_000, **WORDS)
    page.locator("#progress button").click()
    page.get_by_text("Cancelled.").wait_for()
    page.goto(f"{site}/#/map?{urlencode(WORDS | {'lang': 'en', 'tokens': 300})}")
    ready(page, "map")
    assert "300 \u00d7 300" in page.locator(".map-top").inner_text()


# --- positions ---


@pytest.mark.parametrize("language", LANGUAGES)
def test_positions(visit: Visit, language: str) -> None:
    page = visit("positions", lang=language, model="t5", length=100)
    assert page.locator(".scheme").count() == 6
    assert page.locator("#scheme-own path.curve").count() >= 4
    before = page.locator(".hand").first.get_attribute("y2")
    page.locator("#field-place").fill("9")
    until(page, lambda: "place=9" in state(page))
    assert page.locator(".hand").first.get_attribute("y2") != before
    assert page.locator("#rotary-place").inner_text() == {"en": "Place 9", "zh": "位置 9"}[language]
    page.locator("#field-length").fill("300")
    page.locator("#field-length").press("Tab")
    page.get_by_text({"en": "at 300 places", "zh": "300 个位置"}[language]).wait_for()


# --- everywhere ---


def test_bad_input_is_a_sentence_beside_the_field(visit: Visit) -> None:
    page = visit("trace", expect=("422",), lang="en")
    ready(page, "trace")
    page.locator("#field-text").fill("I love cats")
    page.locator("#field-text").press("Enter")
    page.wait_for_selector("#problem-text:not([hidden])")
    assert "knows only these words: I, love, you" in page.locator("#problem-text").inner_text()
    assert page.locator("#field-text").input_value() == "I love cats"
    page.locator("#field-text").fill("love I")
    page.locator(".chosen button.primary").click()
    ready(page, "trace")
    assert page.locator("#problem-text").is_hidden()
    page.goto(page.url.split("#")[0] + "#/trace?model=nobody&lang=en")
    page.wait_for_selector("#problem-model:not([hidden])")
    assert "nobody" in page.locator("#problem-model").inner_text()


def test_languages_switch_in_place(visit: Visit) -> None:
    page = visit("trace", lang="en")
    page.locator("#lang-zh").click()
    page.wait_for_selector("html[lang=zh-CN]")
    ready(page, "trace")
    assert page.locator("#tabs").inner_text().split() == [
        "追踪",
        "注意力",
        "地图",
        "谱",
        "位置",
        "缓存",
        "比较",
        "训练",
    ]
    assert page.evaluate("document.activeElement.id") == "lang-zh"


def test_the_keyboard_reaches_everything(visit: Visit) -> None:
    page = visit("trace", lang="en")
    seen = []
    for _ in range(22):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.id || document.activeElement.textContent"))
    for name in ("skip", "lang-en", "theme", "field-model", "field-text", "Show", "Trace", "Positions", "0.2000"):
        assert name in seen
    page.keyboard.press("Shift+Tab")
    page.locator("table.numbers td button").first.focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.textContent") == "0.5000"
    page.keyboard.press("Enter")
    page.wait_for_selector(".panel.open")
