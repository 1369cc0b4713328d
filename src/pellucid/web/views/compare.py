"""Compare: two models on one text; their predictions, their weights, their heads, and what differs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from pydantic import Field

from pellucid.errors import InputError, PellucidError
from pellucid.lens.side_by_side import Said, same_vocabulary, say, side_by_side, why_apart
from pellucid.lens.trace import Step
from pellucid.lens.trace import trace as run
from pellucid.lens.view import allowed
from pellucid.spectra.parameters import (
    TAUS,
    ParameterChange,
    noise_like,
    odd_shape,
    parameter_change,
    parameter_changes,
    parameters,
)
from pellucid.spectra.rank import singular_values
from pellucid.spectra.watch import Place, places
from pellucid.web.asking import Asked, Ids, lists, on_two, read, words
from pellucid.web.head_grid import grid_of, measured
from pellucid.web.low_rank import relative, site_of
from pellucid.web.payloads import Array, Packed, compact, head_values, points, thinned
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book
from pellucid.web.work import Job

router = APIRouter(prefix="/api/compare")

TOKENS = 256
WIDEST = 1024  # the smaller side of a matrix: the ranks of larger ones are found when they are asked for
Pair = tuple[Ids, Ids]


class AskedTwo(Asked):
    """other: the second model, on the same text."""

    other: Annotated[str, Field(max_length=200)]


class AskedWeight(AskedTwo):
    weight: Annotated[str, Field(max_length=300)]


class AskedHead(AskedTwo):
    """place: which attention of the first model, in the order of its grid's rows."""

    place: Annotated[int, Field(ge=0, le=10_000)]
    head: Annotated[int, Field(ge=0, le=10_000)]


@router.post("")
async def predictions(asked: AskedTwo, request: Request) -> dict[str, Any]:
    """What both say of the text, and how much of the two can be compared."""

    def call(first: Book, second: Book, job: Job) -> dict[str, Any]:
        ids = _read(first, second, asked)
        job.expect(sum(_blocks(book) for book in (first, second)))
        ours, theirs = _said(first, ids[0]), _said(second, ids[1])
        apart = why_apart(ours, theirs)
        odd = odd_shape(first.model, second.model)
        both = ((first, ids[0]), (second, ids[1]))
        return {
            "same": first is second,
            "tokens": [words(book.model, own[-1]) for book, own in both],
            "sources": [words(book.model, own[0]) if len(own) > 1 else None for book, own in both],
            "apart": apart,
            "together": None if apart else side_by_side(ours, theirs).to_json(),
            "alone": [_alone(said) for said in (ours, theirs)] if apart else None,
            "odd": None if odd is None else asdict(odd),
        }

    return await on_two(request, asked.model, asked.other, call)


@router.post("/weights")
async def weights(asked: AskedTwo, request: Request) -> dict[str, Any]:
    """By how much every parameter differs, and how low-rank the difference is."""

    def call(first: Book, second: Book, job: Job) -> dict[str, Any]:
        _check_shape(first, second)

        def measure() -> tuple[ParameterChange, ...]:
            return parameter_changes(first.opened, second.opened, widest=WIDEST, progress=job.report)

        found = first.keep(("parameters", second.name), measure)
        return {"parameters": [_told(one) for one in found], "widest": WIDEST}

    return await on_two(request, asked.model, asked.other, call)


@router.post("/weight", response_class=Packed)
async def weight(asked: AskedWeight, request: Request) -> Packed:
    """One matrix: the singular values of the difference, of noise of the same size, and of the matrix itself."""

    def call(first: Book, second: Book, job: Job) -> Packed:
        _check_shape(first, second)
        try:
            found = parameter_change(first.opened, second.opened, asked.weight)
        except InputError as error:
            raise refused_by(error, "no_weight", "weight", name=asked.weight) from None
        job.check()
        return _curves(first, found)

    return await on_two(request, asked.model, asked.other, call)


@router.post("/heads", response_class=Packed)
async def heads(asked: AskedTwo, request: Request) -> Packed:
    """The ranks and statistics of all heads of both, and those of random weights."""

    def call(first: Book, second: Book, job: Job) -> Packed:
        ids = _read(first, second, asked)
        said: list[dict[str, Any]] = []
        arrays: dict[str, Array] = {}
        for name, book, own in (("first", first, ids[0]), ("second", second, ids[1])):
            head, found = grid_of(book, own, measured(book, own, job))
            said.append(head)
            arrays |= {f"{name}_{which}": values for which, values in found.items()}
        return Packed({"models": said, "matched": _matched(first, second, ids)}, arrays)

    return await on_two(request, asked.model, asked.other, call)


@router.post("/head", response_class=Packed)
async def head(asked: AskedHead, request: Request) -> Packed:
    """The attention weights of one head in both, and their difference."""

    def call(first: Book, second: Book, job: Job) -> Packed:
        ids = _read(first, second, asked)
        place = _place(first, second, asked)
        job.expect(sum(_blocks(book) for book in (first, second)))
        both = [_weights(book, own, place) for book, own in ((first, ids[0]), (second, ids[1]))]
        ours, theirs = (head_values(step, asked.head) for step in both)
        if ours.shape != theirs.shape:
            raise Refused(
                422, "no_pair", f"{list(ours.shape)} weights have no partner in {list(theirs.shape)}", "other"
            )
        return _side_by_side(both, ours, theirs)

    return await on_two(request, asked.model, asked.other, call)


def _read(first: Book, second: Book, asked: AskedTwo) -> Pair:
    """What the second model refuses stands beside its own field."""
    own = read(first, asked, TOKENS)
    try:
        return own, read(second, asked, TOKENS)
    except Refused as refused:
        refused.field = "other"
        raise
    except PellucidError as error:
        raise refused_by(error, "model", "other") from None


def _blocks(book: Book) -> int:
    return book.model.config.encoder_blocks + book.model.config.decoder_blocks


def _said(book: Book, ids: Ids) -> Said:
    return book.keep(("said", ids), lambda: say(book.model, ids))


def _alone(said: Said) -> dict[str, Any]:
    entries = (said.likeliest(place) for place in range(len(said.scores)))
    return {"kind": said.kind, "places": [[{"token": t, "probability": p} for t, p in one] for one in entries]}


def _check_shape(first: Book, second: Book) -> None:
    odd = odd_shape(first.model, second.model)
    if odd is not None:
        said = f"the two models differ in shape: {odd.name} is {odd.first} and {odd.second}"
        raise Refused(422, "odd_shape", said, "other", **{key: str(value) for key, value in asdict(odd).items()})


def _told(found: ParameterChange) -> dict[str, Any]:
    own = {"name": found.name, "shape": list(found.shape), "relative": found.relative, "differs": found.difference > 0}
    if found.change is None:
        return own | {"ranks": None}
    ranks = found.change.spectrum.ranks
    effective = {str(tau): ranks.at(tau) for tau in TAUS}
    told = {
        "numerical": ranks.numerical,
        "effective": effective,
        "of": min(ranks.shape),
        "factored": found.change.factored,
    }
    return own | {"ranks": told}


def _curves(first: Book, found: ParameterChange) -> Packed:
    if found.change is None:
        return Packed(_told(found) | {"noise": None}, {})
    noise = noise_like(found.change, found.size)
    curves = {
        "change": found.change.spectrum.singular_values,
        "noise": noise.spectrum.singular_values,
        "own": tuple(singular_values(parameters(first.model)[found.name]).tolist()),
    }
    index = points(max(map(len, curves.values())))
    arrays = {name: thinned(values, index) for name, values in curves.items()}
    effective = {str(tau): noise.spectrum.ranks.at(tau) for tau in TAUS}
    told = {"noise": {"numerical": noise.spectrum.ranks.numerical, "effective": effective}}
    return Packed(_told(found) | told, {"index": (index + 1).astype(np.float32)} | arrays)


def _matched(first: Book, second: Book, ids: Pair) -> bool:
    """Whether every head has its partner on the same tokens."""
    ours, theirs = ((list(places(book.model.network)), book.model.config.heads) for book in (first, second))
    return ours == theirs and ids[0] == ids[1] and same_vocabulary(first.model, second.model)


def _place(first: Book, second: Book, asked: AskedHead) -> Place:
    known = list(places(first.model.network))
    if asked.place >= len(known) or asked.head >= first.model.config.heads:
        raise Refused(422, "no_head", f"there is no head {asked.head} at place {asked.place}", "head")
    place = known[asked.place]
    if place not in places(second.model.network) or asked.head >= second.model.config.heads:
        raise Refused(422, "no_pair", f"the second model has no head {asked.head} at {site_of(place)}", "other")
    return place


def _weights(book: Book, ids: Ids, place: Place) -> Step:
    site = f"{site_of(place)}.weights"
    return book.keep(("weights", ids, site), lambda: run(book.formed, *lists(ids), sites=[site])[site])


def _side_by_side(both: list[Step], ours: Array, theirs: Array) -> Packed:
    hidden = np.isnan(ours) & np.isnan(theirs)
    old, new = (np.nan_to_num(values.astype(np.float64)) for values in (ours, theirs))
    difference = np.where(hidden, np.nan, new - old)
    said = {
        "site": both[0].site,
        "shape": list(ours.shape),
        "errors": [min(step.error, 1e300) for step in both],
        "verified": all(step.error <= allowed(step) for step in both),
        "largest": float(np.abs(new - old).max()),
        "relative": relative(torch.from_numpy(old), torch.from_numpy(new)),
    }
    arrays = {"first": ours, "second": theirs, "difference": difference}
    return Packed(said, {name: compact(values) for name, values in arrays.items()})
