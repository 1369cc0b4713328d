"""`pellucid models`: the bundled models and the presets, with their size and what each shows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pellucid.cli.options import Json

if TYPE_CHECKING:
    from pellucid.model.config import ModelConfig


def models(as_json: Json = False) -> None:
    """List the models that come with Pellucid, and the model shapes that it knows by name."""
    from pellucid.model.presets import PRESETS
    from pellucid.pretrained.bundled import bundled_config, bundled_models

    bundled = [
        _row(name, bundled_config(name)) | {"bundled": True, "description": description}
        for name, description in bundled_models()
    ]
    presets = [_row(name, config) for name, config in PRESETS.items()]
    if as_json:
        print(json.dumps(bundled + presets))
    else:
        _show(bundled, presets)


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
