"""What is asked of a generation, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from pellucid.errors import InputError
from pellucid.generation.sampling import Filters
from pellucid.model import config as c
from pellucid.pretrained.facade import Model

DEFAULT_TOKENS = 64
Joins = Literal["none", "projections", "all"]
Prompts = str | Tensor | Sequence[Any]


@dataclass(frozen=True)
class Stop:
    """When a text ends, besides its most tokens. tokens: ids, or tokens as a trace writes them.

    texts: the text is cut before the first of these. model_end: the model's own end of text counts too.
    """

    tokens: tuple[int | str, ...] = ()
    texts: tuple[str, ...] = ()
    model_end: bool = True

    def __post_init__(self) -> None:
        if any(not text for text in self.texts):
            raise InputError("a stop text is empty, so every text would end at once: leave it out")


@dataclass(frozen=True)
class Beams:
    """Beam search. Texts are ranked by the sum of log-probabilities / length**length_penalty, as in transformers:
    above 0 favours long texts, 0 leaves the sum as it is.
    """

    count: int
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InputError(f"{self.count} beams were asked for: give 1 or more; 1 is no search")
        if not math.isfinite(self.length_penalty):
            raise InputError(f"length_penalty is {self.length_penalty}: give a number, such as 1")


@dataclass(frozen=True)
class Run:
    """How it is computed. compile: on a GPU unless told. quantize: weights in 8 bits, on a CPU.

    Of a compiled step: kernel: which attention kernel it runs on. joins: which of the matrices that meet the same input
      are put side by side; "auto" leaves gates alone for one text, where the compiler's own products are faster so.
      every: after how many tokens the host looks whether all texts have ended.
    """

    compile: bool | Literal["auto"] = "auto"
    quantize: Literal["int8"] | None = None
    kernel: Literal["grouped", "fused"] = "grouped"
    joins: Joins | Literal["auto"] = "auto"
    every: int = 16


@dataclass(frozen=True)
class Request:
    """A generation that can be run: ids within the vocabulary and the context, everything else resolved.

    prompts: what the decoder starts from. sources: what an encoder reads first; None without one.
    """

    model: Model
    texts: tuple[str | None, ...]
    prompts: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[int, ...], ...] | None
    max_tokens: int
    samples: int
    temperature: float
    beams: Beams
    cache: bool
    seeds: tuple[int, ...]
    stop_ids: frozenset[int]
    stop_texts: tuple[str, ...]
    banned: tuple[int, ...]
    filters: Filters = field(default_factory=Filters)
    run: Run = field(default_factory=Run)

    @property
    def compiles(self) -> bool:
        return self.model.device.type == "cuda" if self.run.compile == "auto" else self.run.compile

    @property
    def steps_between_looks(self) -> int:
        """A look waits for the device, which costs a graph more than a step too many."""
        return self.run.every if self.compiles else 1


def request(
    model: Model,
    prompts: Prompts,
    *,
    max_tokens: int | None,
    temperature: float,
    beams: int | Beams,
    samples: int,
    cache: bool,
    seed: int | Sequence[int],
    filters: Filters,
    stop: Stop,
    run: Run,
) -> Request:
    """Refuse what cannot be generated, with the value seen, the value wanted and the next step."""
    check_model(model, cache)
    beams = Beams(beams) if isinstance(beams, int) else beams
    if run.compile is True and not cache:
        raise InputError("compile is for steps with a cache: leave one of compile and no cache out")
    if run.quantize is not None and model.device.type != "cpu":
        raise InputError(f"int8 weights are for a CPU, and the model is on {model.device}: load it with device='cpu'")
    texts, read = _encoded(model, prompts)
    both = model.config.is_encoder_decoder
    begun = tuple((model.start_id(),) for _ in read) if both else read
    max_tokens = _default_tokens(model, begun) if max_tokens is None else max_tokens
    _check_numbers(max_tokens, temperature, samples, beams)
    _check_lengths(model, begun, read if both else (), max_tokens)
    seeds = tuple(seed) if isinstance(seed, Sequence) else (seed,) * len(read)
    if len(seeds) != len(read):
        raise InputError(f"{len(seeds)} seeds came for {len(read)} prompts: give one for all, or one each")
    return Request(
        model,
        texts,
        begun,
        read if both else None,
        max_tokens,
        samples,
        temperature,
        beams,
        cache,
        seeds,
        stop_ids(model, stop),
        _stop_texts(model, stop),
        banned_ids(model),
        filters,
        run,
    )


def check_model(model: Model, cache: bool) -> None:
    """Only decoders that unembed write text; the others have verbs of their own."""
    verbs = {c.Tag: "model.tag(text)", c.Classify: "model.classify(text)", c.Pool: "model.embed(texts)"}
    verb = verbs.get(type(model.config.head))
    shown = "`pellucid trace` shows its scores"
    if verb is not None:
        raise InputError(
            f"this model has the head {model.config.head.kind!r} and writes no text: use {verb} in Python; {shown}"
        )
    if model.config.decoder_blocks == 0:
        raise InputError(
            "this model is an encoder (a masked language model): it fills in tokens, and writes no text. Use "
            f"model.logits(ids) in Python; {shown}"
        )
    if cache and not model.config.causal:
        raise InputError(
            "this model is not causal: each new token changes what was computed of the earlier ones, so nothing can be "
            "cached. Use cache=False (--no-cache)"
        )


def _check_numbers(max_tokens: int, temperature: float, samples: int, beams: Beams) -> None:
    if max_tokens < 1:
        raise InputError(f"max_tokens is {max_tokens}: give 1 or more")
    if not 0 <= temperature < float("inf"):
        raise InputError(f"temperature is {temperature}: give 0 (the likeliest token) or more")
    if samples < 1:
        raise InputError(f"{samples} samples were asked for: give 1 or more")
    if beams.count > 1 and temperature > 0:
        raise InputError(f"beams look for the likeliest text and draw nothing: set temperature 0, not {temperature}")
    if samples > 1 and beams.count == 1 and temperature == 0:
        raise InputError(f"{samples} samples at temperature 0 would be equal: set a temperature, or beams")
    if beams.count > 1 and samples > beams.count:
        raise InputError(f"{samples} texts were asked for of {beams.count} beams: give at least as many beams")


def _encoded(model: Model, prompts: Prompts) -> tuple[tuple[str | None, ...], tuple[tuple[int, ...], ...]]:
    """One prompt or several, each a text or a list of ids."""
    if isinstance(prompts, Tensor):
        prompts = prompts.tolist()
    if isinstance(prompts, str) or (len(prompts) > 0 and all(isinstance(each, int) for each in prompts)):
        prompts = [prompts]
    if len(prompts) == 0:
        raise InputError("there are no prompts: give at least one")
    texts = tuple(each if isinstance(each, str) else None for each in prompts)
    vocab = model.config.source_vocab or model.config.vocab
    return texts, tuple(_ids(model, each, place, vocab) for place, each in enumerate(prompts))


def _ids(model: Model, prompt: Any, place: int, vocab: int) -> tuple[int, ...]:
    ids = model.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if isinstance(prompt, str) and not prompt:
        ids = []
    if not ids:
        raise InputError(f"prompt {place} is empty: give at least one token to start from")
    wrong = [each for each in ids if not isinstance(each, int) or not 0 <= each < vocab]
    if wrong:
        raise InputError(f"prompt {place} holds {wrong[0]!r}, but ids are whole numbers in 0..{vocab - 1}")
    return tuple(ids)


def positions(model: Model) -> int | None:
    """Learned positions and Linformer's projections end at the context; other schemes go on."""
    hard = isinstance(model.config.position, c.Learned) or isinstance(model.config.attention, c.Linformer)
    return model.config.context if hard else None


def _default_tokens(model: Model, begun: tuple[tuple[int, ...], ...]) -> int:
    context = positions(model)
    return DEFAULT_TOKENS if context is None else max(1, min(DEFAULT_TOKENS, context - max(map(len, begun)) + 1))


def _check_lengths(
    model: Model, begun: tuple[tuple[int, ...], ...], sources: tuple[tuple[int, ...], ...], max_tokens: int
) -> None:
    context = positions(model)
    if context is None:
        return
    longest = max(map(len, sources or begun))
    if longest > context:
        raise InputError(f"a prompt has {longest} tokens, but the model has {context} positions: shorten it")
    longest = max(map(len, begun))
    # The last token is written and not read.
    if longest + max_tokens - 1 > context:
        raise InputError(
            f"a prompt of {longest} tokens and {max_tokens} more do not fit in the model's {context} positions: ask "
            f"for max_tokens of {context - longest + 1} or fewer"
        )


def stop_ids(model: Model, stop: Stop) -> frozenset[int]:
    found = frozenset(_stop_id(model, token) for token in stop.tokens)
    return found | model.end_ids() if stop.model_end else found


def _stop_id(model: Model, token: int | str) -> int:
    vocab = model.config.vocab
    if isinstance(token, int):
        if not 0 <= token < vocab:
            raise InputError(f"stop token {token} is not in the vocabulary: give an id in 0..{vocab - 1}")
        return token
    if model.tokenizer is None:
        raise InputError(f"stop token {token!r}: this model came without a tokenizer, so give the id of the token")
    for place in range(min(vocab, model.tokenizer.size)):
        if model.tokenizer.token(place) == token:
            return place
    raise InputError(f"stop token {token!r} is not in the vocabulary: give an id, or a stop text instead")


def _stop_texts(model: Model, stop: Stop) -> tuple[str, ...]:
    if stop.texts and model.tokenizer is None:
        raise InputError("stop texts need a tokenizer, and this model came without one: give stop tokens by their ids")
    return stop.texts


def banned_ids(model: Model) -> tuple[int, ...]:
    """The single tokens that the config forbids, an encoder-decoder's padding, and ids that no word belongs to."""
    words = model.setting("bad_words_ids") or []
    found = {word[0] for word in words if isinstance(word, list) and len(word) == 1}
    padding = model.setting("pad_token_id")
    if model.config.is_encoder_decoder and isinstance(padding, int):
        found.add(padding)
    if model.tokenizer is not None:
        found |= set(range(model.tokenizer.size, model.config.vocab))
    return tuple(sorted(each for each in found - model.end_ids() if 0 <= each < model.config.vocab))
