"""The models that come with Pellucid: a folder each, beside this file, in our own layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from pellucid.errors import CheckpointError
from pellucid.model.config import ModelConfig

HERE = Path(__file__).parent
CARD = "card.json"
DESCRIPTIONS = {
    "stories": "writes little stories: rotary positions, RMSNorm, gates",
    "translate-en-zh": "English to Chinese, by the architecture of the notes: sinusoidal, post-norm, ReLU",
    "tag-en": "parts of speech of English words: an encoder",
    "tiny-softmax": "sibling: softmax attention, sinusoidal positions",
    "tiny-linear": "sibling: linear attention with elu + 1",
    "tiny-random": "sibling: linear attention with positive random features",
    "tiny-relu": "sibling: normalised ReLU attention",
    "tiny-learned": "sibling: learned positions",
    "tiny-t5": "sibling: T5's bias by distance",
    "tiny-alibi": "sibling: ALiBi's bias by distance",
    "tiny-rotary": "sibling: rotary positions",
    "worked-example": "four words, one block: every number by hand",
}


class Bundled(NamedTuple):
    """A bundled model as a list shows it."""

    name: str
    description: str


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    given: str
    written: str


class Card(BaseModel):
    """What a model learned from, and how good it is.

    run: the run file that made it, in `examples/runs`. trained: where, for how long. example: a text to begin with.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: str
    licence: str
    run: str
    trained: str
    scored_on: str
    scores: dict[str, float]
    example: str
    samples: tuple[Sample, ...]


def bundled_models() -> tuple[Bundled, ...]:
    return tuple(Bundled(name, description) for name, description in DESCRIPTIONS.items())


def bundled_folder(name: str) -> Path:
    """Where a bundled model lies, whatever the working directory holds under the same name."""
    if name not in DESCRIPTIONS:
        raise CheckpointError(f"{name!r} is not a bundled model; there are {', '.join(DESCRIPTIONS)}")
    return HERE / name


def is_bundled(folder: Path) -> bool:
    return folder.parent == HERE


def bundled_config(name: str) -> ModelConfig:
    """What a bundled model is, without its weights."""
    saved = json.loads((bundled_folder(name) / "pellucid.json").read_text(encoding="utf-8"))
    return ModelConfig(**saved["model"])


def bundled_card(name: str) -> Card | None:
    """The card of a model that was trained; the worked example was written by hand."""
    file = bundled_folder(name) / CARD
    return Card.model_validate_json(file.read_text(encoding="utf-8")) if file.exists() else None
