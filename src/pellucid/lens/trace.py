"""A verified trace: every number on the way from tokens to scores, each step computed again in float64."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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
from pellucid.model.config import Linear, Linformer, Pool, Unembed
from pellucid.model.sites import axes_of
from pellucid.model.sites import sites as find_sites
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
            # JSON has no infinity; the largest number is beyond every tolerance too.
            "error": min(self.error, sys.float_info.max),
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

    def _repr_html_(self) -> str:
        """For notebooks."""
        from pellucid.lens.notebook import trace_fragment

        return trace_fragment(self)

    def to_json(self, *, values: bool = True) -> dict[str, Any]:
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "steps": [step.to_json(values=values) for step in self.steps],
            "prediction": [{"token": token, "probability": _finite(share)} for token, share in self.prediction],
        }


@torch.no_grad()
def trace(
    model: Model,
    text: str | Sequence[str] | list[Any] | Tensor,
    target: str | Sequence[str] | list[Any] | Tensor | None = None,
    *,
    padding: list[Any] | Tensor | None = None,
    target_padding: list[Any] | Tensor | None = None,
    sites: Sequence[str] | None = None,
    blocks: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    tokens: slice | None = None,
    memory_limit: int | None = None,
) -> Trace:
    """Run a model once and keep what was asked for.

    text: a text, several texts, or ids; for an encoder-decoder the source, with what it has written as `target`.
    target: a text begins with the model's start token, and "" is that alone; ids are read as they are.
    padding, target_padding: true (or 1) for the real ones of ids; texts need none.
    sites: names or patterns such as "decoder.*.residual.out"; all of them unless given.
    tokens: a range of the text; of an encoder-decoder's target, whose source is kept whole. Keys are kept whole too.
    memory_limit: bytes that N x N matrices may take; a quarter of the free memory unless given.
    """
    texts = read_texts(model, text, target, padding, target_padding)
    return run(model, texts, Selection(sites, blocks, heads, tokens, memory_limit))[0]


@dataclass(frozen=True)
class Selection:
    """What to keep of a run; None is everything. See `trace`."""

    sites: Sequence[str] | None = None
    blocks: Sequence[int] | None = None
    heads: Sequence[int] | None = None
    tokens: slice | None = None
    memory_limit: int | None = None


def run(model: Model, texts: list[Text], selection: Selection) -> tuple[Trace, Tensor]:
    """The trace of one run, and the scores that the run gave."""
    _refuse_unseen(model.network)
    model = model.plain()
    _check_ranges(model, texts[-1], selection)
    network, notes = _on_fitting_kernel(model.network, selection)
    known = recipes(network, texts)
    chosen = _select(known, selection, network)
    needed = {name for site in chosen for name in (site, *known[site].inputs)}
    _check_memory(network, needed, texts, selection.memory_limit)
    names = ("padding", "target_padding")
    paddings = {name: text.padding for name, text in zip(names, texts, strict=False) if text.padding is not None}
    with record(network, needed) as recorded:
        scores = network(*(text.ids for text in texts), **paddings)
        if "probabilities" in needed:
            network.probabilities(scores.softmax(-1))
    steps = tuple(_step(site, known[site], recorded, model, selection) for site in chosen)
    words, prediction = _words(model, texts[-1]), _prediction(model, scores, texts[-1])
    return Trace(model.name, words, steps, prediction, notes), scores


@contextmanager
def record(network: Transformer, names: set[str]) -> Iterator[Values]:
    """Keep the values that pass through these sites while the network runs."""
    recorded: Values = {}

    def keep(name: str) -> Any:
        return lambda module, inputs, value: recorded.__setitem__(name, value.detach())

    with ExitStack() as hooks:
        for name in sorted(names):
            hooks.callback(network.get_submodule(name).register_forward_hook(keep(name)).remove)
        yield recorded


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


def _step(site: str, recipe: Recipe, recorded: Values, model: Model, selection: Selection) -> Step:
    named = _axes(site, recorded[site], model)
    value = _narrow(recorded[site], named, model, selection, source=_reads_source(site, model))
    return Step(site, recipe.formula, recipe.inputs, named, value, recipe, recorded, recorded[site])


def _axes(site: str, value: Tensor, model: Model) -> tuple[str, ...]:
    """Logits and probabilities are those of the head: per token or per text, of words, labels or a vector."""
    if site not in ("logits", "probabilities") or isinstance(model.config.head, Unembed):
        return axes_of(site)
    last = axes.WIDTH if isinstance(model.config.head, Pool) else axes.LABEL
    return (axes.BATCH, axes.TOKEN, last) if value.dim() == 3 else (axes.BATCH, last)


def _reads_source(site: str, model: Model) -> bool:
    return model.config.is_encoder_decoder and site.startswith("encoder.")


def _narrow(value: Tensor, named: tuple[str, ...], model: Model, selection: Selection, *, source: bool) -> Tensor:
    """The chosen heads (or the groups that serve them) and tokens."""
    for axis, name in enumerate(named):
        size = value.shape[axis]
        if selection.heads is not None and name in (axes.HEADS, axes.KEY_VALUE_HEADS):
            served = sorted({head * size // model.config.heads for head in selection.heads})
            value = value.index_select(axis, torch.tensor(served, device=value.device))
        if selection.tokens is not None and name in (axes.TOKEN, axes.QUERY) and not source:
            chosen = torch.tensor(list(range(size)[selection.tokens]), device=value.device)
            value = value.index_select(axis, chosen)
    return value


def _check_ranges(model: Model, text: Text, selection: Selection) -> None:
    """Before anything runs."""
    config, length = model.config, text.ids.shape[1]
    limits = {"heads": config.heads, "blocks": max(config.encoder_blocks, config.decoder_blocks)}
    for name, limit in limits.items():
        asked = getattr(selection, name)
        if asked is not None and (not asked or any(not 0 <= index < limit for index in asked)):
            raise InputError(f"{name} {list(asked)} were asked for, but the model has {name} 0 to {limit - 1}")
    if (tokens := selection.tokens) is not None:
        ends = [end for end in (tokens.start, tokens.stop) if end is not None]
        if not range(length)[tokens] or any(not -length <= end <= length for end in ends):
            asked = f"{'' if tokens.start is None else tokens.start}:{'' if tokens.stop is None else tokens.stop}"
            raise InputError(f"tokens {asked} were asked for, but the text has {length} tokens, 0 to {length - 1}")


def _select(known: dict[str, Recipe], selection: Selection, network: Transformer) -> list[str]:
    patterns, blocks = selection.sites, selection.blocks
    for pattern in patterns or ():
        if not _matching(known, [pattern]):
            raise InputError(_no_such_site(pattern, list(dict.fromkeys([*known, *_matrices(network)]))))
    chosen = _matching(known, patterns)
    if blocks is not None:
        chosen = [name for name in chosen if _block(name) is None or _block(name) in blocks]
    if not chosen:
        raise InputError(f"nothing is left of sites {list(patterns or ())} in blocks {list(blocks or ())}")
    return chosen


def _matching(names: Iterable[str], patterns: Sequence[str] | None) -> list[str]:
    return [name for name in names if patterns is None or any(fnmatchcase(name, pattern) for pattern in patterns)]


def _block(site: str) -> int | None:
    return next((int(word) for word in site.split(".") if word.isdigit()), None)


def _no_such_site(name: str, known: list[str]) -> str:
    near = get_close_matches(name, known, 3, 0.4)
    return f"no site is called {name!r}; the nearest are {', '.join(near) if near else ', '.join(known[:5])}"


def _on_fitting_kernel(network: Transformer, selection: Selection) -> tuple[Transformer, tuple[str, ...]]:
    """Scores and weights exist on the reference kernel alone: it runs where one of them is asked for."""
    if network.kernel == "reference" or not _matching(_matrices(network), selection.sites):
        return network, ()
    note = f"ran on the reference kernel, which forms scores and weights; the model's own is {network.kernel!r}"
    return network.with_kernel("reference"), (note,)


def _matrices(network: Transformer) -> list[str]:
    """The sites of matrices, which the network has on the reference kernel. Linear attention has weights alone."""
    kinds = MATRICES[1:] if isinstance(network.config.attention, Linear) else MATRICES
    mixers = [name.removesuffix(".heads") for name in find_sites(network) if name.endswith(".heads")]
    return [mixer + kind for mixer in mixers for kind in kinds]


def _check_memory(network: Transformer, needed: set[str], texts: list[Text], limit: int | None) -> None:
    """Of the matrices that will be kept: those asked for, and those that a check of what was asked for reads."""
    config, matrices = network.config, [name for name in needed if name.endswith(MATRICES)]
    source, target = texts[0].ids.shape[1], texts[-1].ids.shape[1]

    def cells(name: str) -> int:
        queries = source if name.startswith("encoder.") else target
        keys = config.attention.rank if isinstance(config.attention, Linformer) else queries
        return queries * (source if ".cross." in name and not isinstance(config.attention, Linformer) else keys)

    per_cell = texts[0].ids.shape[0] * config.heads * network.tokens.weight.element_size()
    kept = sum(cells(name) for name in matrices) * per_cell
    allowed = _free_memory(network.tokens.weight.device) // 4 if limit is None else limit
    if kept > allowed:
        raise InputError(
            f"{len(matrices)} matrices of up to {target} x {source if source > target else target} for {config.heads} "
            f"heads need {_readable(kept)}, but {_readable(allowed)} are allowed: choose fewer blocks, or sites "
            "without scores and weights, a shorter text, or raise memory_limit"
        )


def _readable(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**29 else f"{size / 2**20:.3g} MiB"


def _free_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    # macOS does not say how many pages are free, only how many there are.
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf(pages)


def _refuse_unseen(network: object) -> None:
    """A compiled module runs without its sites, wholly or in part; dropout makes a step that no formula gives."""
    parts = list(network.modules()) if isinstance(network, Transformer) else []
    compiled = [part for part in parts if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None]
    if not isinstance(network, Transformer) or compiled:
        seen = type(compiled[0] if compiled else network).__name__
        raise InputError(
            f"a lens needs the network itself, but {seen} is compiled and has no sites left to see. Pass the network "
            "that was given to torch.compile (its _orig_mod), or build it again where it was compiled in place"
        )
    if network.training and network.config.dropout:
        raise InputError("the network is in training mode, where dropout leaves no step to check: call network.eval()")


def read_texts(
    model: Model, text: Any, target: Any = None, padding: Any = None, target_padding: Any = None
) -> list[Text]:
    """What each stack reads, from texts or ids."""
    source = _read(model, text, padding, lambda one: model.encode(one) if one else [])
    return [source] if target is None else [source, _read(model, target, target_padding, model.encode_target)]


def _read(model: Model, given: Any, padding: Any, encode: Callable[[str], list[int]]) -> Text:
    texts = [given] if isinstance(given, str) else list(given) if isinstance(given, list | tuple) else []
    if not (texts and isinstance(texts[0], str)):
        mask = None if padding is None else torch.as_tensor(padding, device=model.device).bool()
        return Text(model.ids(given), mask)
    encoded = [encode(one) for one in texts]
    if not all(encoded):
        raise InputError("the text is empty: give at least one token")
    ids, real = model.padded(encoded)
    return Text(ids, None if bool(real.all()) else real)


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
    return [_finite(number) for number in value.tolist()]


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None
