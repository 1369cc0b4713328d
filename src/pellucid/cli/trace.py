"""`pellucid trace MODEL TEXT`: every step from tokens to probabilities, verified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pellucid.cli.options import AdapterFolder, Device, Dtype, Json, ModelArgument, open_model
from pellucid.errors import InputError

if TYPE_CHECKING:
    from pellucid.lens.trace import Trace
    from pellucid.lens.whatif import Change
    from pellucid.pretrained.facade import Model

WORKED_EXAMPLE = "worked-example"
Reading = str | list[int]

Text = Annotated[str, typer.Argument(metavar="TEXT", help="The text, or ids such as '5 17 3' with --ids.")]


def trace(
    model: ModelArgument,
    text: Text,
    target: Annotated[str | None, typer.Option(help="The text so far, of an encoder-decoder.")] = None,
    ids: Annotated[bool, typer.Option("--ids", help="TEXT and --target are ids, not words.")] = False,
    site: Annotated[list[str] | None, typer.Option(help="Only these sites; patterns such as '*.weights' work.")] = None,
    block: Annotated[list[int] | None, typer.Option(help="Only these blocks.")] = None,
    head: Annotated[list[int] | None, typer.Option(help="Only these heads.")] = None,
    tokens: Annotated[str | None, typer.Option(metavar="A:B", help="Only these tokens.")] = None,
    explain: Annotated[str | None, typer.Option(metavar="SITE[...]", help="One cell as arithmetic.")] = None,
    temperature: Annotated[float | None, typer.Option(help="What if scores were divided by this?")] = None,
    scaling: Annotated[bool, typer.Option("--scaling/--no-scaling", help="What if scores were not scaled?")] = True,
    similarity: Annotated[
        Literal["dot", "keys-queries", "cosine", "distance"], typer.Option(help="What if scores were these?")
    ] = "dot",
    relu: Annotated[bool, typer.Option("--relu", help="What if ReLU took the place of softmax?")] = False,
    positions: Annotated[bool, typer.Option("--positions/--no-positions", help="What if there were none?")] = True,
    mask: Annotated[
        Literal["none", "causal"] | None, typer.Option(help="What if the future were (not) hidden?")
    ] = None,
    norm: Annotated[Literal["identity", "pre", "post"] | None, typer.Option(help="What if norms stood there?")] = None,
    against_note: Annotated[bool, typer.Option("--against-note", help="The note's numbers beside ours.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one offline page.")] = None,
    budget_mb: Annotated[float, typer.Option(help="The largest size of that page.")] = 25,
    values: Annotated[bool, typer.Option("--values/--no-values", help="Leave the numbers out of the JSON.")] = True,
    adapter: AdapterFolder = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: Json = False,
) -> None:
    """Show every number from tokens to probabilities, each step computed again in float64."""
    changes = _changes(model, temperature, scaling, similarity, relu, positions, mask, norm)
    opened = _open(model, device, dtype, norm, mask, adapter)
    reading = _readings(opened, text, target, ids)
    if explain is not None:
        return _explain(opened, reading, explain, as_json)
    if changes:
        return _what_if(opened, reading, changes, as_json, values)
    from pellucid.lens.trace import trace as run

    result = run(opened, *reading, sites=site or None, blocks=block or None, heads=head or None, tokens=_slice(tokens))
    if html is not None:
        _write_page(result, html, budget_mb)
    if against_note:
        _against_note(model, result, as_json)
    elif as_json:
        print(json.dumps(result.to_json(values=values), allow_nan=False))
    elif html is None:
        _show(result)
    return None


def _open(source: str, device: str, dtype: Any, norm: Any, mask: Any, adapter: str | None) -> Model:
    """The worked example has its variants built in; elsewhere `--norm` and `--mask` are what-ifs."""
    if source != WORKED_EXAMPLE or adapter is not None:
        return open_model(source, device, dtype, adapter=adapter)
    from pellucid.lens.worked_example import worked_example

    return worked_example(norm=norm or "identity", mask=mask or "none")


def _readings(model: Model, text: str, target: str | None, as_ids: bool) -> tuple[Reading, ...]:
    """The text, and what an encoder-decoder has written: nothing yet unless it is given."""
    if target is not None and not model.config.is_encoder_decoder:
        raise InputError("--target is for encoder-decoders: this model reads one text")
    given = (text, target or "") if model.config.is_encoder_decoder else (text,)
    return tuple(_reading(one, as_ids) for one in given)


def _reading(text: str, as_ids: bool) -> Reading:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError("the text is not valid UTF-8: is it a binary file?") from None
    if not as_ids:
        return text
    if not all(word.isdigit() for word in text.split()):
        raise InputError(f"--ids wants whole numbers with spaces between them, not {text!r}")
    return [int(word) for word in text.split()] or ""


def _slice(tokens: str | None) -> slice | None:
    if tokens is None:
        return None
    first, colon, last = tokens.partition(":")
    bounds = [first, last] if colon else []
    if not bounds or not all(bound.strip().lstrip("-").isdigit() or not bound.strip() for bound in bounds):
        raise InputError(f"--tokens wants A:B, such as 0:5 or -3:, not {tokens!r}")
    return slice(*(int(bound) if bound.strip() else None for bound in bounds))


def _changes(
    model: str,
    temperature: float | None,
    scaling: bool,
    similarity: str,
    relu: bool,
    positions: bool,
    mask: Any,
    norm: Any,
) -> list[Change]:
    from pellucid.lens import whatif as w

    found: list[Change] = []
    if temperature is not None:
        found.append(w.Temperature(temperature))
    if not scaling:
        found.append(w.NoScaling())
    kinds: dict[str, Change] = {
        "keys-queries": w.KeysQueries(),
        "cosine": w.Cosine(),
        "distance": w.NegativeSquaredDistance(),
    }
    if similarity != "dot":
        found.append(kinds[similarity])
    if relu:
        found.append(w.NormalizedRelu())
    if not positions:
        found.append(w.PositionsOff())
    if model != WORKED_EXAMPLE and mask is not None:
        found.append(w.MaskOn() if mask == "causal" else w.MaskOff())
    if model != WORKED_EXAMPLE and norm is not None:
        found.append(w.Norm(norm))
    return found


def _explain(model: Model, reading: tuple[Reading, ...], cell: str, as_json: bool) -> None:
    from dataclasses import replace

    from pellucid.lens.explain import explain
    from pellucid.lens.trace import trace as run

    formed = replace(model, network=model.network.with_kernel("reference"))
    answer = explain(run(formed, *reading, sites=[cell.partition("[")[0]]), cell, formed)
    if as_json:
        print(json.dumps(answer.to_json(), allow_nan=False))
        return
    where = ", ".join(f"{axis} {place}" for axis, place in answer.index.items())
    print("\n".join([f"{answer.site} at {where}", *answer.lines]))


def _what_if(model: Model, reading: tuple[Reading, ...], changes: list[Change], as_json: bool, values: bool) -> None:
    from pellucid.cli.show_whatif import show
    from pellucid.lens.whatif import what_if

    if len(changes) > 1:
        raise InputError(f"one what-if at a time, not {len(changes)}: their effects could not be told apart")
    text, *target = reading
    comparison = what_if(model, text, changes[0], *target)
    if as_json:
        print(json.dumps(comparison.to_json(values=values), allow_nan=False))
    else:
        show(comparison)


def _write_page(trace: Trace, file: Path, budget_mb: float) -> None:
    from pellucid.report.trace_page import trace_page

    page = trace_page(trace, budget_mb=budget_mb)
    file.write_text(page, encoding="utf-8")
    typer.echo(f"written to {file} ({len(page.encode()) / 2**20:.1f} MB)", err=True)


def _against_note(model: str, trace: Trace, as_json: bool) -> None:
    if model != WORKED_EXAMPLE:
        raise InputError(f"--against-note is for {WORKED_EXAMPLE}: the note worked no other model out")
    from rich.console import Console

    from pellucid.cli.show_note import show
    from pellucid.lens.note import against_note

    comparison = against_note(trace)
    if as_json:
        print(json.dumps(comparison.to_json(), allow_nan=False))
    else:
        show(comparison, Console())


def _show(trace: Trace) -> None:
    from rich.console import Console

    from pellucid.cli.show_trace import show

    show(trace, Console())
