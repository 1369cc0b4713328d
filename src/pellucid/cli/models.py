"""`pellucid models`: the presets, with their size and what each shows."""

from __future__ import annotations

import json

from pellucid.cli.options import Json


def models(as_json: Json = False) -> None:
    """List the model shapes that Pellucid knows by name."""
    import torch
    from rich.console import Console
    from rich.table import Table

    from pellucid.model.presets import PRESETS
    from pellucid.model.transformer import Transformer

    rows = []
    for name, config in PRESETS.items():
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in Transformer(config).parameters())
        stacks = {"encoder": config.encoder_blocks, "decoder": config.decoder_blocks}
        rows.append(
            {
                "name": name,
                "parameters": size,
                "stacks": "+".join(stack for stack, depth in stacks.items() if depth),
                "blocks": "+".join(str(depth) for depth in stacks.values() if depth),
                "width": config.width,
                "heads": config.heads,
                "position": config.position.kind,
                "norm": f"{config.placement} {config.norm.kind}",
            }
        )
    if as_json:
        print(json.dumps(rows))
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(*(f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row.values()))
    Console().print(table)
