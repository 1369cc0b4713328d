"""The code of docs/spectra.md runs, in order, as one reader would type it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/spectra.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=lambda code: code.splitlines()[-1][:40])
def test_every_block_of_python_runs(code: str) -> None:
    exec(code, {})


def test_every_option_is_one_that_the_command_has() -> None:
    from pellucid.cli.spectrum import spectrum

    known = {name.replace("_", "-") for name in spectrum.__annotations__} | {"json"}
    named = set(re.findall(r"--([a-z-]+)", PAGE)) - {"nproc-per-node"}
    assert named <= known
