"""`pellucid spectrum MODEL --text FILE`: how low-rank each head's attention is, beside random weights."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pellucid.cli.options import Device, Dtype, Json, ModelArgument, Seed, open_model
from pellucid.errors import InputError, PellucidError

if TYPE_CHECKING:
    from pellucid.pretrained.facade import Model
    from pellucid.spectra.measure import Progress, Share
    from pellucid.spectra.results import Spectra
    from pellucid.spectra.spectrum import Effort

INTERRUPTED = 130

Files = list[Path] | None


def spectrum(
    model: ModelArgument,
    text: Annotated[Files, typer.Option(metavar="FILE", help="A text; - is what is piped in. Repeatable.")] = None,
    target: Annotated[
        Files, typer.Option(metavar="FILE", help="Of an encoder-decoder, one for each text: what it has written.")
    ] = None,
    ids: Annotated[
        Files, typer.Option(metavar="FILE", help="A JSON list of ids in place of a text; --target is one too then.")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Only the first so many tokens of each text.")] = None,
    top: Annotated[int | None, typer.Option(help="How many singular values must settle; 64, if there are.")] = None,
    tau: Annotated[list[float] | None, typer.Option(help="Shares of the energy; 0.9 and 0.95 unless given.")] = None,
    method: Annotated[
        Literal["auto", "dense", "free"],
        typer.Option(help="Form the matrix (dense), or never (free); auto: dense while it is faster."),
    ] = "auto",
    budget: Annotated[int | None, typer.Option(help="The most columns of the basis; more narrow brackets.")] = None,
    density: Annotated[bool, typer.Option("--density", help="Also how all singular values are spread.")] = False,
    block: Annotated[list[int] | None, typer.Option(help="Only these blocks.")] = None,
    head: Annotated[list[int] | None, typer.Option(help="Only these heads.")] = None,
    baseline: Annotated[bool, typer.Option("--baseline/--no-baseline", help="Random weights beside them.")] = True,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one offline page.")] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Measure every head's singular values, effective rank and sinks, without its matrix where that is large."""
    from pellucid.spectra.measure import Selection
    from pellucid.spectra.spread import launched, own_device

    share = launched()
    with _first_speaks(share):
        effort = _effort(tau, top, budget, density)
        _writable(html)
        readings = _readings(text, target, ids)
        opened = open_model(model, own_device(device), dtype)
        how = {
            "context": context,
            "effort": effort,
            "method": method,
            "baseline": baseline,
            "only": Selection(block or None, head or None),
            "seed": seed,
        }
        found, whole = _measure(opened, readings, share, how)
        if found is not None:
            _present(found, html, as_json)
    if not whole:
        raise typer.Exit(INTERRUPTED)


@contextmanager
def _first_speaks(share: Share) -> Iterator[None]:
    """Under a launcher every process meets the same mistake, and the first one tells it."""
    try:
        yield
    except PellucidError:
        if share.index == 0:
            raise
        raise typer.Exit(2) from None


def _measure(model: Model, readings: list[Any], share: Share, how: dict[str, Any]) -> tuple[Spectra | None, bool]:
    """What was found, in the first process alone, and whether that is all: Ctrl-C keeps what has been measured."""
    from pellucid.spectra.measure import Stopped
    from pellucid.spectra.measure import spectrum as run
    from pellucid.spectra.spread import gather, joined

    try:
        with joined(share), _bar(quiet=share.index != 0) as progress:
            return gather(run(model, *readings, share=share, progress=progress, **how), share), True
    except Stopped as stop:
        if share.index == 0:
            typer.echo(f"stopped: {len(stop.spectra.heads)} heads were measured until then", err=True)
        return stop.spectra if share.index == 0 and stop.spectra.heads else None, False


@contextmanager
def _bar(*, quiet: bool) -> Iterator[Progress]:
    """A bar on stderr while it is a terminal: which head, how many of how many, and the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *left, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("reading the text", total=None)

        def step(done: int, total: int, label: str) -> None:
            bar.update(task, description=label, completed=done, total=max(done, total))

        yield step


def _present(found: Spectra, html: Path | None, as_json: bool) -> None:
    if html is not None:
        from pellucid.report.spectrum_page import spectrum_page

        page = spectrum_page(found)
        html.write_text(page, encoding="utf-8")
        typer.echo(f"written to {html} ({len(page.encode()) / 2**20:.1f} MB)", err=True)
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
    elif html is None:
        from pellucid.cli.show_spectrum import show

        show(found)


def _effort(tau: list[float] | None, top: int | None, budget: int | None, density: bool) -> Effort:
    from pellucid.spectra.spectrum import Effort

    taus = tuple(dict.fromkeys(tau)) if tau else Effort.tau
    most = budget if budget is not None else max(Effort.budget, top or 0)
    return Effort(tau=taus, top=top, budget=most, density=density)


def _writable(html: Path | None) -> None:
    """A wrong folder is said before the work, not after it."""
    if html is not None and not html.absolute().parent.is_dir():
        raise InputError(f"--html {html}: there is no folder {html.absolute().parent}; make it first")
    if html is not None and html.is_dir():
        raise InputError(f"--html {html} is a folder: name a file, such as {html / 'page.html'}")


def _readings(text: Files, target: Files, ids: Files) -> list[Any]:
    if bool(text) == bool(ids):
        raise InputError("give the text with --text FILE, or its ids with --ids FILE" + (", not both" if text else ""))
    sources = [_read_ids(file) for file in ids] if ids else [_read_text(file) for file in text or []]
    if not target:
        return sources
    if len(target) != len(sources):
        raise InputError(f"each text needs its own --target: {len(sources)} texts and {len(target)} targets came")
    return list(zip(sources, [_read_ids(file) if ids else _read_text(file) for file in target], strict=True))


def _read_text(file: Path) -> str:
    words = _read(file)
    if not words.strip():
        raise InputError(f"{file} is empty: a spectrum needs a text")
    return words


def _read_ids(file: Path) -> list[int]:
    try:
        found = json.loads(_read(file))
    except json.JSONDecodeError as error:
        raise InputError(f"{file} is not JSON: --ids wants a list of ids such as [5, 17, 3] ({error})") from None
    if not isinstance(found, list) or not found or not all(type(each) is int for each in found):
        raise InputError(f"{file} is no list of whole numbers: --ids wants one such as [5, 17, 3]")
    return found


def _read(file: Path) -> str:
    try:
        return (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 (byte {error.start}): is it a binary file?") from None
