"""`generate` and `stream`: prompts in, texts out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pellucid.errors import InputError
from pellucid.generation.beam import NEVER, Searched, Texts
from pellucid.generation.lanes import Drawn
from pellucid.generation.quantize import quantized
from pellucid.generation.request import Beams, Prompts, Request, Run, Stop, request
from pellucid.generation.results import Continuation, Event, Result
from pellucid.generation.runner import Runner, begin, resting
from pellucid.generation.sampling import Filters
from pellucid.generation.stats import Watch
from pellucid.generation.text import Writing, written_text
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model


def generate(
    model: Model,
    prompts: Prompts,
    *,
    max_tokens: int | None = None,
    temperature: float = 0.0,
    beams: int | Beams = 1,
    samples: int = 1,
    cache: bool = True,
    seed: int | Sequence[int] = 0,
    filters: Filters = Filters(),
    stop: Stop = Stop(),
    run: Run = Run(),
) -> list[Result]:
    """What the model writes after each prompt: a text or ids, or several of these. One result per prompt.

    max_tokens: 64 unless told, or as many as the model's positions allow.
    temperature: 0 takes the likeliest token; above it, tokens are drawn. samples: how many texts per prompt.
    seed: one for all prompts, or one each. What is drawn after a prompt does not depend on the others of the batch.
    cache: False computes everything again for every token, to show what a cache spares.
    """
    asked = request(
        model,
        prompts,
        max_tokens=max_tokens,
        temperature=temperature,
        beams=beams,
        samples=samples,
        cache=cache,
        seed=seed,
        filters=filters,
        stop=stop,
        run=run,
    )
    return search(asked) if asked.beams.count > 1 else finished(asked)


def stream(
    model: Model,
    prompts: Prompts,
    *,
    max_tokens: int | None = None,
    temperature: float = 0.0,
    samples: int = 1,
    cache: bool = True,
    seed: int | Sequence[int] = 0,
    filters: Filters = Filters(),
    stop: Stop = Stop(),
    run: Run = Run(),
) -> Iterator[Event]:
    """The same token by token. Beams are no choice here: which text is best is known only at the end."""
    asked = request(
        model,
        prompts,
        max_tokens=max_tokens,
        temperature=temperature,
        beams=1,
        samples=samples,
        cache=cache,
        seed=seed,
        filters=filters,
        stop=stop,
        run=run,
    )
    return events(asked, writings_of(asked), every=1)


def network_of(asked: Request) -> Transformer:
    """The network that runs: on kernels that know caches, without dropout, in 8 bits if asked."""
    network = resting(asked.model.network)
    return network if asked.run.quantize is None else quantized(network)


def writings_of(asked: Request) -> list[Writing]:
    return [
        Writing(asked.model, prompt, asked.stop_ids, asked.stop_texts)
        for prompt in asked.prompts
        for _ in range(asked.samples)
    ]


def events(asked: Request, writings: list[Writing], every: int, watch: Watch | None = None) -> Iterator[Event]:
    """Run, and tell of each token of each text that has not ended. every: how many steps between two looks."""
    watch = watch or Watch()
    network = network_of(asked)
    watch.start()
    runner, done = begin(asked, network), 0
    while True:
        lanes = runner.lanes
        assert isinstance(lanes, Drawn)
        fresh = int(lanes.count)
        lanes.check()
        watch.look(lanes, fresh)
        ids, logprobs = lanes.out[:, done:fresh].tolist(), lanes.logprobs[:, done:fresh].tolist()
        for place in range(fresh - done):
            for row, writing in enumerate(writings):
                if writing.ended is None:
                    yield _event(asked, row, writing, ids[row][place], logprobs[row][place])
        done = fresh
        if done >= asked.max_tokens or all(writing.ended for writing in writings):
            return
        runner.advance(min(every, asked.max_tokens - done))


def _event(asked: Request, row: int, writing: Writing, token: int, logprob: float) -> Event:
    text = writing.push(token, logprob)
    if writing.ended is None and len(writing.ids) == asked.max_tokens:
        text += writing.finish()
    return Event(row // asked.samples, row % asked.samples, token, logprob, text, writing.ended)


def finished(asked: Request) -> list[Result]:
    writings = writings_of(asked)
    for _ in events(asked, writings, asked.steps_between_looks):
        pass
    return results_of(asked, writings)


def results_of(asked: Request, writings: list[Writing]) -> list[Result]:
    """One per prompt; of texts that were interrupted, what there is."""
    written = [continuation_of(writing) for writing in writings]
    each = asked.samples
    return [
        _result(asked, place, tuple(written[place * each : place * each + each])) for place in range(len(asked.prompts))
    ]


def continuation_of(writing: Writing) -> Continuation:
    if writing.ended is None:
        writing.finish()
    assert writing.ended is not None
    text = None if writing.model.tokenizer is None else writing.text
    ids = (*writing.prompt, *writing.ids)
    return Continuation(text, ids, tuple(writing.logprobs), sum(writing.logprobs), writing.ended)


def _result(asked: Request, place: int, found: tuple[Continuation, ...]) -> Result:
    read = asked.prompts[place] if asked.sources is None else asked.sources[place]
    return Result(asked.texts[place], read, found)


# --- beams ---


class Stopped(KeyboardInterrupt):
    """Ctrl-C during a search; `results` hold the best texts that had ended until then, which may be none."""

    def __init__(self, results: list[Result]) -> None:
        super().__init__("stopped before the search ended")
        self.results = results


def search(asked: Request, watch: Watch | None = None) -> list[Result]:
    watch = watch or Watch()
    if asked.stop_texts:
        raise InputError("beams end at tokens, not at stop texts: give stop tokens, or set beams 1")
    ended: Texts | None = None
    try:
        network = network_of(asked)
        watch.start()
        for lanes in _looks(asked, begin(asked, network), watch):
            ended = lanes.ended.copy()
    except KeyboardInterrupt:
        raise Stopped(_found(asked, ended)) from None
    return _found(asked, ended)


def _looks(asked: Request, runner: Runner, watch: Watch) -> Iterator[Searched]:
    """Run, and show the lanes after every few steps."""
    done = 1
    while True:
        lanes = runner.lanes
        assert isinstance(lanes, Searched)
        lanes.check()
        watch.look(lanes, done)
        yield lanes
        if bool(lanes.done) or done >= asked.max_tokens:
            return
        steps = min(asked.steps_between_looks, asked.max_tokens - done)
        runner.advance(steps)
        done += steps


def _found(asked: Request, ended: Texts | None) -> list[Result]:
    prompts = enumerate(asked.prompts)
    return [_result(asked, n, () if ended is None else _best(asked, ended, n, prompt)) for n, prompt in prompts]


def _best(asked: Request, ended: Texts, place: int, prompt: tuple[int, ...]) -> tuple[Continuation, ...]:
    found = []
    for rank in range(asked.samples):
        score, length = float(ended.scores[place, rank]), int(ended.lengths[place, rank])
        if score <= NEVER / 2:
            continue
        ids = ended.ids[place, rank, :length].tolist()
        logprobs = ended.logprobs[place, rank, :length].tolist()
        stopped = ids[-1] in asked.stop_ids
        text = None
        if asked.model.tokenizer is not None:
            text = written_text(asked.model, prompt, ids[:-1] if stopped else ids)
        found.append(Continuation(text, (*prompt, *ids), tuple(logprobs), score, "token" if stopped else "length"))
    return tuple(found)
