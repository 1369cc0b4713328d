"""Options that several commands share."""

from __future__ import annotations

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


def open_model(source: str, device: str = "cpu", dtype: DtypeName | None = None, family: str | None = None) -> Model:
    """Load a model as the command line names it."""
    import torch

    from pellucid.errors import InputError
    from pellucid.pretrained.load import load

    try:
        place = torch.device(device)
    except RuntimeError:
        raise InputError(f"--device {device!r} is not a device: try cpu, cuda or mps") from None
    if place.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"--device {device}: torch sees no GPU here; use --device cpu")
    return load(source, device=place, dtype=None if dtype is None else getattr(torch, dtype), family=family)
