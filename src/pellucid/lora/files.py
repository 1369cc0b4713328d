"""Adapters in folders: our own layout, and PEFT's.

Ours: adapter.json (the adapter's config and the model that it was trained on) and adapter.safetensors, under our names.
In both, head.json says what the head is that an adapter has of its own: its kind, and its labels.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from pellucid.errors import CheckpointError, InputError
from pellucid.lora import peft
from pellucid.lora.adapters import Adapter, adapters, remove
from pellucid.lora.config import Lora
from pellucid.lora.stored import Stored, install, read_tensors, stored
from pellucid.model.config import ModelConfig
from pellucid.pretrained.facade import Model
from pellucid.pretrained.heads import with_head
from pellucid.pretrained.save import new_folder
from pellucid.pretrained.weights import read_json

CONFIG, TENSORS, HEAD = "adapter.json", "adapter.safetensors", "head.json"
Folder = str | os.PathLike[str]


def save(model: Model, folder: Folder, name: str | None = None) -> Path:
    """Write an adapter in our own layout. name: which, where there are several."""
    what = stored(model, _chosen(model, name))
    tensors = {
        f"{path}.{part}": each
        for path, pair in what.factors.items()
        for part, each in zip(("down", "up"), pair, strict=True)
    }
    config = {"lora": what.config.model_dump(mode="json"), "base": _base(model)}
    _write(folder, {CONFIG: config} | _head(model, what), TENSORS, tensors | what.whole)
    return Path(folder)


def export(model: Model, folder: Folder, name: str | None = None, *, family: str | None = None) -> Path:
    """Write an adapter in PEFT's layout, for the Hugging Face form of its base."""
    what = stored(model, _chosen(model, name))
    config, tensors = peft.write(model, what, family)
    config["base_model_name_or_path"] = _base(model)
    _write(folder, {peft.CONFIG: config} | _head(model, what), peft.TENSORS, tensors)
    return Path(folder)


def fitted(model: Model, folder: Folder) -> Model:
    """The model with the head that an adapter has of its own, to put it on; itself where it has that head already."""
    file = Path(folder) / HEAD
    if not file.is_file():
        return model
    found = read_json(file)
    head = ModelConfig(**model.config.model_dump() | {"head": found.get("head")}).head
    labels = tuple(map(str, found.get("labels", ())))
    if (head, labels) == (model.config.head, model.labels):
        return model
    fitting, _ = with_head(model, head, labels, kernel=model.network.kernel, seed=0)
    return replace(fitting, network=fitting.network.to(model.device, model.dtype))


def load(model: Model, folder: Folder, name: str | None = None) -> Adapter:
    """Put an adapter of a folder in either layout on a model, and let it act. name: "default" unless given."""
    return install(model, _read(model, Path(folder)), name or "default")


def convert(model: Model, source: Folder, destination: Folder, *, pickled: bool = True) -> Path:
    """Write an adapter in PEFT's layout anew in ours, which needs no table of names to be opened.

    model: its base, which it is checked against. pickled: read adapter_model.bin too, by torch's restricted reader.
    """
    install(model, _read(model, Path(source), pickled=pickled), "converted")
    try:
        return save(model, destination, "converted")
    finally:
        remove(model, "converted")


def is_adapter(folder: Folder) -> bool:
    return any((Path(folder) / name).is_file() for name in (CONFIG, peft.CONFIG))


def base_of(folder: Folder) -> str:
    """The model that an adapter was trained on, as its folder says."""
    own, theirs = Path(folder) / CONFIG, Path(folder) / peft.CONFIG
    base = read_json(own).get("base") if own.is_file() else read_json(theirs).get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise CheckpointError(f"{folder} does not say which model it adapts: open that one, and give this as --adapter")
    return base


def _read(model: Model, folder: Path, *, pickled: bool = False) -> Stored:
    if (folder / CONFIG).is_file():
        return _read_own(folder)
    if (folder / peft.CONFIG).is_file():
        return peft.read(model, folder, pickled=pickled)
    raise CheckpointError(f"{folder} has no {CONFIG} and no {peft.CONFIG}: is this the folder of an adapter?")


def _read_own(folder: Path) -> Stored:
    saved = read_json(folder / CONFIG)
    if set(saved) - {"lora", "base"} or not isinstance(saved.get("lora"), dict):
        raise CheckpointError(
            f"{folder / CONFIG} must hold 'lora' and 'base', but it has {', '.join(saved) or 'nothing'}"
        )
    tensors = read_tensors(folder / TENSORS)
    paths = [name.removesuffix(".down") for name in tensors if name.endswith(".down") and f"{name[:-5]}.up" in tensors]
    factors = {path: (tensors.pop(f"{path}.down"), tensors.pop(f"{path}.up")) for path in paths}
    return Stored(Lora(**saved["lora"]), factors, tensors)


def _chosen(model: Model, name: str | None) -> str:
    names = list(adapters(model))
    if name is None and len(names) != 1:
        raise InputError(f"this model has {len(names)} adapters ({', '.join(names)}): say which, by name")
    return names[0] if name is None else name


def _base(model: Model) -> str | None:
    """The name of a bundled model, or the folder wherever one stands later."""
    folder = model.origin.folder
    return None if folder is None else model.name if model.name != str(folder) else str(folder.absolute())


def _head(model: Model, what: Stored) -> dict[str, Any]:
    """What a head is that goes with the adapter: the base need not have it."""
    if not any(name.startswith("head.") for name in what.whole):
        return {}
    return {HEAD: {"head": model.config.head.model_dump(mode="json"), "labels": list(model.labels)}}


def _write(folder: Folder, configs: dict[str, Any], data: str, tensors: dict[str, Tensor]) -> None:
    owned = {name: each.detach().cpu().contiguous().clone() for name, each in tensors.items()}
    with new_folder(folder) as staging:
        for file, config in configs.items():
            (staging / file).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        save_file(owned, staging / data, metadata={"format": "pt"})
