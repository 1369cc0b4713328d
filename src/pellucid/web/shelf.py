"""The models that the page may choose from: a list that is fixed when the server starts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from pellucid.model import config as c
from pellucid.pretrained.bundled import DESCRIPTIONS, bundled_card
from pellucid.pretrained.facade import Model
from pellucid.web.holding import bytes_held
from pellucid.web.refusal import Refused
from pellucid.web.security import Limits
from pellucid.web.work import Lane

Kept = TypeVar("Kept")
WORKED_EXAMPLE = "worked-example"
_EXAMPLES = {WORKED_EXAMPLE: "I love"}
_SENTENCE = "The cat sat on the mat because it was tired."
# Results that clicks ask for again (cells of a trace, tiles of a map): so many of a model, and so many bytes.
KEPT, KEPT_BYTES = 4, 256 * 2**20


@dataclass
class Book:
    """One model: opened when it is first needed, in its own lane; what was computed last is kept for the next click."""

    name: str
    open: Callable[[], Model]
    lane: Lane
    kept: OrderedDict[Hashable, Any] = field(default_factory=OrderedDict)

    @cached_property
    def opened(self) -> Model:
        """As it was opened: adapters stand beside the weights that they change."""
        return self.open()

    @cached_property
    def model(self) -> Model:
        return self.opened.plain()

    @cached_property
    def formed(self) -> Model:
        """The same weights on the kernel that forms scores and weights."""
        return replace(self.model, network=self.model.network.with_kernel("reference"))

    def keep(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What `make` gave the last time, if that is not long ago. Called in the lane's thread alone."""
        if key not in self.kept:
            self.kept[key] = make()
        self.kept.move_to_end(key)
        self._make_room()
        found: Kept = self.kept[key]
        return found

    def _make_room(self) -> None:
        """The oldest go. The last one stays whatever its size: the next click asks for it."""
        while len(self.kept) > 1 and (len(self.kept) > KEPT or bytes_held(self.kept) > KEPT_BYTES):
            self.kept.popitem(last=False)

    def describe(self) -> dict[str, Any]:
        config = self.model.config
        return {
            "name": self.name,
            "words": self.model.tokenizer is not None,
            "two_texts": config.is_encoder_decoder,
            "example": self._example(),
            "context": config.context,
            "blocks": {"encoder": config.encoder_blocks, "decoder": config.decoder_blocks},
            "heads": config.heads,
            "width": config.width,
            "vocab": config.vocab,
            "position": config.position.kind,
            "attention": config.attention.kind,
            "writes": config.decoder_blocks > 0 and isinstance(config.head, c.Unembed),
            "parameters": sum(one.numel() for one in self.model.network.parameters()),
            "worked_example": self.name == WORKED_EXAMPLE,
        }

    def _example(self) -> str:
        if self.name in _EXAMPLES:
            return _EXAMPLES[self.name]
        card = bundled_card(self.model.name) if self.model.name in DESCRIPTIONS else None
        if card is not None:
            return card.example
        if self.model.tokenizer is not None:
            return _SENTENCE
        return " ".join(str(1 + place % max(self.model.config.vocab - 1, 1)) for place in range(8))


class Shelf:
    def __init__(self, models: Mapping[str, Callable[[], Model]], limits: Limits) -> None:
        self.books = {name: Book(name, opened, Lane(limits.waiting, limits.seconds)) for name, opened in models.items()}

    def __getitem__(self, name: str) -> Book:
        return self.get(name, "model")

    def get(self, name: str, field: str) -> Book:
        """field: beside which a name that is not on the list is refused."""
        if name not in self.books:
            raise Refused(422, "no_model", f"{name!r} is not on the list of this server", field, name=name)
        return self.books[name]

    def list(self) -> list[dict[str, str]]:
        return [{"name": name, "description": DESCRIPTIONS.get(name, "")} for name in self.books]

    def close(self) -> None:
        for book in self.books.values():
            book.lane.close()


@dataclass(frozen=True)
class Source:
    """What a model is opened from. adapter: a folder, put on it."""

    model: str
    adapter: str | None = None

    @property
    def title(self) -> str:
        own = self.model if self.model in DESCRIPTIONS else Path(self.model).resolve().name or self.model
        return own if self.adapter is None else f"{own} + {Path(self.adapter).resolve().name}"


def titles(sources: Iterable[Source]) -> dict[str, Source]:
    """A short name for each source: a folder's last part, numbered where two are alike."""
    found: dict[str, Source] = {}
    for source in dict.fromkeys(sources):
        name, count = source.title, 1
        while name in found:
            count += 1
            name = f"{source.title} ({count})"
        found[name] = source
    return found
