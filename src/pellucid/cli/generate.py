"""`pellucid generate MODEL PROMPT`: the text as it is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pellucid.cli.options import AdapterFolder, Device, Dtype, Json, ModelArgument, Seed, open_model
from pellucid.errors import InputError

if TYPE_CHECKING:
    from pellucid.generation.request import Request
    from pellucid.generation.results import Result
    from pellucid.generation.stats import Watch
    from pellucid.pretrained.facade import Model

INTERRUPTED = 130


def generate(
    model: ModelArgument,
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", help="A text, several, or ids such as '5 17 3' with --ids.")
    ],
    ids: Annotated[bool, typer.Option("--ids", help="Each PROMPT is ids, not words.")] = False,
    max_tokens: Annotated[int | None, typer.Option(help="The most tokens to write; 64, if so many fit.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token; above, tokens are drawn.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest that reach this share.")] = None,
    min_p: Annotated[float | None, typer.Option(help="Draw among those this likely, against the likeliest.")] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1, tokens of the text are less likely.")] = 1.0,
    samples: Annotated[int, typer.Option(help="How many texts per prompt; of beams, the best.")] = 1,
    beams: Annotated[int, typer.Option(help="Search for the likeliest text with so many beginnings.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Of beams: above 0 favours long texts.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    stop_token: Annotated[list[str] | None, typer.Option(help="End at this token, or id.")] = None,
    cache: Annotated[bool, typer.Option("--cache/--no-cache", help="Or compute all again for every token.")] = True,
    quantize: Annotated[Literal["int8"] | None, typer.Option(help="Weights in 8 bits, on a CPU.")] = None,
    compile_: Annotated[
        bool | None, typer.Option("--compile/--no-compile", help="Compile the step; on a GPU unless told.")
    ] = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print rates and memory to stderr.")] = False,
    adapter: AdapterFolder = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write on from a prompt, or translate it: text streams as it is generated."""
    from pellucid.generation.request import Beams, Run, Stop, request
    from pellucid.generation.sampling import Filters
    from pellucid.generation.stats import Watch

    opened = open_model(model, device, dtype, adapter=adapter).plain()
    asked = request(
        opened,
        [_ids(text) if ids else text for text in prompts],
        max_tokens=max_tokens,
        temperature=temperature,
        beams=Beams(beams, length_penalty),
        samples=samples,
        cache=cache,
        seed=seed,
        filters=Filters(top_k, top_p, min_p, repetition_penalty),
        stop=Stop(_tokens(stop_token), tuple(stop or ())),
        run=Run("auto" if compile_ is None else compile_, quantize),
    )
    watch = Watch()
    results, whole = _run(asked, watch, streams=not as_json)
    if as_json:
        print(json.dumps([result.to_json() for result in results], allow_nan=False))
    if stats and whole:
        _print_stats(asked, watch, results)
    if quantize is not None and whole:
        _print_loss(opened, results[0])
    if not whole:
        raise typer.Exit(INTERRUPTED)


def _run(asked: Request, watch: Watch, *, streams: bool) -> tuple[list[Result], bool]:
    """The results, and whether they are whole: Ctrl-C ends the texts where they are."""
    from pellucid.cli.show_generation import Shown
    from pellucid.generation.decode import events, results_of, writings_of

    shown = Shown(many=len(asked.prompts) * asked.samples > 1, words=asked.model.tokenizer is not None)
    if asked.beams.count > 1:
        results, whole = _search(asked, watch)
        if streams:
            shown.results(results)
        return results, whole
    writings, whole = writings_of(asked), True
    try:
        for event in events(asked, writings, 1 if streams else asked.steps_between_looks, watch):
            if streams:
                shown.event(event)
    except KeyboardInterrupt:
        whole = False
    results = results_of(asked, writings)
    if streams:
        shown.end(results)
    return results, whole


def _search(asked: Request, watch: Watch) -> tuple[list[Result], bool]:
    """The best texts; of a search that was interrupted, the best of those that had ended."""
    from pellucid.generation.decode import Stopped, search

    try:
        return search(asked, watch), True
    except Stopped as stop:
        unfinished = [str(place) for place, result in enumerate(stop.results) if not result.continuations]
        if unfinished:
            which = f"prompt {unfinished[0]}" if len(unfinished) == 1 else f"prompts {', '.join(unfinished)}"
            typer.echo(f"stopped: no text of {which} had ended yet", err=True)
        return stop.results, False


def _ids(text: str) -> list[int]:
    if not all(word.isdigit() for word in text.split()):
        raise InputError(f"--ids wants whole numbers with spaces between them, not {text!r}")
    return [int(word) for word in text.split()]


def _tokens(words: list[str] | None) -> tuple[int | str, ...]:
    return tuple(int(word) if word.isdigit() else word for word in words or ())


def _print_stats(asked: Request, watch: Watch, results: list[Result]) -> None:
    from pellucid.cli.show_generation import stats_lines
    from pellucid.generation.stats import stats_of

    for line in stats_lines(stats_of(asked, watch, results)):
        typer.echo(line, err=True)


def _print_loss(model: Model, result: Result) -> None:
    from pellucid.generation.stats import quality_loss

    if len(result.ids) < 2:
        return
    loss = quality_loss(model, result)
    typer.echo(
        f"int8: mean log-probability {loss.int8:.4f}, float32: {loss.float32:.4f}, change "
        f"{loss.int8 - loss.float32:+.4f} over the {loss.tokens} tokens of the first text",
        err=True,
    )
