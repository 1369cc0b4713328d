"""A server on a free port and a browser for all tests of the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from pellucid.pretrained.facade import Model
from pellucid.web.security import Limits
from tests.browser.chromium import FLAGS, HOW, chromium
from tests.web import serving

ARTEFACTS = Path(__file__).parents[2] / "artefacts" / "browser"
REQUIRED = os.environ.get("PELLUCID_BROWSER") == "required"


@pytest.fixture(scope="module")
def browser():
    path = chromium()
    if path is None or find_spec("playwright") is None:
        (pytest.fail if REQUIRED else pytest.skip)(HOW)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


@contextmanager
def served(models: Mapping[str, Callable[[], Model]]) -> Iterator[str]:
    """The address of a server that runs in a thread."""
    with serving.served(models, Limits(per_second=1000.0, burst=5000)) as running:
        yield running.address


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(serving.shelf()) as address:
        yield address
