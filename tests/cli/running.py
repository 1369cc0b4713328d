"""The command in this process: importing torch anew for each call would take most of the tests' time."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from pellucid.cli.main import main


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str | Path) -> Result:
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with patch.object(sys, "argv", ["pellucid", *map(str, arguments)]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    return Result(code, out.getvalue(), err.getvalue())
