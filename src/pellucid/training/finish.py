"""What a finished run leaves: the folder of a model, or that of an adapter, and how it was trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid import lora
from pellucid.errors import CheckpointError
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.pretrained.save import save
from pellucid.training.config import RunConfig, Translation
from pellucid.training.data import Prepared
from pellucid.training.loop import fill
from pellucid.training.recording import carry

TRAINING, GENERATION = "training.json", "generation_config.json"
Notice = Callable[[str], None]


def model_folder(run: RunConfig, folder: Path) -> Path | None:
    """Where the whole model goes, if the run leaves one."""
    return folder / "model" if run.lora is None or run.output.merge else None


def adapter_folder(run: RunConfig, folder: Path) -> Path | None:
    return None if run.lora is None else folder / "adapter"


def write(
    run: RunConfig, prepared: Prepared, model: Model, tensors: dict[str, Tensor], folder: Path, say: Notice
) -> None:
    """The folders of a finished run. tensors: what was learned, as the loop gave it."""
    whole, adapter = model_folder(run, folder), adapter_folder(run, folder)
    if adapter is not None:
        fill(model.network, tensors)
        _write_adapter(model, adapter, say)
        tensors = dict(model.network.plain().state_dict())
    if whole is not None:
        _write_model(run, prepared, model, tensors, whole)
    for written in (whole, adapter):
        if written is not None:
            write_json(written / TRAINING, run.model_dump(mode="json"))
            carry(folder, written)


def finished(run: RunConfig, model: Model, folder: Path) -> Model:
    """The model that a run left, where it was trained: as its folder has it, or with the adapter in its weights."""
    whole = model_folder(run, folder)
    if whole is not None:
        return load(whole, device=model.device)
    model.network.eval()
    return model.plain()


def _write_adapter(model: Model, folder: Path, say: Notice) -> None:
    """In PEFT's layout, or in ours where no family of transformers has the model."""
    shutil.rmtree(folder, ignore_errors=True)
    try:
        lora.export(model, folder)
    except CheckpointError as error:
        say(f"the adapter is written in our own layout: {error}")
        lora.save(model, folder)


def _write_model(run: RunConfig, prepared: Prepared, model: Model, tensors: dict[str, Tensor], folder: Path) -> None:
    """With its tokenizer and what generation needs to know."""
    dtype = getattr(torch, run.output.weights)
    with torch.device("meta"):
        network = Transformer(model.config)
    network.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    words = prepared.words
    marks = {"eos_token_id": words.end, "decoder_start_token_id": words.start}
    marks = {key: value for key, value in marks.items() if value is not None and _generates(run, key)}
    shutil.rmtree(folder, ignore_errors=True)
    save(replace(model, network=network.eval()), folder)
    if model.origin.folder == prepared.folder:  # a model that was fine-tuned keeps its own
        write_json(folder / GENERATION, marks)


def _generates(run: RunConfig, key: str) -> bool:
    return isinstance(run.task, Translation) if key == "decoder_start_token_id" else run.task.kind != "tagging"


def write_json(file: Path, values: dict[str, Any]) -> None:
    aside = file.with_name(f".{file.name}.unfinished")
    aside.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(file)


def trained_config(folder: Path | None) -> RunConfig | None:
    """How what a folder holds was trained, if it says so."""
    file = None if folder is None else folder / TRAINING
    if file is None or not file.exists():
        return None
    return RunConfig(**json.loads(file.read_text(encoding="utf-8")))
