"""Open a checkpoint: read its config, check every tensor, map the weights into our network."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.model.config import Learned, Linformer, ModelConfig, Part, Relative
from pellucid.model.mechanisms import KernelName
from pellucid.model.transformer import Transformer
from pellucid.pretrained.bundled import DESCRIPTIONS, bundled_folder, is_bundled
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
    """Open a model: a folder in the Hugging Face layout or in ours, the name of a bundled model, or a hub id.

    device: the CPU unless told. dtype: as stored unless told; bundled models are stored in bfloat16 to be small, and
    open in float32. family: for a config that does not name its own.
    kernel: which attention kernel it runs on; "reference" shows scores and weights.
    """
    folder = find_folder(source)
    place = torch.device(device or "cpu")
    with torch.no_grad(), open_weights(folder) as weights:
        if (folder / OWN_CONFIG).exists():
            model = _load_own(folder, weights, place, dtype, kernel)
            small = dtype is None and is_bundled(folder) and model.dtype == torch.bfloat16
            return replace(model, network=model.network.float()) if small else model
        return load_family(folder, weights, family, device=place, dtype=dtype, kernel=kernel)


def find_folder(source: str | os.PathLike[str], *more: str) -> Path:
    """The folder itself, that of a bundled model, or the one that a hub id is downloaded to, with more such files.

    What the user has comes first: a folder of theirs hides a bundled model of the same name, and that hides a hub id.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder
    name = os.fspath(source)
    if name in DESCRIPTIONS:
        return bundled_folder(name)
    if folder.exists() or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise CheckpointError(f"{name!r} is neither a folder nor a hub id: give the folder that holds {CONFIG}")
    return _download(name, *more)


def _download(name: str, *more: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError
    except ImportError:
        raise CheckpointError(
            f"{name!r} is not a folder here. To get it from the hub: pip install 'pellucid[hub]'"
        ) from None
    try:
        patterns = ["*.json", "*.safetensors", "*.txt", "*.spm", "*.model", *more]
        return Path(snapshot_download(name, allow_patterns=patterns))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(f"{name!r} is not a folder here, and the hub did not give it: {first}") from None


def _load_own(
    folder: Path, weights: Weights, device: torch.device, dtype: torch.dtype | None, kernel: KernelName
) -> Model:
    saved = read_json(folder / OWN_CONFIG)
    _check_saved(saved)
    config = ModelConfig(**saved["model"])
    network = _network(config, kernel, weights)
    rows = [same(name, name) for name in network.state_dict()]
    fill(network, rows, weights, {name: name for name in weights.names}, {}, device, dtype)
    origin = Origin(folder, saved.get("family"), saved.get("source") or {}, read=config)
    return Model(config, network, find_tokenizer(folder, origin.config), tuple(saved.get("labels") or ()), origin)


def _check_saved(saved: dict[str, Any]) -> None:
    """Every key is known and of its kind."""
    unknown = sorted(set(saved) - set(_SAVED))
    if unknown or saved.get("model") is None:
        raise CheckpointError(
            f"{OWN_CONFIG} must hold 'model' and may hold 'labels', 'family' and 'source', "
            f"but it has {', '.join(unknown) or 'no model'}"
        )
    for key, kind in _SAVED.items():
        if saved.get(key) is not None and not isinstance(saved[key], kind):
            raise CheckpointError(f"{OWN_CONFIG} says {key} = {saved[key]!r}, which is not a {kind.__name__}")
    if any(not isinstance(label, str) for label in saved.get("labels") or ()):
        raise CheckpointError(f"{OWN_CONFIG} says labels = {saved['labels']!r}, but each must be a text")


def load_family(
    folder: Path,
    weights: Weights,
    named: str | None,
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    kernel: KernelName,
) -> Model:
    """A folder in the Hugging Face layout, whose weights have been opened."""
    theirs = read_json(folder / CONFIG)
    if named is not None:
        theirs["model_type"] = named
    family = find_family(theirs)
    names = canonical_names(weights, family)
    config = read_config(family, theirs, folder, names)
    network = _network(config, kernel, weights)
    rows, aliases = list(family.rows(config)), family.aliases(config)
    # A file without repeats may have kept either of two equal tensors.
    names = {of: names[alias] for alias, of in aliases.items() if alias in names} | names
    used = {row.theirs for row in rows} | set(aliases)
    extra = {name: names.pop(name) for name in list(names) if family.spares(name) and name not in used}
    fill(network, rows, weights, names, aliases, device, dtype)
    spare = {name: weights.tensor(found) for name, found in extra.items()}
    origin = Origin(folder, family.name, theirs, is_bare(weights, family), config, spare)
    return Model(config, network, find_tokenizer(folder, theirs), labels_of(theirs), origin)


def find_family(theirs: dict[str, Any]) -> Family:
    name = theirs.get("model_type")
    if name is None:
        raise CheckpointError(
            f"{CONFIG} does not say its model_type: name the family (--family, family=), one of {', '.join(FAMILIES)}"
        )
    if not isinstance(name, str) or name not in FAMILIES:
        raise CheckpointError(f"model_type {name!r} is not a family that we can open; there are {', '.join(FAMILIES)}")
    return FAMILIES[name]


def read_config(family: Family, theirs: dict[str, Any], folder: Path, tensors: Collection[str]) -> ModelConfig:
    reader = ConfigReader(theirs, tensors)
    architectures = reader.optional("architectures", list) or [""]
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
    return {prefix + family.today(name): name for name in weights.names if not family.ignores(name)}


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
        _check_shape(row, names[row.theirs], weights, expected)
    # A network has one dtype; a file that mixes them gets the widest, so that nothing is rounded.
    dtype = dtype or reduce(torch.promote_types, (weights.dtype(names[row.theirs]) for row in rows))
    filled: dict[str, Tensor] = {}
    for row in rows:
        theirs = names[row.theirs]
        copied = device.type != "cpu" or weights.dtype(theirs) != dtype
        for name, part in zip(row.ours, row.split(weights.tensor(theirs, briefly=copied)), strict=True):
            filled[name] = part.to(device, dtype)
    for alias, of in aliases.items():
        if alias in names and not torch.equal(weights.tensor(names[alias]), weights.tensor(names[of])):
            raise CheckpointError(
                f"the config ties {alias} to {of}, but the tensors differ: set tie_word_embeddings to false"
            )
    network.load_state_dict(filled, assign=True)


def _check_shape(row: Row, name: str, weights: Weights, expected: dict[str, Tensor]) -> None:
    """Split a tensor of that shape, which takes no memory. (To join ours instead, torch would load its compiler.)"""
    found = weights.shape(name)
    try:
        shapes = [part.shape for part in row.split(torch.empty(1).expand(found))]
    except (RuntimeError, ValueError, IndexError):
        shapes = []
    if shapes != [expected[ours].shape for ours in row.ours]:
        wanted = row.join(tuple(expected[ours] for ours in row.ours)).shape
        raise CheckpointError(f"tensor {name} has shape {list(found)}, but the config asks for {list(wanted)}")


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


def _network(config: ModelConfig, kernel: KernelName, weights: Weights) -> Transformer:
    _check_sizes(config, weights)
    with torch.device("meta"):
        return Transformer(config, kernel=kernel).eval()


def _check_sizes(config: ModelConfig, weights: Weights) -> None:
    """A damaged config may ask for a billion blocks or heads: the file tells, before the attempt to build them."""
    blocks, there = config.encoder_blocks + config.decoder_blocks, len(weights.names)
    if blocks > there:
        raise CheckpointError(f"the config asks for {blocks} blocks, but the checkpoint has only {there} tensors")
    longest, name = max((max(weights.shape(name), default=1), name) for name in weights.names)
    for size, value in _axes(config):
        if value > longest:
            raise CheckpointError(
                f"the config asks for {size} = {value}, but no tensor is that large: the longest axis is {longest}, of "
                f"{name} {list(weights.shape(name))}. Do the config and the tensors belong together?"
            )


def _axes(part: Part) -> Iterator[tuple[str, int]]:
    """The whole numbers of a config that cannot be larger than an axis of some tensor."""
    for key in type(part).model_fields:
        value = getattr(part, key)
        if isinstance(value, Part):
            yield from _axes(value)
        elif isinstance(value, int) and key in _AXES:
            yield key, value
    match part:
        case Relative(max_distance=distance):
            yield "max_distance", distance
        case ModelConfig(context=int(context), position=Learned(skip=skip)):
            yield "context", context + skip
        case ModelConfig(context=int(context), attention=Linformer()):
            yield "context", context
        case _:
            pass


_SAVED: dict[str, type] = {"model": dict, "labels": list, "family": str, "source": dict}
# `context` and `max_distance` are axes of some schemes' tables, and mere limits of others.
_AXES = {"vocab", "source_vocab", "width", "heads", "key_value_heads", "head_width", "value_width", "segments"} | {
    "hidden",
    "labels",
    "buckets",
    "rank",
    "count",
}
