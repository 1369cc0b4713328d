"""What a figure needs to be believed: when it was measured, on what, with which versions and which commit."""

from __future__ import annotations

import json
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


def record(path: Path, figures: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**circumstances(), **figures}, indent=1) + "\n")
    print(f"written to {path}")


def circumstances() -> dict[str, Any]:
    packages = ("torch", "triton", "transformers", "x-transformers")
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in packages},
        "device": torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"CPU, {torch.get_num_threads()} threads",
    }


def commit() -> str:
    """The commit measured; a file `.commit` stands in for git where a copy of the tree has no history."""
    stand_in = Path(".commit")
    if stand_in.exists():
        return stand_in.read_text().strip()
    run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
