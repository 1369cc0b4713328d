"""Sentence encoders say in files beside the config how their token vectors become one vector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pellucid.errors import CheckpointError
from pellucid.model.config import Pool, Pooling
from pellucid.pretrained.weights import read_json

# A flag per mode, as all versions read them, and the one word that newer versions write.
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "first",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
_WORDS: dict[str, Pooling] = {"mean": "mean", "cls": "first", "max": "max", "lasttoken": "last"}


def sentence_pooling(folder: Path) -> Pool | None:
    """The pooling that modules.json describes; None where there is no such file."""
    if not (folder / "modules.json").exists():
        return None
    try:
        modules = json.loads((folder / "modules.json").read_text(encoding="utf-8"))
        kinds = {module["type"].rsplit(".", 1)[-1]: Path(module["path"]) for module in modules}
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise CheckpointError(f"modules.json cannot be read: {error}") from None
    unknown = sorted(set(kinds) - {"Transformer", "Pooling", "Normalize"})
    if unknown or "Pooling" not in kinds:
        raise CheckpointError(
            f"modules.json has {sorted(kinds)}, but only Transformer, Pooling and Normalize can be built"
        )
    path = kinds["Pooling"]
    if path.is_absolute() or ".." in path.parts:
        raise CheckpointError(f"modules.json names the path {str(path)!r}, which is outside the folder")
    settings = read_json(folder / path / "config.json")
    return Pool(pooling=_pooling(settings), normalize="Normalize" in kinds)


def _pooling(settings: dict[str, Any]) -> Pooling:
    words = settings.get("pooling_mode")
    chosen = [words] if isinstance(words, str) else words
    if chosen is None:
        chosen = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
    known = _MODES | _WORDS
    if not isinstance(chosen, list) or len(chosen) != 1 or chosen[0] not in known:
        raise CheckpointError(f"the pooling is {chosen}, but exactly one of {list(known)} can be built")
    return known[chosen[0]]


def write_pooling(folder: Path, head: Pool, width: int) -> None:
    """modules.json and the settings that it names; nothing for a pooler that is part of the model itself."""
    if head.project:
        return
    paths = {"Transformer": "", "Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if head.normalize else {})
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(paths.items())
    ]
    settings = {"word_embedding_dimension": width} | {key: mode == head.pooling for key, mode in _MODES.items()}
    (folder / "1_Pooling").mkdir()
    for path, values in (("modules.json", modules), ("1_Pooling/config.json", settings)):
        (folder / path).write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
