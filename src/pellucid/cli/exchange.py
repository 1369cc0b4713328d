"""`pellucid import` and `pellucid export`: the Hugging Face layout in and out."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pellucid.cli.options import AdapterFolder, Dtype, FamilyName, Json, ModelArgument, is_adapter_folder, open_model

Destination = Annotated[str, typer.Argument(metavar="DST", help="A new folder.", show_default=False)]


def import_(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A folder, or a hub id.", show_default=False)],
    destination: Destination,
    family: FamilyName = None,
    base: Annotated[str | None, typer.Option(metavar="MODEL", help="Of an adapter, the model that it is for.")] = None,
    as_json: Json = False,
) -> None:
    """Check a checkpoint and write it anew; pickled weights become safetensors, read by torch's restricted reader.

    A PEFT adapter is checked against its base and written in our own layout.
    """
    from pellucid.pretrained.convert import convert

    if is_adapter_folder(source):
        from pellucid.lora.files import base_of, fitted
        from pellucid.lora.files import convert as convert_adapter

        model = fitted(open_model(base_of(source) if base is None else base, family=family), source)
        return _report(str(convert_adapter(model, source, destination)), as_json)
    if base is not None:
        from pellucid.errors import InputError

        raise InputError(f"--base is for adapters, and {source} is none: leave it out")
    return _report(str(convert(source, destination, family=family)), as_json)


def export(
    model: ModelArgument,
    destination: Destination,
    family: FamilyName = None,
    adapter: AdapterFolder = None,
    merge: Annotated[bool, typer.Option("--merge", help="Write the model with the adapter in its weights.")] = False,
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Write a model as a folder that transformers loads and that servers such as vLLM read.

    With an adapter, write that alone, in PEFT's layout; or both as one model, with --merge.
    """
    from pellucid.pretrained.save import export as write

    if not merge and (adapter is not None or is_adapter_folder(model)):
        from pellucid.lora.files import export as write_adapter

        opened = open_model(model, dtype=dtype, adapter=adapter)
        return _report(str(write_adapter(opened, destination, family=family)), as_json)
    return _report(str(write(open_model(model, dtype=dtype, adapter=adapter), destination, family=family)), as_json)


def _report(folder: str, as_json: bool) -> None:
    print(json.dumps({"folder": folder}) if as_json else f"written to {folder}")
