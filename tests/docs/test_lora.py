"""The code of docs/lora.md runs, and its commands have the options that it names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pellucid.cli.exchange import export, import_
from pellucid.cli.spectrum import spectrum

PAGE = (Path(__file__).parents[2] / "docs/lora.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[-1][:40])
def test_every_block_of_python_runs(code: str) -> None:
    exec(code, {})


def test_every_option_is_one_that_a_command_has() -> None:
    known = {name for command in (export, import_, spectrum) for name in command.__annotations__}
    assert set(re.findall(r"--([a-z-]+)", PAGE)) <= known
