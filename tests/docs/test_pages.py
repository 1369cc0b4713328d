"""The code of the pages in docs/ runs, each block by itself, as one reader would type it; their options exist."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pellucid.cli.generate import generate
from pellucid.cli.kv_report import kv_report
from pellucid.cli.spectrum import spectrum

PAGES = Path(__file__).parents[2] / "docs"
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "spectra.md": (spectrum,),
    "generate.md": (generate, kv_report),
}
ELSEWHERE = {"nproc-per-node"}  # options of torchrun
BLOCKS = [
    pytest.param(code, id=f"{page}: {code.splitlines()[-1][:40]}")
    for page in COMMANDS
    for code in re.findall(r"```python\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    if not code.startswith("# doctest: needs")
]


@pytest.mark.parametrize("code", BLOCKS)
def test_every_block_of_python_runs(code: str) -> None:
    exec(code, {})


def test_the_blocks_were_found() -> None:
    assert len(BLOCKS) >= 6


@pytest.mark.parametrize("page", COMMANDS)
def test_every_option_is_one_that_the_command_has(page: str) -> None:
    words = {name.strip("_").replace("_", "-") for command in COMMANDS[page] for name in command.__annotations__}
    named = {name.removeprefix("no-") for name in re.findall(r"--([a-z][a-z-]*)", (PAGES / page).read_text())}
    assert named - ELSEWHERE <= words | {"json"}
