"""The page in Chromium: how long a person waits, measured in the page itself."""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tests.browser.chromium import FLAGS, HOW, chromium

from pellucid.pretrained.facade import Model

REPEATS = 10
TOKENS = 32
# From the key that sends the text until the new view has been painted.
NEW_TRACE = """async (text) => {
  const main = document.getElementById("main");
  const field = document.getElementById("field-text");
  field.value = text;
  const begun = performance.now();
  field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  const shown = () => !main.dataset.ready || main.querySelectorAll(".chips li").length !== TOKENS;
  do { await new Promise(requestAnimationFrame); } while (shown());
  await new Promise(requestAnimationFrame);
  return (performance.now() - begun) / 1000;
}""".replace("TOKENS", str(TOKENS))
# Zoom in once, until all tiles in sight are there.
ZOOM = """async () => {
  const map = document.querySelector("canvas.deep");
  const begun = performance.now();
  map.dispatchEvent(new KeyboardEvent("keydown", { key: "+", bubbles: true, cancelable: true }));
  do { await new Promise(requestAnimationFrame); } while (map.dataset.missing !== "0");
  return (performance.now() - begun) / 1000;
}"""


class Serving(Protocol):
    address: str
    up: float

    def cpu(self) -> float: ...


def timings(
    serving: Callable[[], AbstractContextManager[Any]], name: str, long_name: str | None, long: int, model: Model
) -> dict[str, Any]:
    path = chromium()
    if path is None:
        sys.exit(HOW)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        with serving() as server:
            found = {"first_view_s": first_view(page, server), **first_click(page)}
            found["new_trace_s"] = new_traces(page, server, name, model)
            if long_name is not None:
                found |= zoom(page, server, long_name, long, model)
        browser.close()
    return found


def first_view(page: Any, server: Serving) -> float:
    """From the line that the server prints until the first view can be used."""
    page.goto(server.address)
    page.wait_for_selector("main[data-ready=trace]")
    return round(time.perf_counter() - server.up, 3)


def first_click(page: Any) -> dict[str, float]:
    begun = time.perf_counter()
    page.locator("#first-number").click()
    page.wait_for_selector(".panel.open .lines li")
    return {"first_click_s": round(time.perf_counter() - begun, 3)}


def new_traces(page: Any, server: Serving, name: str, model: Model) -> dict[str, float]:
    draw = random.Random(1)
    page.goto(f"{server.address}#/trace?model={name}&lang=en")
    page.wait_for_selector("main[data-ready=trace]")
    used = server.cpu()
    waited = [page.evaluate(NEW_TRACE, fresh(model, draw)) for _ in range(REPEATS)]
    return spread(waited) | {"server_cpu": round((server.cpu() - used) / REPEATS, 3)}


def fresh(model: Model, draw: random.Random) -> str:
    """A text of just so many tokens that was not shown before."""
    while True:
        ids = [draw.randrange(1, model.config.vocab) for _ in range(TOKENS)]
        if model.tokenizer is None:
            return " ".join(map(str, ids))
        if len(model.encode(text := model.decode(ids).replace("\n", " "))) == TOKENS:
            return text


def zoom(page: Any, server: Serving, name: str, tokens: int, model: Model) -> dict[str, Any]:
    begun = time.perf_counter()
    page.goto(f"{server.address}#/map?model={name}&tokens={tokens}&lang=en&text={fresh(model, random.Random(2))}")
    page.wait_for_selector("main[data-ready=map]")
    page.wait_for_selector("canvas.deep[data-missing='0']")
    opening = round(time.perf_counter() - begun, 3)
    waited, used, most = [], server.cpu(), 0.0
    for _ in range(REPEATS):
        waited.append(page.evaluate(ZOOM))
        most, used = max(most, (now := server.cpu()) - used), now
    return {"map_opening_s": opening, "zoom_s": spread(waited) | {"most_server_cpu": round(most, 3)}}


def spread(seconds: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(seconds), 3), "worst": round(max(seconds), 3)}
