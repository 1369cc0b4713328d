"""One TOML file is a run: read it, change keys of it, and show it with every default."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from pellucid.errors import ConfigError, InputError
from pellucid.training.config import RunConfig


def read_run(path: Path, changes: tuple[str, ...] = (), *, lora: bool = False) -> RunConfig:
    """The run that a TOML file describes; changes are of the form key.key=value, the value as TOML writes it.

    lora: with an adapter, by its defaults where the file says nothing about it.
    """
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None
    if lora:
        given.setdefault("lora", {})
    run = _with_changes(given, changes)
    root = (path.absolute().parent / run.data.root).resolve()
    return run.model_copy(update={"data": run.data.model_copy(update={"root": str(root)})})


def changed(run: RunConfig, changes: tuple[str, ...]) -> RunConfig:
    return _with_changes(run.model_dump(), changes) if changes else run


def _with_changes(given: dict[str, Any], changes: tuple[str, ...]) -> RunConfig:
    for change in changes:
        _change(given, change)
    return RunConfig(**given)


def _change(given: dict[str, Any], change: str) -> None:
    key, sign, value = change.partition("=")
    if not sign:
        raise ConfigError(f"--set {change!r} is not of the form key.key=value, such as optimizer.rate=1e-3")
    try:
        worth = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        worth = value
    *above, last = key.strip().split(".")
    for step in above:
        given = given.setdefault(step, {})
        if not isinstance(given, dict):
            raise ConfigError(f"--set {change!r}: {step} is not a table of the run file")
    given[last] = worth


def shown(run: RunConfig) -> str:
    """The run with every default, as TOML."""
    return "\n".join(_lines(run.model_dump(mode="json"), ())).strip() + "\n"


def _lines(values: dict[str, Any], above: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [
        f"{_key(key)} = {_toml(value)}" if value is not None else f"# {key} is not set" for key, value in plain.items()
    ]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += ["", f"[{'.'.join((*above, _key(key)))}]", *_lines(value, (*above, _key(key)))]
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else _toml(key)


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return json.dumps(value, ensure_ascii=False)
