"""`pellucid models [NAME]`: the bundled models and the presets, with size and what each shows; the card of one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli.options import Json

if TYPE_CHECKING:
    from pellucid.model.config import ModelConfig


def models(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Show the card of this bundled model.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models that come with Pellucid, and the model shapes that it knows by name."""
    from pellucid.model.presets import PRESETS
    from pellucid.pretrained.bundled import bundled_config, bundled_models

    if name is not None:
        _show_card(name, as_json)
        return
    bundled = [
        _row(name, bundled_config(name)) | {"bundled": True, "description": description}
        for name, description in bundled_models()
    ]
    presets = [_row(name, config) for name, config in PRESETS.items()]
    if as_json:
        print(json.dumps(bundled + presets))
    else:
        _show(bundled, presets)


def _show_card(name: str, as_json: bool) -> None:
    from pellucid.pretrained.bundled import DESCRIPTIONS, bundled_card, bundled_config

    row, card = _row(name, bundled_config(name)), bundled_card(name)
    if as_json:
        shown = {} if card is None else card.model_dump()
        print(json.dumps(row | {"description": DESCRIPTIONS[name]} | shown, ensure_ascii=False))
        return
    facts = {
        "parameters": f"{row['parameters']:,}",
        "blocks": f"{row['stacks']} {row['blocks']}",
        "what": DESCRIPTIONS[name],
    }
    if card is not None:
        facts |= {
            "data": card.data,
            "licence": card.licence,
            "trained": card.trained,
            "run file": f"examples/runs/{card.run}",
            "scored on": card.scored_on,
        }
        facts |= {score.replace("_", " "): f"{value:.4g}" for score, value in card.scores.items()}
    typer.echo(name)
    for label, value in facts.items():
        typer.echo(f"  {label:16}{value}")
    for sample in () if card is None else card.samples:
        typer.echo(f"\n  {sample.given}\n  -> {sample.written}")


def _row(name: str, config: ModelConfig) -> dict[str, Any]:
    import torch

    from pellucid.model.transformer import Transformer

    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in Transformer(config).parameters())
    stacks = {"encoder": config.encoder_blocks, "decoder": config.decoder_blocks}
    return {
        "name": name,
        "parameters": size,
        "stacks": "+".join(stack for stack, depth in stacks.items() if depth),
        "blocks": "+".join(str(depth) for depth in stacks.values() if depth),
        "width": config.width,
        "heads": config.heads,
        "position": config.position.kind,
        "norm": f"{config.placement} {config.norm.kind}",
    }


def _show(bundled: list[dict[str, Any]], presets: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    with_weights = Table("name", "parameters", "description", box=None, title="bundled models", title_justify="left")
    for row in bundled:
        with_weights.add_row(row["name"], f"{row['parameters']:,}", row["description"])
    shapes = Table(*presets[0], box=None, title="presets: shapes, without weights", title_justify="left")
    for row in presets:
        shapes.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()))
    console.print(with_weights, "", shapes)
