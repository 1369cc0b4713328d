"""The models that come with Pellucid: a folder each, beside this file, in our own layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pellucid.errors import CheckpointError
from pellucid.model.config import ModelConfig

HERE = Path(__file__).parent
DESCRIPTIONS = {
    "worked-example": "four words, one block: every number by hand",
}


class Bundled(NamedTuple):
    """A bundled model as a list shows it."""

    name: str
    description: str


def bundled_models() -> tuple[Bundled, ...]:
    return tuple(Bundled(name, description) for name, description in DESCRIPTIONS.items())


def bundled_folder(name: str) -> Path:
    """Where a bundled model lies, whatever the working directory holds under the same name."""
    if name not in DESCRIPTIONS:
        raise CheckpointError(f"{name!r} is not a bundled model; there are {', '.join(DESCRIPTIONS)}")
    return HERE / name


def bundled_config(name: str) -> ModelConfig:
    """What a bundled model is, without its weights."""
    saved = json.loads((bundled_folder(name) / "pellucid.json").read_text(encoding="utf-8"))
    return ModelConfig(**saved["model"])
