"""Positions: every scheme side by side, at the length that the user asks for."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from pellucid.model import config as c
from pellucid.model.positions import Positions, alibi_slopes, distances, rotary_angles, sinusoids, t5_bucket
from pellucid.model.transformer import Transformer
from pellucid.web.asking import on_model
from pellucid.web.payloads import Array, Packed, compact
from pellucid.web.shelf import Book
from pellucid.web.work import Job

router = APIRouter(prefix="/api/positions")

POINTS = 1024


class AskedPositions(BaseModel):
    """width: of the code, and of a head for rotary; base: of both."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, Field(max_length=200)]
    length: Annotated[int, Field(ge=2, le=65_536)] = 64
    width: Annotated[int, Field(ge=4, le=256, multiple_of=2)] = 32
    heads: Annotated[int, Field(ge=1, le=32)] = 8
    base: Annotated[float, Field(gt=1, le=1e9, allow_inf_nan=False)] = 10_000.0


@router.post("", response_class=Packed)
async def compared(asked: AskedPositions, request: Request) -> Packed:
    """The tables of every scheme, thinned out where they are long."""
    return await on_model(request, asked.model, lambda book, job: _compared(book, asked, job))


def _compared(book: Book, asked: AskedPositions, job: Job) -> Packed:
    places = spread(asked.length)
    job.expect(5)
    arrays: dict[str, Array] = {"places": places.numpy().astype(np.float32)}
    arrays["sinusoidal"] = compact(sinusoids(places[None], c.Sinusoidal(base=asked.base), asked.width)[0].numpy())
    angles = rotary_angles(places[None], c.Rotary(base=asked.base), asked.width)[0][0].double()
    arrays["rotary"] = (angles % (2 * torch.pi)).float().numpy()
    arrays["alibi"] = compact((-torch.tensor(alibi_slopes(asked.heads))[:, None] * places).float().numpy())
    both = torch.cat((-places.flip(0), places[1:]))
    scheme = c.T5Buckets()
    arrays["distances"] = both.numpy().astype(np.float32)
    arrays["t5_causal"] = t5_bucket(both, scheme, causal=True).numpy().astype(np.float32)
    arrays["t5_both"] = t5_bucket(both, scheme, causal=False).numpy().astype(np.float32)
    arrays |= decay(places, asked)
    own, said = _own(book.model.network, book.model.config, asked.length, places)
    head = {"buckets": scheme.buckets, "max_distance": scheme.max_distance, "slopes": alibi_slopes(asked.heads)}
    return Packed(head | said, arrays | own)


def spread(length: int) -> Tensor:
    """Every place, or so many of them evenly apart, ends included."""
    return torch.linspace(0, length - 1, min(length, POINTS), dtype=torch.float64).round().long()


def decay(places: Tensor, asked: AskedPositions) -> dict[str, Array]:
    """What the product of two equal vectors keeps at each distance, of what it is at distance 0."""
    angles = rotary_angles(places[None], c.Rotary(base=asked.base), asked.width)[0][0].double()
    code = sinusoids(places[None], c.Sinusoidal(base=asked.base), asked.width)[0].double()
    slopes = torch.tensor(alibi_slopes(asked.heads), dtype=torch.float64)
    return {
        "decay_sinusoidal": ((code * code[0]).sum(-1) / (code[0] ** 2).sum()).float().numpy(),
        "decay_rotary": angles.cos().mean(-1).float().numpy(),
        "decay_alibi": (-slopes[:, None] * places).exp().mean(0).float().numpy(),
    }


def _own(
    network: Transformer, config: c.ModelConfig, length: int, places: Tensor
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The chosen model's own scheme: a bias per head and distance, or its table's first rows."""
    said: dict[str, Any] = {"own": config.position.kind, "own_length": 0}
    schemes = [module for module in network.modules() if isinstance(module, Positions)]
    if not schemes:
        return {}, said
    shown = min(length, config.context or length, POINTS)
    with torch.no_grad():
        bias = schemes[-1].bias(shown, shown, 0, network.tokens.weight)
        vectors = schemes[-1].vectors(torch.arange(shown, device=network.tokens.weight.device)[None], torch.float32)
    said["own_length"] = shown
    if bias is not None:
        reach = distances(shown, shown, 0, torch.device("cpu"))
        return {"own_bias": compact(bias.float().cpu().numpy()), "own_distances": reach.float().numpy()}, said
    if vectors is not None:
        return {"own_vectors": compact(vectors[0].float().cpu().numpy()[:, :256])}, said
    return {}, said
