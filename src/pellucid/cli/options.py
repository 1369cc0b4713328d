"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from pellucid.pretrained.facade import Model

DtypeName = Literal["float64", "float32", "bfloat16", "float16"]

ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A folder, or a hub id.", show_default=False)]
Device = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, mps.")]
Dtype = Annotated[DtypeName | None, typer.Option("--dtype", help="Compute in this; as stored unless given.")]
Seed = Annotated[int, typer.Option("--seed", help="Where random draws start.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]
FamilyName = Annotated[
    str | None, typer.Option("--family", metavar="NAME", help="The family, for a config that does not name its own.")
]


AdapterFolder = Annotated[
    str | None, typer.Option("--adapter", metavar="FOLDER", help="Put this adapter on it: ours, or PEFT's.")
]


def open_model(
    source: str,
    device: str = "cpu",
    dtype: DtypeName | None = None,
    family: str | None = None,
    adapter: str | None = None,
) -> Model:
    """Load a model as the command line names it: the folder of an adapter stands for its base with it on."""
    import torch

    from pellucid.errors import InputError
    from pellucid.pretrained.load import load

    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError(f"--device {device!r} is not a device: try cpu, cuda or mps") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {device}: torch sees no GPU here; use --device cpu")
    if adapter is None and is_adapter_folder(source):
        from pellucid.lora.files import base_of

        source, adapter = base_of(source), source
    model = load(source, device=place, dtype=None if dtype is None else getattr(torch, dtype), family=family)
    if adapter is not None:
        from pellucid.lora.files import fitted
        from pellucid.lora.files import load as put_on

        model = fitted(model, adapter)
        put_on(model, adapter)
    return model


def is_adapter_folder(source: str) -> bool:
    """Said by its files alone, so that other commands need not wait for torch."""
    return any((Path(source) / name).is_file() for name in ("adapter.json", "adapter_config.json"))
