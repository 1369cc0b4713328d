"""`pellucid explore`: what it refuses before it listens, and that it serves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from pellucid.cli.explore import _page, explore

START = "import typer; from pellucid.cli.explore import explore; typer.run(explore)"


def refusal(*arguments: str) -> str:
    import typer

    app = typer.Typer()
    app.command()(explore)
    result = CliRunner().invoke(app, [*arguments, "--no-browser"])
    assert result.exit_code != 0
    return str(result.exception)


def test_what_cannot_be_served_is_said_at_once(tmp_path: Path) -> None:
    assert "--token" in refusal("--host", "0.0.0.0")
    assert "neither a folder nor a hub id" in refusal(str(tmp_path / "nothing"))


def test_the_address_that_it_prints() -> None:
    assert _page("127.0.0.1", 8765, None) == "http://127.0.0.1:8765/"
    assert _page("0.0.0.0", 1, "secret") == "http://127.0.0.1:1/?token=secret"
    assert _page("::1", 1, None) == "http://[::1]:1/"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
def test_it_serves_until_it_is_stopped() -> None:
    command = [sys.executable, "-c", START, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found is not None
        with httpx.Client(base_url=found[0], timeout=60) as web:
            assert web.get("api/start").json()["models"][0]["name"] == "worked-example"
            assert web.post("api/trace", json={"model": "worked-example", "text": "I love"}).status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) in (0, 1, 130, -2)
