"""Sentence encoders say in files beside the config how their token vectors become one vector."""

from __future__ import annotations

import json
from pathlib import Path

from pellucid.errors import CheckpointError
from pellucid.model.config import Pool, Pooling
from pellucid.pretrained.weights import read_json

_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}


def sentence_pooling(folder: Path) -> Pool | None:
    """The pooling that modules.json describes; None where there is no such file."""
    if not (folder / "modules.json").exists():
        return None
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in modules}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"modules.json cannot be read: {error}") from None
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown or "Pooling" not in kinds:
        raise CheckpointError(
            f"modules.json has {sorted(kinds)}, but only Transformer, Pooling and Normalize can be built"
        )
    path = Path(kinds["Pooling"])
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"modules.json names the path {kinds['Pooling']!r}, which is outside the folder")
    settings = read_json(folder / path / "config.json")
    chosen = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
    if len(chosen) != 1 or chosen[0] not in _MODES:
        raise CheckpointError(f"the pooling is {chosen}, but exactly one of {list(_MODES)} can be built")
    return Pool(pooling=_MODES[chosen[0]], normalize="Normalize" in kinds)
