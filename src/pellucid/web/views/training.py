"""Training: the heads of a model while they learned, as the run that trained it recorded them."""

from __future__ import annotations

from typing import Any

import numpy as np
from fastapi import APIRouter, Request

from pellucid.errors import InputError
from pellucid.training.recording import MEASURES, Recording, read_recording
from pellucid.web.asking import AskedModel, on_model
from pellucid.web.payloads import Packed, compact
from pellucid.web.refusal import Refused, refused_by
from pellucid.web.shelf import Book

router = APIRouter(prefix="/api/training")

VALUES = 400_000  # numbers: more steps than fit are thinned out


@router.post("", response_class=Packed)
async def film(asked: AskedModel, request: Request) -> Packed:
    """Every recorded step: a number for each measure, attention and head."""
    return await on_model(request, asked.model, lambda book, job: _film(book))


def _film(book: Book) -> Packed:
    folder = book.model.origin.folder
    try:
        found = None if folder is None else read_recording(folder)
    except InputError as error:
        raise refused_by(error, "no_record", "model") from None
    if found is None:
        return Packed({"recorded": False}, {})
    kept = _thinned(found)
    arrays = {name: compact(found.values[name][kept]) for name in MEASURES}
    return Packed(_said(found, kept), arrays)


def _thinned(found: Recording) -> list[int]:
    """Steps evenly apart in the order of the film, its ends among them."""
    count = len(found.steps)
    each = len(found.places) * len(found.heads) * len(MEASURES)
    if 2 * each > VALUES:
        said = f"{len(found.places)} x {len(found.heads)} heads are too many to draw"
        raise Refused(422, "no_record", said, "model", detail=said)
    shown = min(count, max(2, VALUES // each))
    return sorted({round(place) for place in np.linspace(0, count - 1, shown)})


def _said(found: Recording, kept: list[int]) -> dict[str, Any]:
    losses = [found.losses[place] for place in kept]
    return {
        "recorded": True,
        "steps": [found.steps[place] for place in kept],
        "losses": [loss if loss is not None and np.isfinite(loss) else None for loss in losses],
        "places": [{"stack": stack, "block": block, "kind": kind} for stack, block, kind in found.places],
        "heads": list(found.heads),
        "measures": list(MEASURES),
    }
