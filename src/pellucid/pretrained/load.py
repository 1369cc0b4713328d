"""Open a checkpoint: read its config, check every tensor, map the weights into our network."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.model.config import ModelConfig
from pellucid.model.mechanisms import KernelName
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model, Origin
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.family import ConfigReader, Family
from pellucid.pretrained.pooling import sentence_pooling
from pellucid.pretrained.table import Row, same
from pellucid.pretrained.tokenizer import find_tokenizer
from pellucid.pretrained.weights import Weights, open_weights, read_json

CONFIG = "config.json"
OWN_CONFIG = "pellucid.json"


def load(
    source: str | os.PathLike[str],
    *,
    device: str | torch.device | None = None,
    dtype: torch.dtype | None = None,
    family: str | None = None,
    kernel: KernelName = "fused",
) -> Model:
    """Open a model: a folder in the Hugging Face layout or in ours, or a hub id.

    device: the CPU unless told. dtype: as stored unless told. family: for a config that does not name its own.
    kernel: which attention kernel it runs on; "reference" shows scores and weights.
    """
    folder = find_folder(source)
    with torch.no_grad():
        if (folder / OWN_CONFIG).exists():
            return _load_own(folder, torch.device(device or "cpu"), dtype, kernel)
        return _load_family(folder, torch.device(device or "cpu"), dtype, kernel, family)


def find_folder(source: str | os.PathLike[str]) -> Path:
    """The folder itself, or the folder that a hub id is downloaded to."""
    folder = Path(source)
    if folder.is_dir():
        return folder
    name = os.fspath(source)
    if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise CheckpointError(f"{name!r} is neither a folder nor a hub id: give the folder that holds {CONFIG}")
    return _download(name)


def _download(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(
            f"{name!r} is not a folder here. To get it from the hub: pip install 'pellucid[hub]'"
        ) from None
    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.spm", "*.model"]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{name!r} is not a folder here, and the hub did not give it: {first}") from None


def _load_own(folder: Path, device: torch.device, dtype: torch.dtype | None, kernel: KernelName) -> Model:
    saved = read_json(folder / OWN_CONFIG)
    unknown = sorted(set(saved) - {"model", "labels", "family", "source"})
    if unknown or not isinstance(saved.get("model"), dict):
        raise CheckpointError(
            f"{OWN_CONFIG} must hold 'model' and may hold 'labels', 'family' and 'source', not {unknown}"
        )
    config = ModelConfig(**saved["model"])
    network = _network(config, kernel)
    with open_weights(folder) as weights:
        rows = [same(name, name) for name in network.state_dict()]
        fill(network, rows, weights, dict(zip(weights.names, weights.names, strict=True)), {}, device, dtype)
    origin = Origin(folder, saved.get("family"), saved.get("source") or {})
    return Model(config, network, find_tokenizer(folder, origin.config), tuple(saved.get("labels") or ()), origin)


def _load_family(
    folder: Path, device: torch.device, dtype: torch.dtype | None, kernel: KernelName, named: str | None
) -> Model:
    theirs = read_json(folder / CONFIG)
    family = find_family(theirs, named)
    config = read_config(family, theirs, folder)
    network = _network(config, kernel)
    with open_weights(folder) as weights:
        names = canonical_names(weights, family)
        fill(network, list(family.rows(config)), weights, names, family.aliases(config), device, dtype)
    origin = Origin(folder, family.name, theirs, bare=is_bare(weights, family))
    return Model(config, network, find_tokenizer(folder, theirs), labels_of(theirs), origin)


def find_family(theirs: dict[str, Any], named: str | None) -> Family:
    name = named or theirs.get("model_type")
    if name is None:
        raise CheckpointError(
            f"{CONFIG} does not say its model_type: name the family (--family, family=), one of {', '.join(FAMILIES)}"
        )
    if name not in FAMILIES:
        raise CheckpointError(f"{name!r} is not a family that we can open; there are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def read_config(family: Family, theirs: dict[str, Any], folder: Path) -> ModelConfig:
    reader = ConfigReader(theirs)
    architectures = theirs.get("architectures") or [""]
    config = family.read(reader, str(architectures[0]))
    reader.finish()
    pooling = sentence_pooling(folder)
    return config if pooling is None else config.model_copy(update={"head": pooling})


def labels_of(theirs: dict[str, Any]) -> tuple[str, ...]:
    names = theirs.get("id2label")
    if not isinstance(names, dict):
        return ()
    try:
        return tuple(str(names[key]) for key in sorted(names, key=int))
    except ValueError:
        raise CheckpointError(f"{CONFIG} says id2label = {names!r}, but its keys must be whole numbers") from None


def canonical_names(weights: Weights, family: Family) -> dict[str, str]:
    """From the names that the table uses to those in the file, which lacks the prefix if it holds the bare model."""
    prefix = family.prefix if is_bare(weights, family) else ""
    return {prefix + name: name for name in weights.names if not family.ignores(name)}


def is_bare(weights: Weights, family: Family) -> bool:
    """Whether the file holds the base model alone, whose names lack the family's prefix."""
    return bool(family.prefix) and not any(name.startswith(family.prefix) for name in weights.names)


def fill(
    network: Transformer,
    rows: list[Row],
    weights: Weights,
    names: dict[str, str],
    aliases: dict[str, str],
    device: torch.device,
    dtype: torch.dtype | None,
) -> None:
    """Give every parameter of a network on the meta device its tensor; all names and shapes are checked first."""
    expected = network.state_dict()
    covered = [name for row in rows for name in row.ours]
    assert sorted(covered) == sorted(expected), set(covered) ^ set(expected)
    _check_names({row.theirs for row in rows}, set(names), aliases)
    for row in rows:
        wanted = tuple(row.join(tuple(expected[name] for name in row.ours)).shape)
        found = weights.shape(names[row.theirs])
        if wanted != found:
            raise CheckpointError(
                f"tensor {names[row.theirs]} has shape {list(found)}, but the config asks for {list(wanted)}"
            )
    filled: dict[str, Tensor] = {}
    for row in rows:
        tensor = weights.tensor(names[row.theirs])
        dtype = dtype or tensor.dtype
        for name, part in zip(row.ours, row.split(tensor), strict=True):
            filled[name] = part.to(device, dtype)
    for alias, of in aliases.items():
        if alias in names and not torch.equal(weights.tensor(names[alias]), weights.tensor(names[of])):
            raise CheckpointError(
                f"the config ties {alias} to {of}, but the tensors differ: set tie_word_embeddings to false"
            )
    network.load_state_dict(filled, assign=True)


def _check_names(wanted: set[str], found: set[str], aliases: dict[str, str]) -> None:
    missing, extra = sorted(wanted - found), sorted(found - wanted - set(aliases))
    problems = [
        f"{kind} {', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        for kind, names in (("lacks", missing), ("has unknown", extra))
        if names
    ]
    if problems:
        raise CheckpointError(
            f"the checkpoint {' and '.join(problems)}: do its config and its tensors belong together?"
        )


def _network(config: ModelConfig, kernel: KernelName) -> Transformer:
    with torch.device("meta"):
        return Transformer(config, kernel=kernel).eval()
