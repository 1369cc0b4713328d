"""The cache: a text written step by step, what each step computes and reuses, and that it makes no difference."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Request
from pydantic import Field
from torch import Tensor

from pellucid.generation.film import Film, Frame, film, room_for, why_no_cache
from pellucid.model import config as c
from pellucid.web.asking import Asked, Ids, on_model, read, words
from pellucid.web.payloads import Array, Packed, compact, pooled
from pellucid.web.refusal import Refused
from pellucid.web.shelf import Book
from pellucid.web.views.trace import formula
from pellucid.web.work import Job

router = APIRouter(prefix="/api/cache")

TOKENS = 256
ROWS = 1_000_000  # bytes of all pictures

_FORMULAS: dict[str, tuple[str, ...]] = {
    "softmax": (r"o_t = \sum_{j \le t} \frac{e^{q_t^\top k_j s}}{\sum_{i \le t} e^{q_t^\top k_i s}} \, v_j",),
    "normalized_relu": (
        r"o_t = \sum_{j \le t} \frac{\max(0,\, q_t^\top k_j)}{\sum_{i \le t} \max(0,\, q_t^\top k_i)} \, v_j",
    ),
    "linear": (
        r"o_t = \frac{\phi(q_t)^\top S_t}{\phi(q_t)^\top z_t}",
        r"S_t = S_{t-1} + \phi(k_t) v_t^\top, \quad z_t = z_{t-1} + \phi(k_t)",
    ),
}


class AskedCache(Asked):
    """written: how many tokens at most. group: whose rows are drawn, of the heads of keys and values."""

    written: Annotated[int, Field(ge=1, le=64)] = 16
    group: Annotated[int, Field(ge=0, le=10_000)] = 0


@router.post("", response_class=Packed)
async def steps(asked: AskedCache, request: Request) -> Packed:
    """Every step of the text, written with a cache and checked without one."""
    return await on_model(request, asked.model, lambda book, job: _steps(book, asked, job))


def _steps(book: Book, asked: AskedCache, job: Job) -> Packed:
    config = book.model.config
    why = why_no_cache(config)
    if why is not None:
        return Packed({"why": why}, {})
    if asked.group >= config.groups:
        raise Refused(422, "no_head", f"there is no key-value head {asked.group}", "group")
    ids = read(book, asked, TOKENS)
    written = room_for(config, len(ids[-1]), asked.written)
    # Each step is run with the cache and without, where the source is read again too.
    job.expect(written * (2 * config.decoder_blocks + config.encoder_blocks) + config.encoder_blocks)
    seen = book.keep(("cache", ids, written), lambda: film(book.model, ids, written))
    return Packed(_said(book, ids, seen), _rows(seen, asked.group, config))


def _said(book: Book, ids: Ids, seen: Film) -> dict[str, Any]:
    config, model = book.model.config, book.model
    linear = isinstance(config.attention, c.Linear)
    return {
        "why": None,
        "tokens": words(model, seen.ids),
        "source": words(model, ids[0]) if seen.source else None,
        "prompt": seen.prompt,
        "end": seen.end,
        "allowed": seen.allowed,
        "dtype": str(model.dtype).removeprefix("torch."),
        "groups": config.groups,
        "heads": config.heads,
        "widths": [config.key_width, config.values_width],
        "windows": [config.window_of(block) for block in range(config.decoder_blocks)],
        "state": [config.heads, c.feature_width(config), config.values_width + 1] if linear else None,
        "formulas": [formula(latex) for latex in _FORMULAS[config.attention.kind]],
        "steps": [_step(book, frame) for frame in seen.frames],
    }


def _step(book: Book, frame: Frame) -> dict[str, Any]:
    names = words(book.model, tuple(word for word, _ in frame.candidates))
    chances = [chance for _, chance in frame.candidates]
    return {
        "past": frame.past,
        "read": frame.read,
        "candidates": [{"token": name, "probability": chance} for name, chance in zip(names, chances, strict=True)],
        "largest": frame.largest,
        "change": frame.change,
        "row_change": frame.row_change,
        "queries": [frame.queries, frame.queries_without],
        "held": list(frame.held),
        "of_source": frame.of_source,
        "flops": [frame.flops, frame.flops_without],
    }


def _rows(seen: Film, group: int, config: c.ModelConfig) -> dict[str, Array]:
    """One head's rows in every block [blocks, tokens, numbers]; the query is that of the first head of the group."""
    found: dict[str, Tensor | None] = {
        "query": seen.queries[:, group * (config.heads // config.groups)],
        "key": None if seen.keys is None else seen.keys[:, group],
        "value": None if seen.values is None else seen.values[:, group],
        "source_key": None if seen.source_keys is None else seen.source_keys[:, group],
        "source_value": None if seen.source_values is None else seen.source_values[:, group],
    }
    rows: dict[str, Array] = {name: part.float().numpy() for name, part in found.items() if part is not None}
    each = 1
    while sum(-(-part.shape[2] // each) * part.shape[0] * part.shape[1] * 2 for part in rows.values()) > ROWS:
        each *= 2
    small = {name: np.stack([pooled(block, 1, each) for block in part]) for name, part in rows.items()}
    return {name: compact(part) for name, part in small.items()}
