"""Write a model out: in our own layout, or in the Hugging Face layout that other programs read."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.model.config import Classify, ModelConfig, Pool, Tag
from pellucid.pretrained.facade import Model
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.family import Family
from pellucid.pretrained.load import CONFIG, OWN_CONFIG
from pellucid.pretrained.pooling import write_pooling
from pellucid.pretrained.weights import INDEX, SINGLE

SHARD_BYTES = 5 * 1024**3
# Files beside the weights that belong to a checkpoint and go where it goes.
SIDECARS = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "generation_config.json",
    "sentence_bert_config.json",
)


def save(model: Model, folder: str | os.PathLike[str]) -> Path:
    """Our own layout: pellucid.json, safetensors and the tokenizer. Adapters are added to the weights."""
    model = model.plain()
    saved: dict[str, Any] = {
        "model": model.config.model_dump(mode="json"),
        "labels": list(model.labels),
        "family": model.origin.family,
        "source": model.origin.config if model.config == model.origin.read else {},
    }
    with new_folder(folder) as staging:
        _write_json(staging / OWN_CONFIG, saved)
        _write_tensors(staging, dict(model.network.state_dict()))
        _copy_sidecars(model, staging)
    return Path(folder)


def export(model: Model, folder: str | os.PathLike[str], *, family: str | None = None) -> Path:
    """The Hugging Face layout: a folder that transformers loads and that servers such as vLLM read.

    Adapters are added to the weights; `lora.export` writes them alone, in PEFT's layout.
    """
    model = model.plain()
    chosen, theirs = _theirs(model, family)
    ours = model.network.state_dict()
    prefix = chosen.prefix if model.origin.bare else ""
    tensors = {
        row.theirs.removeprefix(prefix): row.join(tuple(ours[name] for name in row.ours))
        for row in chosen.rows(model.config)
    }
    if chosen.name == model.origin.family:
        tensors |= {name.removeprefix(prefix): extra.to(model.dtype) for name, extra in model.origin.extra.items()}
    with new_folder(folder) as staging:
        _write_json(staging / CONFIG, theirs)
        _write_tensors(staging, tensors)
        if isinstance(model.config.head, Pool):
            write_pooling(staging, model.config.head, model.config.width)
        _copy_sidecars(model, staging)
    return Path(folder)


def _theirs(model: Model, named: str | None) -> tuple[Family, dict[str, Any]]:
    """The family to write as, and its config: the one that was read, where that still says what the model is."""
    origin = model.origin
    preferred = named or origin.family
    names = list(FAMILIES) if preferred is None else [preferred]
    for name in names:
        if name not in FAMILIES:
            raise CheckpointError(f"{name!r} is not a family that we can write; there are {', '.join(FAMILIES)}")
        if name == origin.family and origin.config and model.config == origin.read:
            return FAMILIES[name], origin.config | _stored_as(model, origin.config)
        written = FAMILIES[name].express(model.config, _labels(model.config))
        if written is not None:
            return FAMILIES[name], written | _label_names(model) | _stored_as(model, written)
    raise CheckpointError(
        f"none of these families can express this model: {', '.join(names)}. `save` keeps it in our own layout"
    )


def _stored_as(model: Model, config: dict[str, Any]) -> dict[str, str]:
    """The dtype of the weights, under the word that the config uses: readers convert to what it says."""
    return {"dtype" if "dtype" in config else "torch_dtype": str(model.dtype).removeprefix("torch.")}


def _labels(config: ModelConfig) -> int:
    return config.head.labels if isinstance(config.head, Tag | Classify) else 0


def _label_names(model: Model) -> dict[str, Any]:
    return {"id2label": {str(i): name for i, name in enumerate(model.labels)}} if model.labels else {}


@contextmanager
def new_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder that appears whole or not at all: written beside, then renamed."""
    final = Path(folder)
    if final.exists() and (not final.is_dir() or any(final.iterdir())):
        raise CheckpointError(f"{final} exists and is not empty: choose another folder, or remove it first")
    final.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{final.name}.", dir=final.parent))
    try:
        yield staging
        if final.exists():
            final.rmdir()
        staging.chmod(0o755)
        staging.rename(final)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _write_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    shards = _in_shards(tensors)
    if len(shards) == 1:
        save_file(_owned(shards[0]), folder / SINGLE, metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards, 1):
        name = f"model-{index:05d}-of-{len(shards):05d}.safetensors"
        save_file(_owned(shard), folder / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
    size = sum(tensor.nbytes for tensor in tensors.values())
    _write_json(folder / INDEX, {"metadata": {"total_size": size}, "weight_map": weight_map})


def _in_shards(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    room = SHARD_BYTES
    for name, tensor in tensors.items():
        if tensor.nbytes > room and shards[-1]:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = tensor
        room -= tensor.nbytes
    return shards


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Views of one storage cannot be written as they are."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}


def _copy_sidecars(model: Model, folder: Path) -> None:
    files = list(model.tokenizer.files) if model.tokenizer is not None else []
    if model.origin.folder is not None:
        files += [model.origin.folder / name for name in SIDECARS]
    for file in files:
        if file.exists() and not (folder / file.name).exists():
            shutil.copyfile(file, folder / file.name)


def _write_json(path: Path, values: dict[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
