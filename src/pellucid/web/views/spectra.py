"""Spectra: how low-rank every head is beside random weights, and what is left of one at a smaller rank."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal, get_args

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field

from pellucid.errors import InputError
from pellucid.lens.outcome import outcome
from pellucid.spectra.results import Head
from pellucid.spectra.truncation import truncate
from pellucid.spectra.watch import Place, places
from pellucid.web.asking import Asked, Ids, on_model, read
from pellucid.web.head_grid import grid_of, heads_at, measured
from pellucid.web.low_rank import EXACT, Opened, open_head, relative, run_at
from pellucid.web.payloads import LARGEST, Array, Packed, compact, points, thinned
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book
from pellucid.web.work import Job

if TYPE_CHECKING:
    from pellucid.figures.gallery import Figure

router = APIRouter(prefix="/api/spectra")

TOKENS = 4096
Drawn = Literal["sinks", "looks", "decays"]  # of the gallery, what the grid and the curves do not show


class AskedHead(Asked):
    """place: which attention, in the order of the grid's rows."""

    place: Annotated[int, Field(ge=0, le=10_000)]
    head: Annotated[int, Field(ge=0, le=10_000)]


class AskedRank(AskedHead):
    rank: Annotated[int, Field(ge=1, le=TOKENS)]


class AskedFigure(Asked):
    figure: Drawn


@router.post("", response_class=Packed)
async def grid(asked: Asked, request: Request) -> Packed:
    """The ranks and statistics of all heads, and those of random weights; figures: charts of more of them."""

    def call(book: Book, job: Job) -> Packed:
        ids = read(book, asked, TOKENS)
        found = measured(book, ids, job)
        said, arrays = grid_of(book, ids, found)
        return Packed(said | {"figures": [name for name in get_args(Drawn) if _gallery()[name].fits(found)]}, arrays)

    return await on_model(request, asked.model, call)


@router.post("/figure")
async def figure(asked: AskedFigure, request: Request) -> Response:
    """A chart of all heads, as the Vega-Lite definition that a notebook and the offline page draw too."""

    def call(book: Book, job: Job) -> Response:
        found = measured(book, read(book, asked, TOKENS), job)
        drawn = _gallery()[asked.figure]
        if not drawn.fits(found):
            raise Refused(422, "no_figure", "no head of this text has the numbers of this chart", "figure")
        defined = json.dumps(drawn.draw(found).to_dict(), separators=(",", ":"), allow_nan=False)
        if len(defined) > LARGEST:
            raise Refused(422, "many_heads", "too many heads for this chart: `pellucid spectrum --html`", "figure")
        return Response(defined, media_type="application/json")

    return await on_model(request, asked.model, call)


@router.post("/head", response_class=Packed)
async def head(asked: AskedHead, request: Request) -> Packed:
    """One head: its matrix, and the singular values of all heads of its attention."""

    def call(book: Book, job: Job) -> Packed:
        ids = read(book, asked, TOKENS)
        _place(book, asked)
        beside = heads_at(measured(book, ids, job), book, asked.place)
        opened = _opened(book, ids, asked, job)
        said = {
            "site": opened.site,
            "shape": opened.shape,
            "each": opened.each,
            "ranks": opened.found.ranks,
            "exact": opened.found.exact,
            "error": opened.error,
            "verified": opened.verified,
        }
        return Packed(said, {"picture": compact(opened.picture)} | _curves(beside, asked.head))

    return await on_model(request, asked.model, call)


@router.post("/rank", response_class=Packed)
async def at_rank(asked: AskedRank, request: Request) -> Packed:
    """The head at a rank: its matrix, its output, and what the model then says."""

    def call(book: Book, job: Job) -> Packed:
        ids = read(book, asked, TOKENS)
        opened = _opened(book, ids, asked, job)
        if asked.rank > opened.found.ranks:
            said = f"ranks 1 to {opened.found.ranks} are known here, not {asked.rank}"
            raise Refused(422, "no_rank", said, "rank", most=opened.found.ranks)
        job.expect(book.model.config.encoder_blocks + book.model.config.decoder_blocks)
        found = truncate(opened.found, asked.rank, opened.rows)
        output, edited = run_at(book, ids, opened, asked.rank)
        told = {"output": relative(opened.output, output), "outcome": outcome(book.model, edited).to_json()}
        return Packed(asdict(found) | told, {"picture": compact(opened.picture_at(asked.rank))})

    return await on_model(request, asked.model, call)


def _gallery() -> dict[str, Figure]:
    from pellucid.figures.gallery import GALLERY

    return GALLERY


def _place(book: Book, asked: AskedHead) -> Place:
    known = list(places(book.model.network))
    if asked.place >= len(known) or asked.head >= book.model.config.heads:
        raise Refused(422, "no_head", f"there is no head {asked.head} at place {asked.place}", "head")
    return known[asked.place]


def _opened(book: Book, ids: Ids, asked: AskedHead, job: Job) -> Opened:
    place = _place(book, asked)
    try:
        return book.keep(("rank", ids, place, asked.head), lambda: open_head(book, ids, place, asked.head, job.report))
    except InputError as error:
        raise refused_by(error, "no_spectrum", "text", exact=EXACT) from None


def _curves(heads: tuple[Head, ...], chosen: int) -> dict[str, Array]:
    """The singular values of the heads, thinned out where they are many; NaN where one has fewer."""
    twin = heads[chosen].baseline
    assert twin is not None
    every = [head.measured.spectrum.values for head in heads]
    longest = max(map(len, [*every, twin.spectrum.values]))
    index = points(longest)
    return {
        "index": (index + 1).astype(np.float32),
        "values": np.stack([thinned(values, index) for values in every]),
        "baseline": thinned(twin.spectrum.values, index),
    }
