"""The trace: every step with its formula, its check and its matrix; any cell as arithmetic."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

from fastapi import APIRouter, Request
from latex2mathml.converter import convert
from pydantic import Field

from pellucid import axes
from pellucid.errors import InputError
from pellucid.lens.explain import explain
from pellucid.lens.note import against_note
from pellucid.lens.trace import Step, Trace
from pellucid.lens.trace import trace as run
from pellucid.lens.view import allowed, block_of, names_tokens, readable
from pellucid.model import config as c
from pellucid.web.asking import Asked, Ids, lists, on_model, read, words
from pellucid.web.operands import operands
from pellucid.web.payloads import Array, Packed, step_values
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book
from pellucid.web.work import Job

router = APIRouter(prefix="/api/trace")

TOKENS = 512
# Bytes of one step; and of those that come with the first answer, so that the top of the story needs no second one.
ONE, FIRST = 1_000_000, 400_000
# A vocabulary small enough for its columns to be named.
NAMED = 12
formula = cache(lambda latex: convert(latex, display="block"))


class AskedSite(Asked):
    site: Annotated[str, Field(max_length=100)]


class AskedCell(AskedSite):
    index: Annotated[list[Annotated[int, Field(ge=0, le=2**31)]], Field(min_length=1, max_length=3)]


@router.post("", response_class=Packed)
async def story(asked: Asked, request: Request) -> Packed:
    """All steps, with the values of as many as fit."""
    return await on_model(request, asked.model, lambda book, job: _story(book, asked, job))


@router.post("/values", response_class=Packed)
async def values(asked: AskedSite, request: Request) -> Packed:
    """The values of one step."""

    def call(book: Book, job: Job) -> Packed:
        step = _step_of(_traced(book, read(book, asked, TOKENS), job), asked.site)
        numbers, rows, columns = step_values(step, ONE)
        return Packed({"site": step.site, "each": [rows, columns]}, {step.site: numbers})

    return await on_model(request, asked.model, call)


@router.post("/cell")
async def cell(asked: AskedCell, request: Request) -> dict[str, Any]:
    """The arithmetic of one cell, and where its operands stand."""

    def call(book: Book, job: Job) -> dict[str, Any]:
        traced = _traced(book, read(book, asked, TOKENS), job)
        step = _step_of(traced, asked.site)
        _check_cell(step, asked.index)
        name = f"{asked.site}[{','.join(map(str, (0, *asked.index)))}]"
        answer = explain(traced, name, book.formed).to_json()
        config = book.model.config
        after = config.placement == "post" and not isinstance(config.norm, c.Identity)
        found = [one.to_json() for one in operands(step, tuple(asked.index), summed_before_norm=after)]
        return answer | {"formula": formula(step.formula), "operands": found, "verified": step.error <= allowed(step)}

    return await on_model(request, asked.model, call)


def _traced(book: Book, ids: Ids, job: Job) -> Trace:
    config = book.model.config
    job.expect(config.encoder_blocks + config.decoder_blocks)
    return book.keep(("trace", ids), lambda: run(book.formed, *lists(ids)))


def _step_of(traced: Trace, site: str) -> Step:
    try:
        return traced[site]
    except InputError as error:
        raise refused_by(error, "no_site", "text", site=site) from None


def _check_cell(step: Step, index: list[int]) -> None:
    shape = list(step.value.shape[1:])
    if len(index) != len(shape) or any(place >= size for place, size in zip(index, shape, strict=True)):
        said = f"{step.site} has the shape {shape}, where {index} is no cell"
        raise Refused(422, "no_cell", said, "text", site=step.site, shape=" x ".join(map(str, shape)))


def _story(book: Book, asked: Asked, job: Job) -> Packed:
    traced = _traced(book, read(book, asked, TOKENS), job)
    arrays: dict[str, Array] = {}
    steps, left = [], FIRST
    vocab = words(book.model, tuple(range(book.model.config.vocab))) if book.model.config.vocab <= NAMED else []
    for step in traced.steps:
        job.check()
        said = _step(traced, step, vocab)
        if step.value.numel() * 2 <= left:
            arrays[step.site], *said["each"] = step_values(step, left)
            left -= arrays[step.site].nbytes
        steps.append(said)
    head = {
        "tokens": [readable(token) for token in traced.tokens],
        "steps": steps,
        "prediction": [{"token": readable(token), "probability": share} for token, share in traced.prediction],
        "notes": list(traced.notes),
        "note": _note(book, traced),
    }
    return Packed(head, arrays)


def _step(traced: Trace, step: Step, vocab: list[str]) -> dict[str, Any]:
    last = len(step.axes) - 1
    named = bool(vocab) and step.axes[-1] == axes.VOCAB
    rows_are_tokens = step.value.dim() > 2 and names_tokens(traced, step, last - 1)
    return {
        "site": step.site,
        "group": block_of(step.site),
        "formula": formula(step.formula),
        "inputs": list(step.inputs),
        "axes": list(step.axes[1:]),
        "shape": list(step.value.shape[1:]),
        "error": min(step.error, 1e300),
        "verified": step.error <= allowed(step),
        "rows": "tokens" if rows_are_tokens else "numbers",
        "columns": "tokens" if names_tokens(traced, step, last) else "words" if named else "numbers",
        "words": vocab if named else [],
        "each": [1, 1],
    }


def _note(book: Book, traced: Trace) -> dict[str, Any] | None:
    """The note's own numbers, where this is the model and the text that it works out."""
    if book.name != "worked-example" or traced.tokens != ("I", "love"):
        return None
    compared = against_note(traced)
    return compared.to_json()
