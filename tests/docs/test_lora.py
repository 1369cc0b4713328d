"""The code of docs/lora.md runs, and its commands have the options that it names."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from pellucid.cli.exchange import export, import_
from pellucid.cli.spectrum import spectrum
from pellucid.cli.train import evaluate, finetune
from pellucid.lora import Lora

PAGE = (Path(__file__).parents[2] / "docs/lora.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[-1][:40])
def test_every_block_of_python_runs(code: str) -> None:
    exec(code, {})


def test_every_option_is_one_that_a_command_has() -> None:
    commands = (export, import_, spectrum, finetune, evaluate)
    known = {name for command in commands for name in command.__annotations__}
    assert set(re.findall(r"--([a-z-]+)", PAGE)) <= known


def test_the_part_of_a_run_can_be_read() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert Lora(**tomllib.loads(text)["lora"]).targets == ("attention.*", "feed_forward.*")
