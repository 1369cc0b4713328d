"""`pellucid spectrum MODEL --text FILE`: how low-rank each head's attention is, beside random weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pellucid.cli.options import AdapterFolder, Device, Dtype, Json, ModelArgument, Seed, open_model
from pellucid.cli.reading import Files, read_texts
from pellucid.errors import InputError, PellucidError

if TYPE_CHECKING:
    from pellucid.pretrained.facade import Model
    from pellucid.spectra.measure import Progress, Share
    from pellucid.spectra.results import Spectra
    from pellucid.spectra.spectrum import Effort

INTERRUPTED = 130


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
    adapter: AdapterFolder = None,
    against: Annotated[
        str | None, typer.Option(metavar="BASE", help="Instead, what changed since this model: in weights and heads.")
    ] = None,
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
        readings = read_texts(text, target, ids)
        opened = open_model(model, own_device(device), dtype, adapter=adapter)
        if against is not None:
            from pellucid.cli.against import compare

            _refuse_with_against(share, html, top, budget, density)
            base = open_model(against, own_device(device), dtype)
            only = Selection(block or None, head or None)
            return compare(opened, base, readings, context, tau, baseline, only, seed, as_json)
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
    return None


def _refuse_with_against(share: Share, html: Path | None, top: int | None, budget: int | None, density: bool) -> None:
    """Options of a measurement that a comparison has no use for are said, not dropped."""
    given = {"--html": html, "--top": top, "--budget": budget, "--density": density or None}
    named = next((name for name, value in given.items() if value is not None), None)
    if named is not None:
        raise InputError(f"{named} does not go with --against, which writes all singular values: leave it out")
    if share.of > 1:
        raise InputError(f"--against runs in one process, but {share.of} were launched: run it without torchrun")


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
