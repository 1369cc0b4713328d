"""`pellucid explore`: what it refuses before it listens, and that it serves."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import torch
from typer.testing import CliRunner

from pellucid import lora
from pellucid.cli.explore import WORKED_EXAMPLE, _model, _page, _sources, explore
from pellucid.lora import Lora
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.bundled import bundled_models
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.pretrained.save import export
from pellucid.spectra.parameters import parameter_changes
from pellucid.web.shelf import titles

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


def adapted(folder: Path) -> tuple[Path, Path]:
    """A model in a folder, and an adapter of it in another."""
    shape = preset("tiny-gpt2")
    export(Model(shape, Transformer(shape, seed=0).eval()), folder / "base")
    model = load(folder / "base")
    lora.add(model, Lora(rank=2), seed=0)
    with torch.no_grad():
        for each in model.network.parameters():
            each.add_(0.1 if each.requires_grad else 0)
    lora.save(model, folder / "mine")
    return folder / "base", folder / "mine"


def test_an_adapter_stands_beside_its_model(tmp_path: Path) -> None:
    base, mine = map(str, adapted(tmp_path))
    named = titles(_sources([base, WORKED_EXAMPLE], [mine]))
    assert list(named) == ["base", "base + mine", "worked-example"]
    plain, tuned = (_model(named[name], "cpu", None) for name in ("base", "base + mine"))
    differ = [one.name for one in parameter_changes(plain, tuned, widest=64) if one.difference]
    assert differ
    assert all(".attention." in name for name in differ)
    assert list(titles(_sources([], []))) == [name for name, _ in bundled_models()]


def test_an_adapter_that_cannot_be_put_on_is_said_at_once(tmp_path: Path) -> None:
    base, mine = map(str, adapted(tmp_path))
    assert "name that one too" in refusal("--adapter", mine)
    assert "no folder of an adapter" in refusal(base, "--adapter", base)
    assert "an adapter itself" in refusal(mine, "--adapter", mine)


def test_the_address_that_it_prints() -> None:
    assert _page("127.0.0.1", 8765, None) == "http://127.0.0.1:8765/"
    assert _page("0.0.0.0", 1, "secret") == "http://127.0.0.1:1/?token=secret"
    assert _page("::1", 1, None) == "http://[::1]:1/"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
def test_it_serves_until_it_is_stopped() -> None:
    command = [sys.executable, "-c", START, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found is not None
            with httpx.Client(base_url=found[0], timeout=60) as web:
                assert web.get("api/start").json()["models"][0]["name"] == "stories"
                for model, text in (("stories", "Once upon a time"), ("worked-example", "I love")):
                    assert web.post("api/trace", json={"model": model, "text": text}).status_code == 200
            process.send_signal(signal.SIGINT)
            assert process.wait(60) in (0, 1, 130, -2)
        finally:
            process.kill()
