"""Attention: all heads as thumbnails, one of them whole, and what would change if it were computed otherwise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field

from pellucid.errors import InputError
from pellucid.lens import whatif as w
from pellucid.lens.trace import Step, Trace
from pellucid.lens.trace import trace as run
from pellucid.lens.view import allowed, readable
from pellucid.model import config as c
from pellucid.web.asking import Asked, Ids, extended, lists, on_model, read, words
from pellucid.web.payloads import Array, Packed, head_values, pooled
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book
from pellucid.web.work import Job

router = APIRouter(prefix="/api/attention")

TOKENS = 1024
ONE, THUMBNAILS = 900_000, 700_000
CHANGES: dict[str, w.Change] = {
    "no_scaling": w.NoScaling(),
    "keys_queries": w.KeysQueries(),
    "cosine": w.Cosine(),
    "distance": w.NegativeSquaredDistance(),
    "relu": w.NormalizedRelu(),
    "mask_off": w.MaskOff(),
    "mask_on": w.MaskOn(),
    "positions_off": w.PositionsOff(),
}
ChangeName = Literal[
    "none",
    "temperature",
    "no_scaling",
    "keys_queries",
    "cosine",
    "distance",
    "relu",
    "mask_off",
    "mask_on",
    "positions_off",
]


class AskedAttention(Asked):
    """written: so many tokens are written on to the text first. change: what if."""

    written: Annotated[int, Field(ge=0, le=32)] = 0
    change: ChangeName = "none"
    temperature: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 1.0


class AskedHead(AskedAttention):
    """place: which attention, in the order of the thumbnails' rows."""

    place: Annotated[int, Field(ge=0, le=10_000)]
    head: Annotated[int, Field(ge=0, le=10_000)]


@dataclass(frozen=True)
class Seen:
    """The weights as the model computes them, and with the change, if one was asked for."""

    ids: Ids
    own: tuple[Step, ...]
    changed: tuple[Step, ...]
    head: dict[str, Any]


@router.post("", response_class=Packed)
async def overview(asked: AskedAttention, request: Request) -> Packed:
    """The thumbnails of all heads."""
    return await on_model(request, asked.model, lambda book, job: _overview(_seen(book, asked, job), book))


@router.post("/head", response_class=Packed)
async def head(asked: AskedHead, request: Request) -> Packed:
    """One head's weights."""

    def call(book: Book, job: Job) -> Packed:
        seen = _seen(book, asked, job)
        if asked.place >= len(seen.own) or asked.head >= book.model.config.heads:
            raise Refused(422, "no_head", f"there is no head {asked.head} at place {asked.place}", "head")
        arrays = {"own": _one(seen.own[asked.place], asked.head)}
        if seen.changed:
            arrays["changed"] = _one(seen.changed[asked.place], asked.head)
        step = seen.own[asked.place]
        said = {"place": asked.place, "head": asked.head, "site": step.site, "shape": list(step.value.shape[2:])}
        return Packed(said, arrays)

    return await on_model(request, asked.model, call)


def _seen(book: Book, asked: AskedAttention, job: Job) -> Seen:
    config = book.model.config
    runs = asked.written + (1 if asked.change == "none" else 2)
    job.expect(runs * (config.encoder_blocks + config.decoder_blocks))
    ids = read(book, asked, TOKENS)
    change = _change(asked)
    return book.keep(("attention", ids, asked.written, change), lambda: _look(book, ids, asked, change))


def _look(book: Book, ids: Ids, asked: AskedAttention, change: w.Change | None) -> Seen:
    ids = extended(book.model, ids, asked.written)
    if change is None:
        traced = run(book.formed, *lists(ids), sites=["*.weights"])
        return Seen(ids, traced.steps, (), _prediction(traced))
    output = "logits" if isinstance(book.model.config.head, c.Pool) else "probabilities"
    # A mask turns an encoder into a decoder: patterns find the weights of either.
    text, *target = lists(ids)
    try:
        compared = w.what_if(book.formed, text, change, *target, sites=["*.weights", output])
    except InputError as error:
        raise refused_by(error, "no_change", "change") from None
    own, changed = (tuple(s for s in one.steps if s.site != output) for one in (compared.original, compared.changed))
    predictions = [
        {"token": readable(token), "before": before, "after": after} for token, before, after in compared.predictions
    ]
    said = {"largest_change": compared.largest_change, "compared": predictions, "notes": list(compared.notes)}
    return Seen(ids, own, changed, _prediction(compared.original) | said)


def _prediction(traced: Trace) -> dict[str, Any]:
    return {"prediction": [{"token": readable(token), "probability": share} for token, share in traced.prediction]}


def _change(asked: AskedAttention) -> w.Change | None:
    if asked.change == "temperature":
        return w.Temperature(asked.temperature)
    return CHANGES.get(asked.change)


def _overview(seen: Seen, book: Book) -> Packed:
    heads = book.model.config.heads
    side = max(2, min(48, math.isqrt(THUMBNAILS // (2 * heads * len(seen.own) * (2 if seen.changed else 1)))))
    arrays = {"own": _thumbnails(seen.own, heads, side)}
    if seen.changed:
        arrays["changed"] = _thumbnails(seen.changed, heads, side)
    model = book.model
    said = {
        "tokens": words(model, seen.ids[-1]),
        "source": words(model, seen.ids[0]) if len(seen.ids) > 1 else None,
        "places": [_place(step) for step in seen.own],
        "heads": heads,
    }
    return Packed(said | seen.head, arrays)


def _place(step: Step) -> dict[str, Any]:
    stack, block, kind, _ = step.site.split(".")
    return {
        "site": step.site,
        "stack": stack,
        "block": int(block),
        "kind": "cross" if kind == "cross" else "self",
        "shape": list(step.value.shape[2:]),
        "error": min(step.error, 1e300),
        "verified": step.error <= allowed(step),
    }


def _thumbnails(steps: tuple[Step, ...], heads: int, side: int) -> Array:
    """[places, heads, side, side], NaN beyond a smaller matrix and where the mask hides."""
    found = np.full((len(steps), heads, side, side), np.nan, np.float16)
    for place, step in enumerate(steps):
        for head in range(heads):
            whole = head_values(step, head)
            small = pooled(whole, *(-(-size // side) for size in whole.shape))
            found[place, head, : small.shape[0], : small.shape[1]] = small
    return found


def _one(step: Step, head: int) -> Array:
    whole = head_values(step, head)
    each = 1
    while whole.size // each**2 * 2 > ONE:
        each *= 2
    small = pooled(whole, each, each)
    return small.astype(np.float32 if small.size <= 1 << 14 else np.float16)
