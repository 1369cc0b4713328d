"""The run of docs/train.md is one, and its options are those of the commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pellucid.cli import train as commands
from pellucid.training.config import RunConfig

PAGE = (Path(__file__).parents[2] / "docs/train.md").read_text()


def test_the_run_can_be_read() -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert RunConfig(**tomllib.loads(text)).schedule.steps == 2000


def test_every_option_is_one_that_a_command_has() -> None:
    known = {"show", "set", "data", "json", "nproc-per-node"}
    known |= {
        name.replace("_", "-") for each in (commands.evaluate, commands.finetune) for name in each.__annotations__
    }
    assert set(re.findall(r"--([a-z][a-z-]*)", PAGE)) <= known


def test_every_key_that_the_page_names_exists() -> None:
    named = re.findall(r"`(batch|data|optimizer|evaluation|compute|schedule)\.(\w+)", PAGE)
    assert named
    for table, key in named:
        part = RunConfig.model_fields[table].annotation
        assert key in part.model_fields, f"{table}.{key}"
