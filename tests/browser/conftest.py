"""A server on a free port and a browser for all tests of the page."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from pellucid.pretrained.facade import Model
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app, listen
from tests.web.serving import shelf

ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOW = "no Chromium here: `apt-get install chromium` on Debian, and `pip install playwright` without its own browsers"


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason=HOW)
    path = chromium()
    if path is None:
        pytest.skip(HOW)
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@contextmanager
def served(models: Mapping[str, Callable[[], Model]]) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    bound = listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    app = create_app(models, Address(port=port), Limits(per_second=1000.0, burst=5000))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(5)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(shelf()) as address:
        yield address
