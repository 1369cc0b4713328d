"""The map: one head at any length, as tiles on demand, with profiles along its edges."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Path, Request
from pydantic import Field
from torch import Tensor

from pellucid.errors import InputError
from pellucid.spectra.overview import Overview, head_operator, overview
from pellucid.spectra.tiles import TileMap
from pellucid.spectra.watch import Place
from pellucid.web.asking import Asked, Ids, on_model, read, tensors, words
from pellucid.web.payloads import Array, Packed
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book
from pellucid.web.work import Job

router = APIRouter(prefix="/api/map")

TOKENS = 65_536
PROFILE = 1024
NAMED = 20_000
# Weights are sent as multiples of the even share 1/keys: half precision holds those at every length.
LARGEST_SHARE = 32_768


class AskedMap(Asked):
    """tokens: the text is repeated up to so many; as it is where 0."""

    tokens: Annotated[int, Field(ge=0, le=TOKENS)] = 0
    stack: Literal["encoder", "decoder"] = "decoder"
    block: Annotated[int, Field(ge=0, le=10_000)] = 0
    kind: Literal["self", "cross"] = "self"
    head: Annotated[int, Field(ge=0, le=10_000)] = 0


@dataclass(frozen=True, eq=False)
class Opened:
    map: Overview
    head: dict[str, Any]
    profiles: dict[str, Array]


@router.post("", response_class=Packed)
async def opened(asked: AskedMap, request: Request) -> Packed:
    """Open a map: its size, its profiles and its first tile."""

    def call(book: Book, job: Job) -> Packed:
        ids = repeated(read(book, asked, TOKENS), asked.tokens, book.model.config.context)
        name = _name(asked, ids)
        found = book.keep(("map", name), lambda: _open(book, ids, asked, job))
        named = words(book.model, ids[-1]) if len(ids[-1]) <= NAMED else []
        keys = words(book.model, ids[0]) if asked.kind == "cross" and len(ids[0]) <= NAMED else None
        said = found.head | {"map": name, "tokens": named, "keys_tokens": keys}
        return Packed(said, {"tile": _scaled(found, found.map.tile(0, 0, 0))} | found.profiles)

    return await on_model(request, asked.model, call)


@router.get("/tile/{model}/{name}/{level}/{row}/{column}", response_class=Packed)
async def tile(
    request: Request,
    model: Annotated[str, Path(max_length=200)],
    name: Annotated[str, Path(pattern="^[0-9a-f]{32}$")],
    level: Annotated[int, Path(ge=0, le=64)],
    row: Annotated[int, Path(ge=0, le=2**31)],
    column: Annotated[int, Path(ge=0, le=2**31)],
) -> Packed:
    """One tile of a map that was opened not long ago."""

    def call(book: Book, job: Job) -> Packed:
        found: Opened = book.keep(("map", name), _closed)
        return Packed({}, {"tile": _scaled(found, found.map.tile(level, row, column))})

    return await on_model(request, model, call)


def _closed() -> Opened:
    raise Refused(410, "map_closed", "this map was closed to make room: open it again")


def repeated(ids: Ids, tokens: int, context: int | None) -> Ids:
    """The first text over and over, up to so many tokens."""
    if not tokens:
        return ids
    if context is not None and tokens > context:
        said = f"this model reads {context} tokens at most, not {tokens}"
        raise Refused(422, "context", said, "tokens", most=context, count=tokens)
    text = ids[0]
    return ((text * -(-tokens // len(text)))[:tokens], *ids[1:])


def _name(asked: AskedMap, ids: Ids) -> str:
    place = (asked.stack, asked.block, asked.kind, asked.head)
    return hashlib.blake2b(repr((place, ids)).encode(), digest_size=16).hexdigest()


def _open(book: Book, ids: Ids, asked: AskedMap, job: Job) -> Opened:
    job.expect(asked.block + 10)

    def progress(done: int, total: int) -> None:
        job.check()
        job.total = asked.block + 1 + total
        job.done = asked.block + 1 + done

    place = Place(asked.stack, asked.block, asked.kind)
    try:
        operator = head_operator(book.model, tensors(book.model, ids), place, asked.head)
    except InputError as error:
        raise refused_by(error, "no_map", "head") from None
    tiles = TileMap(operator)
    found = overview(tiles, progress)
    view = operator.view
    head = {
        "queries": view.queries,
        "keys": view.keys,
        "side": tiles.side,
        "levels": tiles.levels,
        "scale": min(view.keys, LARGEST_SHARE),
        "offset": view.offset,
    }
    profiles = {
        "entropy": _profile(operator.row_entropy()[0, 0]),
        "sink": _profile(operator.column(0)[0, 0]),
        "received": _profile(found.received()),
    }
    return Opened(found, head, profiles)


def _profile(values: Tensor) -> Array:
    """At most so many means of neighbours."""
    numbers: Array = values.double().cpu().numpy()
    each = -(-len(numbers) // PROFILE)
    padded = np.pad(numbers, (0, -len(numbers) % each), constant_values=np.nan)
    return np.asarray(np.nanmean(padded.reshape(-1, each), 1), np.float32)


def _scaled(found: Opened, values: Tensor) -> Array:
    return (values.float() * found.head["scale"]).clamp(max=65_000).half().cpu().numpy()
