"""`train`: from a run file to a folder that `pellucid.load` opens."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from pellucid.errors import ConfigError, InputError
from pellucid.model.config import ModelConfig
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model, Origin
from pellucid.pretrained.save import save
from pellucid.pretrained.tokenizer import FastTokenizer
from pellucid.training.batches import Source
from pellucid.training.config import Given, RunConfig, Translation, model_problems
from pellucid.training.data import Prepared, data_folder, open_prepared, prepare
from pellucid.training.distributed import World, joined
from pellucid.training.loop import Loop
from pellucid.training.progress import Reporter
from pellucid.training.recording import carry
from pellucid.training.runfile import read_run
from pellucid.training.tokenizers import FILE

RUN, RESULT, TRAINING, GENERATION = "run.json", "result.json", "training.json", "generation_config.json"


@dataclass(frozen=True)
class Trained:
    """A finished run. `model` is a folder for `pellucid.load`.

    recording: the share of the time that `record` took.
    """

    model: Path
    steps: int
    metrics: dict[str, float]
    parameters: int
    seconds: float
    recording: float = 0.0
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        return {**vars(self), "model": str(self.model), "notes": list(self.notes)}


def train(
    run: RunConfig | str | os.PathLike[str],
    *,
    base: Model | None = None,
    changes: tuple[str, ...] = (),
    show: bool = False,
) -> Trained:
    """Train the model of a run file, or go on where it stopped. Under `torchrun`, with many processes.

    base: the model to fine-tune, in place of a new one. changes: as `--set` takes them. show: progress on stderr.
    """
    config = run if isinstance(run, RunConfig) else read_run(Path(run), changes)
    if base is None and config.model is None:
        config.model_config_for(0)  # says what is missing
    folder = Path(config.output.folder)
    with joined(config.compute) as world:
        finished = _finished(config, folder)
        if finished is not None:
            return finished
        if world.is_first:
            _claim(config, folder)
        with Reporter(folder, config.schedule.steps, quiet=not world.is_first, show=show) as report:
            return _train(config, base, folder, world, report)


def _train(config: RunConfig, base: Model | None, folder: Path, world: World, report: Reporter) -> Trained:
    start = time.perf_counter()
    prepared = _prepared(config, base, folder, world, report)
    for note in prepared.notes:
        report.say(note)
    network = _network(config, base, prepared, world)
    sources = [
        None if store is None else Source(store, config, prepared.words, training=training)
        for store, training in ((prepared.train, True), (prepared.valid, False))
    ]
    train_on, valid_on = sources
    assert train_on is not None
    loop = Loop(config, world, network, train_on, valid_on, folder)
    metrics = loop.go(report)
    tensors = loop.final_tensors()
    seconds = time.perf_counter() - start
    result = Trained(
        folder / "model",
        loop.step,
        metrics,
        sum(each.numel() for each in network.parameters()),
        seconds,
        loop.recorder.seconds / seconds,
        prepared.notes,
    )
    if world.is_first:
        _write_model(config, base, prepared, network.config, tensors, folder)
        _write_json(folder / RESULT, result.to_json())
    world.wait()
    return result


# --- the folder of a run ---


def _identity(config: RunConfig) -> dict[str, Any]:
    """What may not change when a run goes on."""
    kept = config.model_dump(mode="json", include={"model", "task", "tokenizer", "seed", "data"})
    for place in ("root", "cache"):
        kept["data"].pop(place)
    return kept | {"context": config.batch.context}


def _claim(config: RunConfig, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / RUN
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        now = _identity(config)
        changed = [key for key in now if before.get(key) != now[key]]
        if changed:
            raise ConfigError(
                f"{folder} holds another run: its {', '.join(changed)} differs. Choose another output.folder, or "
                "remove that one to begin anew"
            )
    elif any(folder.iterdir()):
        raise InputError(f"{folder} holds files that are no run: choose another output.folder")
    _write_json(file, _identity(config))


def _finished(config: RunConfig, folder: Path) -> Trained | None:
    """The result of a run that has nothing left to do."""
    try:
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        same = json.loads((folder / RUN).read_text(encoding="utf-8")) == _identity(config)
    except (OSError, json.JSONDecodeError):
        return None
    if not same or found["steps"] < config.schedule.steps or not Path(found["model"]).is_dir():
        return None
    return Trained(**{**found, "model": Path(found["model"]), "notes": tuple(found["notes"])})


def _prepared(config: RunConfig, base: Model | None, folder: Path, world: World, report: Reporter) -> Prepared:
    data = data_folder(config, folder)
    if world.is_first:
        given = None
        if base is not None:
            if not isinstance(base.tokenizer, FastTokenizer):
                raise InputError("the model to fine-tune came without a tokenizer of the tokenizers library")
            part = config.tokenizer if isinstance(config.tokenizer, Given) else Given()
            given = (base.tokenizer.pipeline, part)
        prepare(config, data, report.say, given)
    world.wait()
    return open_prepared(data)


def _network(config: RunConfig, base: Model | None, prepared: Prepared, world: World) -> Transformer:
    labels, kernel = len(prepared.labels), config.compute.kernel
    if base is None:
        shape = config.model_config_for(prepared.words.size, labels)
        if shape.vocab < prepared.words.size:
            raise ConfigError(f"model.vocab is {shape.vocab}, but the tokenizer has {prepared.words.size} tokens")
        return Transformer(shape, kernel=kernel, seed=config.seed).to(world.device)
    shape = ModelConfig(**base.config.model_dump() | config.head_for(base.config.head, labels))
    for problem in model_problems(config, shape):
        raise ConfigError(problem)
    network = Transformer(shape, kernel=kernel, seed=config.seed)
    own = network.state_dict()
    fitting = {
        name: tensor
        for name, tensor in base.network.state_dict().items()
        if name in own and own[name].shape == tensor.shape
    }
    network.load_state_dict({**own, **{name: tensor.float() for name, tensor in fitting.items()}})
    return network.to(world.device)


def _write_model(
    config: RunConfig, base: Model | None, prepared: Prepared, shape: ModelConfig, tensors: dict[str, Any], folder: Path
) -> None:
    """The finished model with its tokenizer, what generation needs to know, and how it was trained."""
    dtype = getattr(torch, config.output.weights)
    with torch.device("meta"):
        network = Transformer(shape)
    network.load_state_dict({name: tensor.to(dtype) for name, tensor in tensors.items()}, assign=True)
    words, data = prepared.words, prepared.folder
    marks = {"eos_token_id": words.end, "decoder_start_token_id": words.start}
    marks = {key: value for key, value in marks.items() if value is not None and _generates(config, key)}
    _write_json(data / GENERATION, marks)
    tokenizer = FastTokenizer(words.pipeline, (data / FILE,))
    origin = Origin(data) if base is None else base.origin
    shutil.rmtree(folder / "model", ignore_errors=True)
    saved = save(Model(shape, network.eval(), tokenizer, prepared.labels, origin), folder / "model")
    _write_json(saved / TRAINING, config.model_dump(mode="json"))
    carry(folder, saved)


def _generates(config: RunConfig, key: str) -> bool:
    return isinstance(config.task, Translation) if key == "decoder_start_token_id" else config.task.kind != "tagging"


def _write_json(file: Path, values: dict[str, Any]) -> None:
    aside = file.with_name(f".{file.name}.unfinished")
    aside.write_text(json.dumps(values, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    aside.replace(file)


def trained_config(model: Model) -> RunConfig | None:
    """How a model was trained, if its folder says so."""
    folder = model.origin.folder
    file = None if folder is None else folder / TRAINING
    if file is None or not file.exists():
        return None
    return RunConfig(**json.loads(file.read_text(encoding="utf-8")))
