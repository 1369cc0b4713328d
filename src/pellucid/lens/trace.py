"""A verified trace: every number on the way from tokens to scores, each step computed again in float64."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pellucid import axes
from pellucid.errors import InputError
from pellucid.lens.recipes import Recipe, Text, Values, recipes
from pellucid.model.config import Unembed
from pellucid.model.sites import axes_of
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model

MATRICES = (".scores", ".weights")


@dataclass(frozen=True)
class Step:
    """One site: its value, how it came about, and the largest error against the same step in float64."""

    site: str
    formula: str
    inputs: tuple[str, ...]
    axes: tuple[str, ...]
    value: Tensor
    recipe: Recipe
    recorded: Values
    full: Tensor

    @cached_property
    def error(self) -> float:
        """The largest error, relative to the largest number of the step; computed when it is first asked for."""
        exact = {name: self.recorded[name].double() for name in self.inputs}
        return relative_error(self.full.double(), self.recipe.again(exact))

    def to_json(self, *, values: bool = True) -> dict[str, Any]:
        shown = {"values": _plain(self.value)} if values else {}
        return {
            "site": self.site,
            "formula": self.formula,
            "inputs": list(self.inputs),
            "axes": list(self.axes),
            "shape": list(self.value.shape),
            **shown,
            "error": self.error,
        }


@dataclass(frozen=True)
class Trace:
    """The steps of one run, in the order in which they were computed."""

    model: str
    tokens: tuple[str, ...]
    steps: tuple[Step, ...]
    prediction: tuple[tuple[str, float], ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, site: str) -> Step:
        for step in self.steps:
            if step.site == site:
                return step
        raise InputError(_no_such_site(site, [step.site for step in self.steps]))

    @property
    def error(self) -> float:
        """The largest error of all steps."""
        return max(step.error for step in self.steps)

    def to_json(self, *, values: bool = True) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "steps": [step.to_json(values=values) for step in self.steps],
            "prediction": [{"token": token, "probability": share} for token, share in self.prediction],
        }


@torch.no_grad()
def trace(
    model: Model,
    text: str | Sequence[str] | list[Any] | Tensor,
    target: list[Any] | Tensor | None = None,
    *,
    sites: Sequence[str] | None = None,
    blocks: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: slice | None = None,
    memory_limit: int | None = None,
) -> Trace:
    """Run a model once and keep what was asked for.

    text: a text, several texts, or ids; for an encoder-decoder the source, with the text so far as `target` ids.
    sites: names or patterns such as "decoder.*.residual.out"; all of them unless given.
    memory_limit: bytes that N x N matrices may take; a quarter of the free memory unless given.
    """
    _refuse_compiled(model.network)
    texts = _texts(model, text, target)
    network, notes = _on_fitting_kernel(model.network, sites)
    known = recipes(network, texts)
    chosen = _select(known, sites, blocks, model)
    _check_memory(network, chosen, texts, memory_limit)
    needed = {name for site in chosen for name in (site, *known[site].inputs)}
    with record(network, needed) as recorded:
        options = {"padding": texts[0].padding} if texts[0].padding is not None else {}
        scores = network(*(text.ids for text in texts), **options)
        if "probabilities" in needed:
            network.probabilities(scores.softmax(-1))
    steps = tuple(_step(site, known[site], recorded, model, heads, tokens) for site in chosen)
    name = str(model.origin.folder) if model.origin.folder else "model"
    return Trace(name, _words(model, texts[-1]), steps, _prediction(model, scores, texts[-1]), notes)


@contextmanager
def record(network: Transformer, names: set[str]) -> Iterator[Values]:
    """Keep the values that pass through these sites while the network runs."""
    recorded: Values = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, value: recorded.__setitem__(name, value.detach())

    hooks = [network.get_submodule(name).register_forward_hook(keep(name)) for name in sorted(names)]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def relative_error(value: Tensor, again: Tensor) -> float:
    """The largest difference over the largest number; infinite where one hides what the other shows."""
    if value.shape != again.shape:
        again = again.expand_as(value)
    hidden = again == -torch.inf
    if not torch.equal(hidden, value == -torch.inf) or bool((value.isnan() | again.isnan()).any()):
        return float("inf")
    difference = (value - again).masked_fill(hidden, 0).abs().max()
    largest = again.masked_fill(hidden, 0).abs().max()
    return float(difference / largest) if largest > 0 else float(difference)


def _step(
    site: str, recipe: Recipe, recorded: Values, model: Model, heads: Sequence[int] | None, tokens: slice | None
) -> Step:
    named = axes_of(site) if recorded[site].dim() == len(axes_of(site)) else (axes.BATCH, axes.WIDTH)
    value = _narrow(recorded[site], named, model, heads, tokens)
    return Step(site, recipe.formula, recipe.inputs, named, value, recipe, recorded, recorded[site])


def _narrow(
    value: Tensor, named: tuple[str, ...], model: Model, heads: Sequence[int] | None, tokens: slice | None
) -> Tensor:
    """The chosen heads (or the groups that serve them) and tokens."""
    for axis, name in enumerate(named):
        if heads is not None and name in (axes.HEADS, axes.KEY_VALUE_HEADS):
            limit = model.config.heads
            if any(not 0 <= head < limit for head in heads):
                raise InputError(f"heads {list(heads)} were asked for, but the model has heads 0 to {limit - 1}")
            served = [head * value.shape[axis] // limit for head in heads]
            value = value.index_select(axis, torch.tensor(sorted(set(served)), device=value.device))
        if tokens is not None and name in (axes.TOKEN, axes.QUERY):
            length = value.shape[axis]
            chosen = range(length)[tokens]
            if not chosen:
                raise InputError(f"tokens {tokens.start}:{tokens.stop} were asked for, but the text has {length}")
            value = value.index_select(axis, torch.tensor(list(chosen), device=value.device))
    return value


def _select(
    known: dict[str, Recipe], patterns: Sequence[str] | None, blocks: Sequence[int] | None, model: Model
) -> list[str]:
    chosen = list(known)
    if patterns is not None:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in known):
                raise InputError(_no_such_site(pattern, list(known)))
        chosen = [name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if blocks is not None:
        depth = max(model.config.encoder_blocks, model.config.decoder_blocks)
        if any(not 0 <= block < depth for block in blocks):
            raise InputError(f"blocks {list(blocks)} were asked for, but the model has blocks 0 to {depth - 1}")
        chosen = [name for name in chosen if _block(name) is None or _block(name) in blocks]
    return chosen


def _block(site: str) -> int | None:
    return next((int(word) for word in site.split(".") if word.isdigit()), None)


def _no_such_site(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 3, 0.4)
    return f"no site is called {name!r}; the nearest are {', '.join(near) if near else ', '.join(known[:5])}"


def _on_fitting_kernel(network: Transformer, patterns: Sequence[str] | None) -> tuple[Transformer, tuple[str, ...]]:
    """Scores and weights exist on the reference kernel alone."""
    wants_matrices = patterns is None or any(pattern.endswith((*MATRICES, "*")) for pattern in patterns)
    if not wants_matrices or network.kernel == "reference":
        return network, ()
    note = f"ran on the reference kernel, which forms scores and weights; the model's own is {network.kernel!r}"
    return network.with_kernel("reference"), (note,)


def _check_memory(network: Transformer, chosen: list[str], texts: list[Text], limit: int | None) -> None:
    matrices = [name for name in chosen if name.endswith(MATRICES)]
    length = max(text.ids.shape[1] for text in texts)
    size = network.tokens.weight.element_size()
    needed = len(matrices) * texts[0].ids.shape[0] * network.config.heads * length**2 * size
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
    allowed = free // 4 if limit is None else limit
    if needed > allowed:
        raise InputError(
            f"{len(matrices)} matrices of {length} x {length} for {network.config.heads} heads need "
            f"{needed / 2**30:.1f} GiB, but {allowed / 2**30:.1f} GiB are allowed: choose fewer blocks, or sites "
            "without scores and weights, a shorter text, or raise memory_limit"
        )


def _refuse_compiled(network: object) -> None:
    if not isinstance(network, Transformer):
        raise InputError(
            f"a lens needs the network itself, not {type(network).__name__}: a compiled module has no sites left to "
            "see. Pass the network that was given to torch.compile (its _orig_mod)"
        )


def _texts(model: Model, text: Any, target: Any) -> list[Text]:
    if isinstance(text, str) or (isinstance(text, list) and text and isinstance(text[0], str)):
        given = [text] if isinstance(text, str) else text
        if any(not one for one in given):
            raise InputError("the text is empty: give at least one token")
        ids, real = model.batch(given)
        source = Text(ids, None if bool(real.all()) else real)
    else:
        source = Text(model.ids(text), None)
    return [source] if target is None else [source, Text(model.ids(target), None)]


def _words(model: Model, text: Text) -> tuple[str, ...]:
    ids = text.ids[0].tolist()
    return tuple(str(token) if model.tokenizer is None else model.tokenizer.token(token) for token in ids)


def _prediction(model: Model, scores: Tensor, text: Text) -> tuple[tuple[str, float], ...]:
    """The five likeliest next tokens of the first text."""
    if not isinstance(model.config.head, Unembed):
        return ()
    last = text.ids.shape[1] - 1 if text.padding is None else int(text.padding[0].nonzero().max())
    shares = scores[0, last].double().softmax(-1)
    best = shares.topk(min(5, shares.numel()))
    words = (str(i) if model.tokenizer is None else model.tokenizer.token(i) for i in best.indices.tolist())
    return tuple(zip(words, best.values.tolist(), strict=True))


def _plain(value: Tensor) -> Any:
    """Nested lists; what the mask hides is null, since JSON has no infinity."""
    if value.dim() > 1:
        return [_plain(row) for row in value]
    return [None if number == float("-inf") else number for number in value.tolist()]
