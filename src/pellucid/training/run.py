"""`train`: from a run file to a folder that `pellucid.load` opens, or to an adapter's."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pellucid.errors import ConfigError, InputError
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model, Origin
from pellucid.pretrained.heads import with_head
from pellucid.pretrained.tokenizer import FastTokenizer
from pellucid.training.adapting import adapt, check_base, fingerprint
from pellucid.training.batches import Source
from pellucid.training.config import Given, RunConfig, model_problems
from pellucid.training.data import Base, Prepared, data_folder, fits, open_prepared, prepare, validation_rows
from pellucid.training.distributed import World, joined
from pellucid.training.finish import adapter_folder, finished, model_folder, write, write_json
from pellucid.training.loop import Loop
from pellucid.training.optimizer import trained_parameters
from pellucid.training.progress import Reporter
from pellucid.training.runfile import read_run
from pellucid.training.tokenizers import FILE
from pellucid.training.translating import check_translations, score_translations

RUN, RESULT = "run.json", "result.json"


@dataclass(frozen=True)
class Trained:
    """A finished run. `model` is a folder for `pellucid.load`, `adapter` one for `pellucid.lora.load`.

    A run with LoRA leaves an adapter, and a model too where it merges them; others leave a model.
    trained: how many of the parameters. recording: the share of the time that `record` took.
    """

    model: Path | None
    steps: int
    metrics: dict[str, float]
    parameters: int
    seconds: float
    recording: float = 0.0
    notes: tuple[str, ...] = field(default=())
    adapter: Path | None = None
    trained: int = 0

    def to_json(self) -> dict[str, Any]:
        folders = {name: None if path is None else str(path) for name, path in self.folders.items()}
        return {**vars(self), **folders, "notes": list(self.notes)}

    @property
    def folders(self) -> dict[str, Path | None]:
        return {"model": self.model, "adapter": self.adapter}


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
    check_base(config, base)
    check_translations(config)
    folder, identity = Path(config.output.folder), _identity(config, base)
    with joined(config.compute) as world:
        done = _done(config, identity, folder)
        if done is not None:
            return done
        if world.is_first:
            _claim(identity, folder)
        with Reporter(folder, config.schedule.steps, quiet=not world.is_first, show=show) as report:
            return _train(config, base, folder, world, report)


def _train(config: RunConfig, base: Model | None, folder: Path, world: World, report: Reporter) -> Trained:
    start = time.perf_counter()
    prepared = prepared_for(config, base, folder, world, report)
    model, new = model_for(config, base, prepared, world)
    notes = (*prepared.notes, *adapt(model, config, new))
    for note in notes:
        report.say(note)
    sources = [
        None if store is None else Source(store, config, prepared.words, training=training, labels=prepared.labels)
        for store, training in ((prepared.train, True), (prepared.valid, False))
    ]
    train_on, valid_on = sources
    assert train_on is not None
    loop = Loop(config, world, model.network, train_on, valid_on, folder)
    metrics = loop.go(report)
    tensors = loop.final_tensors()
    if world.is_first:
        write(config, prepared, model, tensors, folder, report.say)
    world.wait()
    if world.is_first and config.evaluation.translate:  # after the others: they need not wait for it
        scores, note = _translate(config, prepared, finished(config, model, folder))
        metrics, notes = metrics | scores, (*notes, note)
    seconds = time.perf_counter() - start
    result = Trained(
        model_folder(config, folder),
        loop.step,
        metrics,
        sum(each.numel() for each in model.network.parameters()),
        seconds,
        loop.recorder.seconds / seconds,
        notes,
        adapter_folder(config, folder),
        sum(each.numel() for each in trained_parameters(model.network).values()),
    )
    if world.is_first:
        write_json(folder / RESULT, result.to_json())
    return result


def _translate(config: RunConfig, prepared: Prepared, model: Model) -> tuple[dict[str, float], str]:
    """BLEU and chrF of the first held-out sentences, and how they were scored."""
    rows = (row for row in validation_rows(config) if fits(row, config, prepared.words))
    scores = score_translations(model, list(islice(rows, config.evaluation.translate)), config.evaluation)
    return {name: scores[name] for name in ("bleu", "chrf")}, f"sacreBLEU {scores['signature']}"


# --- the folder of a run ---


def _identity(config: RunConfig, base: Model | None) -> dict[str, Any]:
    """What may not change when a run goes on."""
    kept = config.model_dump(mode="json", include={"model", "task", "tokenizer", "seed", "data"})
    for place in ("root", "cache"):
        kept["data"].pop(place)
    if config.lora is not None and base is not None:  # whose weights are not in the checkpoints
        kept |= {"lora": config.lora.model_dump(mode="json"), "base": fingerprint(base)}
    return kept | {"context": config.batch.context}


def _claim(identity: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / RUN
    if file.exists():
        before = json.loads(file.read_text(encoding="utf-8"))
        changed = [key for key in {**identity, **before} if before.get(key) != identity.get(key)]
        if changed:
            raise ConfigError(
                f"{folder} holds another run: its {', '.join(changed)} differs. Choose another output.folder, or "
                "remove that one to begin anew"
            )
    elif any(folder.iterdir()):
        raise InputError(f"{folder} holds files that are no run: choose another output.folder")
    write_json(file, identity)


def _done(config: RunConfig, identity: dict[str, Any], folder: Path) -> Trained | None:
    """The result of a run that has nothing left to do."""
    try:
        found = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        same = json.loads((folder / RUN).read_text(encoding="utf-8")) == identity
    except (OSError, json.JSONDecodeError):
        return None
    folders = {"model": model_folder(config, folder), "adapter": adapter_folder(config, folder)}
    there = all(path is None or path.is_dir() for path in folders.values())
    if not same or found["steps"] < config.schedule.steps or not there:
        return None
    return Trained(**{**found, **folders, "notes": tuple(found["notes"])})


# --- what is trained ---


def prepared_for(config: RunConfig, base: Model | None, folder: Path, world: World, report: Reporter) -> Prepared:
    """The tokenised data of a run, which the first process makes while the others wait."""
    known = None if base is None else _known(config, base)
    data = data_folder(config, folder, known)
    if world.is_first:
        prepare(config, data, report.say, known)
    world.wait()
    return open_prepared(data)


def _known(config: RunConfig, base: Model) -> Base:
    if not isinstance(base.tokenizer, FastTokenizer):
        raise InputError("the model to fine-tune came without a tokenizer of the tokenizers library")
    marks = config.tokenizer if isinstance(config.tokenizer, Given) else Given()
    return Base(base.tokenizer.pipeline, marks, base.labels)


def model_for(config: RunConfig, base: Model | None, prepared: Prepared, world: World) -> tuple[Model, tuple[str, ...]]:
    """What is trained, where it is trained, and the parameters that the model to fine-tune did not have."""
    labels, kernel = prepared.labels, config.compute.kernel
    tokenizer = FastTokenizer(prepared.words.pipeline, (prepared.folder / FILE,))
    if base is None:
        shape = config.model_config_for(prepared.words.size, len(labels))
        if shape.vocab < prepared.words.size:
            raise ConfigError(f"model.vocab is {shape.vocab}, but the tokenizer has {prepared.words.size} tokens")
        network = Transformer(shape, kernel=kernel, seed=config.seed).to(world.device)
        return Model(shape, network, tokenizer, labels, Origin(prepared.folder)), ()
    head = config.head_for(base.config.head, len(labels)).get("head", base.config.head)
    model, new = with_head(base, head, labels, kernel=kernel, seed=config.seed)
    for problem in model_problems(config, model.config):
        raise ConfigError(problem)
    model.network.to(world.device)
    return replace(model, tokenizer=tokenizer), new
