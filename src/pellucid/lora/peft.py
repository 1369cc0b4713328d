"""PEFT's layout: adapter_config.json and adapter_model.safetensors, under the names of transformers.

The families' tables say which of our maps their modules hold. Where one of theirs holds several of ours (GPT-2's
c_attn, BLOOM's query_key_value), their adapter becomes one of ours on the maps together: A is shared, and B is split as
the table splits the weight. The other way, adapters on some of these maps become one of theirs: its A holds all of
ours, and its B has zeros where a map does not read a row of A. Both are exact.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.errors import CheckpointError
from pellucid.lora.config import Lora, scale
from pellucid.lora.stored import Stored, read_tensors
from pellucid.lora.targets import Group, as_patterns, linear_maps
from pellucid.model.config import Pool, Unembed
from pellucid.pretrained.convert import read_pickle
from pellucid.pretrained.facade import Model
from pellucid.pretrained.families import FAMILIES
from pellucid.pretrained.family import Family
from pellucid.pretrained.table import Row
from pellucid.pretrained.weights import read_json

CONFIG, TENSORS, PICKLE = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
PREFIX = "base_model.model."

# Keys that change what an adapter computes, and the values with which it is the plain one that we have.
PLAIN: dict[str, tuple[object, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    **dict.fromkeys(("use_dora", "use_qalora", "lora_bias", "use_bdlora"), (False, None)),
    **dict.fromkeys(("layer_replication", "target_parameters", "trainable_token_indices"), (None, [], {})),
    **dict.fromkeys(("alora_invocation_tokens", "arrow_config", "kasa_config", "monteclora_config"), (None,)),
    **dict.fromkeys(("velora_config", "megatron_config"), (None,)),
    # The other ways to begin take something off the base's weights.
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),
}


@dataclass(frozen=True)
class Module:
    """A linear module of theirs: the maps of ours that it holds, their heights, and whether it is kept as [in, out]."""

    theirs: str
    ours: Group
    sizes: tuple[int, ...]
    transposed: bool
    row: Row

    def split(self, up: Tensor) -> tuple[Tensor, ...]:
        """Their B as ours: its outputs lie as those of the weight."""
        return self.row.split(up.T if self.transposed else up)

    def join(self, ups: tuple[Tensor, ...]) -> Tensor:
        whole = self.row.join(ups)
        return whole.T if self.transposed else whole


# --- theirs as ours ---


def read(model: Model, folder: Path, *, pickled: bool = False) -> Stored:
    """An adapter for this model. pickled: adapter_model.bin where there is nothing else."""
    config = read_json(folder / CONFIG)
    _check(config)
    pairs, rest = _by_module(_tensors(folder, pickled=pickled))
    family = _family(model, None)
    modules = {module.theirs: module for module in _modules(model, family)}
    groups: list[Group] = []
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    alphas: dict[str, float] = {}
    for theirs, pair in pairs.items():
        module = modules.get(_canonical(theirs, modules, family))
        if module is None:
            raise CheckpointError(_no_module(theirs))
        if set(pair) != {"A", "B"} or pair["B"].shape[0] != sum(module.sizes):
            shapes = {part: list(each.shape) for part, each in pair.items()}
            raise CheckpointError(f"the adapter of {theirs} has {shapes}, but its map has {sum(module.sizes)} outputs")
        groups.append(module.ours)
        parts = module.split(pair["B"])
        factors |= {path: (pair["A"], part) for path, part in zip(module.ours, parts, strict=True)}
        alphas[module.ours[0]] = _alpha(config, theirs)
    whole = _read_whole(model, family, rest)
    ranks = {group[0]: len(factors[group[0]][0]) for group in groups}
    return Stored(_as_ours(model, config, groups, ranks, alphas, whole), factors, whole)


def _as_ours(
    model: Model,
    config: dict[str, Any],
    groups: list[Group],
    ranks: dict[str, int],
    alphas: dict[str, float],
    whole: dict[str, Tensor],
) -> Lora:
    rank, alpha = int(config.get("r", 8)), float(config.get("lora_alpha", 8))
    return Lora(
        rank=rank,
        alpha=alpha,
        dropout=float(config.get("lora_dropout") or 0),
        rank_stabilized=bool(config.get("use_rslora")),
        targets=as_patterns(groups, linear_maps(model.network)),
        whole=tuple(dict.fromkeys(name.rpartition(".")[0] for name in whole)),
        ranks={path: each for path, each in ranks.items() if each != rank},
        alphas={path: each for path, each in alphas.items() if each != alpha},
    )


def _check(config: dict[str, Any]) -> None:
    for key, allowed in PLAIN.items():
        if key in config and config[key] not in allowed:
            raise CheckpointError(
                f"{CONFIG} says {key} = {config[key]!r}, but only {' or '.join(map(repr, allowed))} can be opened: "
                "merge this adapter with PEFT (merge_and_unload), and import the merged model"
            )
    for key, kind in (("r", int), ("lora_alpha", int | float)):
        if key in config and (not isinstance(config[key], kind) or config[key] <= 0):
            raise CheckpointError(f"{CONFIG} says {key} = {config[key]!r}, but it must be a number above 0")


def _tensors(folder: Path, *, pickled: bool) -> dict[str, Tensor]:
    if (folder / TENSORS).is_file() or not (folder / PICKLE).is_file():
        return read_tensors(folder / TENSORS)
    if not pickled:
        raise CheckpointError(
            f"{folder} has only a pickled adapter ({PICKLE}), which can run code when it is read. "
            f"Convert it once with: pellucid import {folder} NEW_FOLDER"
        )
    return read_pickle(folder / PICKLE)


def _by_module(tensors: dict[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tensor]]:
    """A and B of each module of theirs, and what was trained whole."""
    pairs: dict[str, dict[str, Tensor]] = {}
    rest: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        found = re.fullmatch(r"(.+)\.lora_([AB])\.weight", name.removeprefix(PREFIX))
        if found:
            pairs.setdefault(found[1], {})[found[2]] = tensor
        elif ".lora_" in name:
            raise CheckpointError(_no_module(name.removeprefix(PREFIX).partition(".lora_")[0]))
        else:
            rest[name.removeprefix(PREFIX)] = tensor
    return pairs, rest


def _read_whole(model: Model, family: Family, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    rows = {row.theirs: row for row in family.rows(model.config)}
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        row = rows.get(_canonical(name, rows, family))
        if row is None:
            raise CheckpointError(f"the adapter has {name}, which is no part of this model: is its base another one?")
        _refuse_table(model, row)
        whole |= dict(zip(row.ours, row.split(tensor), strict=True))
    return whole


def _alpha(config: dict[str, Any], module: str) -> float:
    """By PEFT's rule: the first pattern that an end of the name fits."""
    patterns = config.get("alpha_pattern") or {}
    found = next((value for pattern, value in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module)), None)
    return float(config.get("lora_alpha", 8) if found is None else found)


def _no_module(theirs: str) -> str:
    return (
        f"the adapter changes {theirs}, which is no linear map of this model's blocks or head: tables and the "
        "unembedding cannot be adapted here. Merge it with PEFT (merge_and_unload), or check that this is its base"
    )


# --- ours as theirs ---


def write(model: Model, what: Stored, named: str | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """adapter_config.json and the tensors."""
    family = _family(model, named)
    prefix = family.prefix if isinstance(model.config.head, Pool) else ""
    modules = [module for module in _modules(model, family) if set(module.ours) & set(what.factors)]
    unnamed = set(what.factors) - {path for module in modules for path in module.ours}
    if unnamed:
        raise CheckpointError(
            f"{family.name} has no module for {min(unnamed)}: `lora.save` keeps this adapter in our own layout"
        )
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    alphas: dict[str, float] = {}
    for module in modules:
        theirs = module.theirs.removeprefix(prefix)
        down, up, factor = _together(module, what)
        tensors |= {f"{PREFIX}{theirs}.lora_A.weight": down, f"{PREFIX}{theirs}.lora_B.weight": up}
        ranks[theirs] = len(down)
        alphas[theirs] = factor / scale(len(down), 1.0, rank_stabilized=what.config.rank_stabilized)
    whole = _write_whole(model, family, what.whole, prefix)
    tensors |= {f"{PREFIX}{name}": each for name, each in whole.items()}
    return _config(model, what.config, modules, ranks, alphas, list(whole)), tensors


def _together(module: Module, what: Stored) -> tuple[Tensor, Tensor, float]:
    """One A and one B for a module that may hold several of our maps, and the scale that is theirs."""
    adapted = [path for path in module.ours if path in what.factors]
    factor = what.config.scale_of(adapted[0])
    downs: dict[int, Tensor] = {}
    for path in adapted:
        downs.setdefault(what.factors[path][0].data_ptr(), what.factors[path][0])
    starts, rank = {}, 0
    for pointer, down in downs.items():
        starts[pointer], rank = rank, rank + len(down)
    like = what.factors[adapted[0]][1]
    ups = []
    for path, size in zip(module.ours, module.sizes, strict=True):
        up = like.new_zeros(size, rank)
        if path in what.factors:
            down, own = what.factors[path]
            start = starts[down.data_ptr()]
            up[:, start : start + len(down)] = own * (what.config.scale_of(path) / factor)
        ups.append(up)
    return torch.cat(list(downs.values())), module.join(tuple(ups)), factor


def _write_whole(model: Model, family: Family, whole: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    written: dict[str, Tensor] = {}
    left = dict(whole)
    for row in family.rows(model.config):
        if not set(row.ours) <= set(whole):
            continue
        _refuse_table(model, row)
        written[row.theirs.removeprefix(prefix)] = row.join(tuple(left.pop(name) for name in row.ours))
    if left:
        raise CheckpointError(
            f"{', '.join(left)} was trained whole, but is only a part of a tensor of {family.name}: train all of it, "
            "or merge the adapter and export the model"
        )
    return written


def _config(
    model: Model, ours: Lora, modules: list[Module], ranks: dict[str, int], alphas: dict[str, float], whole: list[str]
) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": _task(model, whole),
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": ours.rank,
        "lora_alpha": ours.alpha,
        "lora_dropout": ours.dropout,
        "use_rslora": ours.rank_stabilized,
        "bias": "none",
        "fan_in_fan_out": any(module.transposed for module in modules),
        "target_modules": list(ranks),
        "rank_pattern": {re.escape(name): rank for name, rank in ranks.items() if rank != ours.rank},
        "alpha_pattern": {re.escape(name): alpha for name, alpha in alphas.items() if not _near(alpha, ours.alpha)},
        "modules_to_save": list(dict.fromkeys(name.rpartition(".")[0] for name in whole)) or None,
    }


def _near(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-12 * abs(b)


def _task(model: Model, whole: list[str]) -> str | None:
    """PEFT expects a head with labels among what is trained whole: without one the adapter is for no task."""
    if model.config.is_encoder_decoder:
        return "SEQ_2_SEQ_LM"
    kind = model.config.head.kind
    if kind in ("tag", "classify") and not whole:
        return None
    language = "CAUSAL_LM" if model.config.decoder_blocks else None  # PEFT has no word for masked language models
    return {"tag": "TOKEN_CLS", "classify": "SEQ_CLS", "pool": "FEATURE_EXTRACTION"}.get(kind, language)


# --- the tables ---


def _modules(model: Model, family: Family) -> list[Module]:
    maps = linear_maps(model.network)
    found = []
    for row in family.rows(model.config):
        paths = tuple(name.removesuffix(".weight") for name in row.ours)
        if not all(name.endswith(".weight") for name in row.ours) or not all(path in maps for path in paths):
            continue
        sizes = tuple(maps[path].out_features for path in paths)
        # A matrix of one column shows which way the row lays it.
        transposed = sum(sizes) > 1 and row.join(tuple(torch.empty(size, 1) for size in sizes)).shape[0] == 1
        found.append(Module(row.theirs.removesuffix(".weight"), paths, sizes, transposed, row))
    return found


def _family(model: Model, named: str | None) -> Family:
    preferred = named or model.origin.family
    for name in list(FAMILIES) if preferred is None else [preferred]:
        if name not in FAMILIES:
            raise CheckpointError(f"{name!r} is not a family that we can write; there are {', '.join(FAMILIES)}")
        if name == model.origin.family or FAMILIES[name].express(model.config) is not None:
            return FAMILIES[name]
    raise CheckpointError(
        f"no family of transformers has this model ({preferred or 'none fits its config'}), so PEFT has no names for "
        "its maps: `lora.save` keeps the adapter in our own layout"
    )


def _canonical(name: str, known: dict[str, Any], family: Family) -> str:
    """The table's name: an adapter on the bare base model lacks the prefix."""
    return name if name in known else family.prefix + name


def _refuse_table(model: Model, row: Row) -> None:
    tied = isinstance(model.config.head, Unembed) and model.config.head.tied
    if "tokens.weight" in row.ours and tied:
        raise CheckpointError(
            f"{row.theirs} was trained whole, and is also the unembedding here; PEFT would keep two. Merge the "
            "adapter, and exchange the whole model"
        )
