"""Where Chromium is, and how it is started without asking anything of a network."""

from __future__ import annotations

import shutil

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOW = (
    "no Chromium here: `apt-get install chromium fontconfig fonts-noto-cjk` on Debian, or any Chromium or Chrome on "
    "the PATH; `pip install playwright` without its own browsers drives it"
)


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
