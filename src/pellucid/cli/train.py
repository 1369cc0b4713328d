"""`pellucid train`, `pellucid finetune` and `pellucid evaluate`: a run file in, a model and its figures out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pellucid.cli.options import AdapterFolder, Device, Json, ModelArgument, open_model
from pellucid.errors import CheckpointError, ConfigError, InputError

if TYPE_CHECKING:
    from pellucid.training.config import RunConfig
    from pellucid.training.run import Trained

INTERRUPTED = 130

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="The run: model, task, data, schedule, output.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the run file. Repeatable.")
]
Show = Annotated[bool, typer.Option("--show", help="Print the run with every default, and stop.")]


def train(run: RunFile, change: Changes = None, show: Show = False, as_json: Json = False) -> None:
    """Train a model. A run that was stopped goes on by itself; `torchrun` spreads it over processes."""
    _run(run, change or [], show, as_json, None)


def finetune(
    model: ModelArgument,
    run: RunFile,
    rank: Annotated[int | None, typer.Argument(metavar="RANK", help="Of --lora; as the run says unless given.")] = None,
    lora: Annotated[bool, typer.Option("--lora", help="Train an adapter, by the run's lora or its defaults.")] = False,
    merge: Annotated[bool, typer.Option("--merge", help="Write the model with the adapter in it, too.")] = False,
    change: Changes = None,
    show: Show = False,
    as_json: Json = False,
) -> None:
    """Train a model on, with its own tokenizer; the run file needs no model then.

    All weights, or with --lora (or --lora RANK) an adapter alone, which is written in PEFT's layout.
    """
    if rank is not None and not lora:
        raise InputError(f"{rank} stands alone: a rank follows --lora, as in --lora {rank}")
    changes = list(change or [])
    changes += [f"lora.rank={rank}"] if rank is not None else []
    changes += ["output.merge=true"] if merge else []
    _run(run, changes, show, as_json, model, lora=lora)


def _run(file: Path, changes: list[str], show: bool, as_json: bool, source: str | None, lora: bool = False) -> None:
    from pellucid.training.run import train as go
    from pellucid.training.runfile import read_run, shown

    with _first_speaks():
        config = read_run(file, tuple(changes), lora=lora)
        if show:
            typer.echo(shown(config), nl=False)
            return
        base = None if source is None else open_model(source)
        try:
            done = go(config, base=base, show=True)
        except KeyboardInterrupt:
            typer.echo("stopped: the same command goes on from the last checkpoint", err=True)
            raise typer.Exit(INTERRUPTED) from None
    if _is_first():
        _present(done, as_json)


def _is_first() -> bool:
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def _first_speaks() -> Iterator[None]:
    """Under a launcher every process meets the same mistake, and the first one tells it."""
    try:
        yield
    except (CheckpointError, ConfigError, InputError):  # others, such as the death of a partner, everyone tells
        if _is_first():
            raise
        raise typer.Exit(2) from None


def _present(done: Trained, as_json: bool) -> None:
    if as_json:
        print(json.dumps(done.to_json(), allow_nan=False))
        return
    figures = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in done.metrics.items())
    where = " and ".join(str(folder) for folder in done.folders.values() if folder is not None)
    of = f"{done.trained:,} of {done.parameters:,}" if done.adapter else f"{done.parameters:,}"
    typer.echo(f"{where}: {of} parameters, {done.steps} steps, {done.seconds:.0f} s; {figures}")
    if done.recording > 0.03:
        typer.echo(f"recording took {done.recording:.1%} of the time: lower record.points", err=True)


def evaluate(
    model: ModelArgument,
    data: Annotated[list[Path], typer.Option(metavar="FILE", help="What to evaluate on. Repeatable.")],
    run: Annotated[
        Path | None, typer.Option(metavar="RUN.toml", help="Task and format; as trained unless given.")
    ] = None,
    change: Changes = None,
    translate: Annotated[
        int | None, typer.Option(help="Translate so many sentences, for BLEU and chrF; as the run says unless given.")
    ] = None,
    beams: Annotated[int | None, typer.Option(help="Of translations.")] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Of beams: above 0 favours long texts; as the run says unless given.")
    ] = None,
    bleu_tokens: Annotated[
        str | None, typer.Option(help="How sacreBLEU splits words: 13a, char, zh, intl or none.")
    ] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="Only the rows that the run held out.")] = False,
    adapter: AdapterFolder = None,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Loss, perplexity, bits per byte, accuracy, entity F1, BLEU and chrF of a model, by its task."""
    from pellucid.training.evaluate import evaluate as measure

    opened = open_model(model, device, adapter=adapter)
    folders = [None if adapter is None else Path(adapter), Path(model), opened.origin.folder]
    asked = {
        "translate": translate,
        "beams": beams,
        "length_penalty": length_penalty,
        "bleu_tokens": bleu_tokens,
    }
    changes = [*(change or []), *(f"evaluation.{key}={value}" for key, value in asked.items() if value is not None)]
    found = measure(opened, _task_of(folders, run, tuple(changes)), list(data), held_out=held_out)
    if as_json:
        print(json.dumps(found, allow_nan=False, ensure_ascii=False))
        return
    for name, value in found.items():
        for line in _lines(name, value):
            typer.echo(line)


def _task_of(folders: list[Path | None], file: Path | None, changes: tuple[str, ...]) -> RunConfig:
    """The run that is named, or that of the first folder that says how it was trained: an adapter's comes first."""
    from pellucid.training.finish import trained_config
    from pellucid.training.runfile import changed, read_run

    if file is not None:
        return read_run(file, changes)
    found = next((run for run in map(trained_config, folders) if run is not None), None)
    if found is None:
        raise InputError("this model's folder does not say how it was trained: name the task with --run RUN.toml")
    return changed(found, changes)


def _lines(name: str, value: Any) -> list[str]:
    label = name.replace("_", " ")
    if isinstance(value, float):
        return [f"{label:16}{value:.5g}"]
    if name == "samples":
        return [f"  {each['source']}  ->  {each['written']}  ({each['target']})" for each in value]
    return [f"{label:16}{each}" for each in (value if isinstance(value, list) else [value])]
