"""Texts and ids from the files that a command names."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pellucid.errors import InputError

Files = list[Path] | None


def read_texts(text: Files, target: Files, ids: Files) -> list[Any]:
    """Words or ids of each file; pairs (source, target) where there are targets."""
    if bool(text) == bool(ids):
        raise InputError("give the text with --text FILE, or its ids with --ids FILE" + (", not both" if text else ""))
    sources = [_read_ids(file) for file in ids] if ids else [_read_text(file) for file in text or []]
    if not target:
        return sources
    if len(target) != len(sources):
        raise InputError(f"each text needs its own --target: {len(sources)} texts and {len(target)} targets came")
    return list(zip(sources, [_read_ids(file) if ids else _read_text(file) for file in target], strict=True))


def _read_text(file: Path) -> str:
    words = _read(file)
    if not words.strip():
        raise InputError(f"{file} is empty: give a file with a text")
    return words


def _read_ids(file: Path) -> list[int]:
    try:
        found = json.loads(_read(file))
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON: --ids wants a list of ids such as [5, 17, 3] ({error})") from None
    if not isinstance(found, list) or not found or not all(type(each) is int for each in found):
        raise InputError(f"{file} is no list of whole numbers: --ids wants one such as [5, 17, 3]")
    return found


def _read(file: Path) -> str:
    try:
        return (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 (byte {error.start}): is it a binary file?") from None
