"""What a page asks about: a model of the list and a text, as every view sends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from pellucid.errors import InputError
from pellucid.model import config as c
from pellucid.pretrained.facade import Model
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book, Shelf
from pellucid.web.work import JOB_HEADER, Job, Jobs

Result = TypeVar("Result")
Ids = tuple[tuple[int, ...], ...]
LONGEST = 200_000  # characters
FEW = 32  # words that a sentence can list


class AskedModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(max_length=200)]


class Asked(AskedModel):
    """A model and a text. target: what an encoder-decoder has written so far."""

    text: Annotated[str, Field(max_length=LONGEST)]
    target: Annotated[str | None, Field(max_length=LONGEST)] = None


async def on_model(request: Request, name: str, call: Callable[[Book, Job], Result]) -> Result:
    """Call with a model of the list in its lane."""
    shelf: Shelf = request.app.state.shelf
    jobs: Jobs = request.app.state.jobs
    book = shelf[name]
    with jobs.named(request.headers.get(JOB_HEADER)) as job:
        return await book.lane.run(request, lambda own: call(book, own), job)


async def on_two(request: Request, first: str, second: str, call: Callable[[Book, Book, Job], Result]) -> Result:
    """Call with two models of the list, in the lanes of both; they may be the same."""
    shelf: Shelf = request.app.state.shelf
    jobs: Jobs = request.app.state.jobs
    books = shelf[first], shelf.get(second, "other")
    outer, inner = sorted(books, key=lambda book: book.name)

    def within(own: Job) -> Result:
        return inner.lane.run_within(lambda job: call(*books, job), own)

    with jobs.named(request.headers.get(JOB_HEADER)) as job:
        if inner is outer:
            return await outer.lane.run(request, lambda own: call(*books, own), job)
        return await outer.lane.run(request, within, job)


def read(book: Book, asked: Asked, most: int) -> Ids:
    """The ids of the text, and of the target for an encoder-decoder; within the model and within `most` tokens."""
    config = book.model.config
    texts = [_encode(book.model, asked.text, "text", config.source_vocab or config.vocab, book.model.encode)]
    if config.is_encoder_decoder:
        texts.append(_target(book.model, asked.target))
    for ids, field in zip(texts, ("text", "target"), strict=False):
        limit = min(most, config.context or most)
        if len(ids) > limit:
            raise Refused(
                422,
                "long",
                f"the text has {len(ids)} tokens, but {limit} are the most here: shorten it",
                field,
                count=len(ids),
                most=limit,
            )
    return tuple(tuple(ids) for ids in texts)


def tensors(model: Model, ids: Ids) -> tuple[Tensor, ...]:
    return tuple(model.ids([list(text)]) for text in ids)


def lists(ids: Ids) -> list[list[list[int]]]:
    """As `trace` takes them: a batch of one for each text."""
    return [[list(text)] for text in ids]


def words(model: Model, ids: tuple[int, ...]) -> list[str]:
    from pellucid.lens.view import readable

    found = (str(one) if model.tokenizer is None else model.tokenizer.token(one) for one in ids)
    return [readable(word) for word in found]


def _target(model: Model, text: str | None) -> list[int]:
    """As a trace reads it; a model that names no start token begins with its first one, or with what is given."""
    begins = isinstance(model.setting("decoder_start_token_id"), int)
    if text is None or not text.strip():
        return model.encode_target("") if begins else [0]
    return _encode(model, text, "target", model.config.vocab, model.encode_target if begins else model.encode)


def _encode(model: Model, text: str, field: str, vocab: int, encode: Callable[[str], list[int]]) -> list[int]:
    if not text.strip():
        raise Refused(422, "empty", "the text is empty: give at least one token", field)
    # Half of a surrogate pair is no text: JSON may carry one.
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise Refused(422, "not_text", "the text is not valid Unicode", field)
    if model.tokenizer is None:
        found = [int(word) if word.isascii() and word.isdigit() and len(word) < 9 else -1 for word in text.split()]
        if any(not 0 <= one < vocab for one in found):
            said = f"this model reads ids: whole numbers from 0 to {vocab - 1} with spaces between them"
            raise Refused(422, "ids", said, field, most=vocab - 1)
        return found
    try:
        found = encode(text)
    except InputError as error:
        if vocab > FEW:
            raise refused_by(error, "not_encodable", field) from None
        known = ", ".join(words(model, tuple(range(vocab))))
        raise Refused(422, "unknown", f"this model knows only these words: {known}", field, words=known) from None
    if not found:
        raise Refused(422, "empty", "the text is empty: give at least one token", field)
    return found


def extended(model: Model, ids: Ids, more: int) -> Ids:
    """With so many tokens written on, each the likeliest."""
    if more and not (model.config.decoder_blocks and isinstance(model.config.head, c.Unembed)):
        raise Refused(422, "no_writing", "this model does not write text", "written")
    if more and model.config.context and len(ids[-1]) + more > model.config.context:
        most = max(model.config.context - len(ids[-1]), 0)
        raise Refused(422, "no_room", f"this model has room for {most} more tokens", "written", most=most)
    for _ in range(more):
        scores = model.logits(*lists(ids))
        ids = (*ids[:-1], (*ids[-1], int(scores[0, -1].argmax())))
    return ids
