"""`pellucid import` and `pellucid export`: the Hugging Face layout in and out."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pellucid.cli.options import Dtype, FamilyName, Json, ModelArgument, open_model

Destination = Annotated[str, typer.Argument(metavar="DST", help="A new folder.", show_default=False)]


def import_(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A folder, or a hub id.", show_default=False)],
    destination: Destination,
    family: FamilyName = None,
    as_json: Json = False,
) -> None:
    """Check a checkpoint and write it anew; pickled weights become safetensors, read by torch's restricted reader."""
    from pellucid.pretrained.convert import convert

    _report(str(convert(source, destination, family=family)), as_json)


def export(
    model: ModelArgument,
    destination: Destination,
    family: FamilyName = None,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Write a model as a folder that transformers loads and that servers such as vLLM read."""
    from pellucid.pretrained.save import export as write

    _report(str(write(open_model(model, dtype=dtype), destination, family=family)), as_json)


def _report(folder: str, as_json: bool) -> None:
    print(json.dumps({"folder": folder}) if as_json else f"written to {folder}")
