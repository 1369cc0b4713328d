"""`pellucid kv-report MODEL --text FILE`: what a cache takes, how low-rank it is, and what keeping less would cost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pellucid.cli.options import Device, Dtype, Json, ModelArgument, Seed, open_model
from pellucid.cli.reading import read_texts

File = Path | None


def kv_report(
    model: ModelArgument,
    text: Annotated[File, typer.Option(metavar="FILE", help="A text; - is what is piped in.")] = None,
    target: Annotated[File, typer.Option(metavar="FILE", help="Of an encoder-decoder: what it has written.")] = None,
    ids: Annotated[
        File, typer.Option(metavar="FILE", help="A JSON list of ids in place of a text; --target is one too then.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Only the first so many tokens of the text.")] = None,
    rank: Annotated[
        list[int] | None,
        typer.Option(help="Truncate to this rank; repeatable. An eighth, a quarter, half of the head width."),
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Keep the last so many tokens; a quarter of what is cached unless given.")
    ] = None,
    sinks: Annotated[int, typer.Option(help="And the first so many.")] = 4,
    baseline: Annotated[bool, typer.Option("--baseline/--no-baseline", help="Random weights beside them.")] = True,
    device: Device = "cpu",
    dtype: Dtype = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Report on a cache: bytes, spectra of keys and values, and what keeping less of it does to the scores."""
    from rich.console import Console

    from pellucid.spectra.kv_report import kv_report as run

    (reading,) = read_texts(*([file] if file is not None else None for file in (text, target, ids)))
    opened = open_model(model, device, dtype)
    with Console(stderr=True).status("reading the text, and reading it again with less in the cache"):
        found = run(
            opened,
            reading,
            context=context,
            ranks=rank or None,
            window=window,
            sinks=sinks,
            baseline=baseline,
            seed=seed,
        )
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    from pellucid.cli.show_kv_report import show

    show(found)
