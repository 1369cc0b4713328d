"""What a model keeps of a text: how many bytes, whether keys and values are low-rank, and what keeping less does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pellucid.errors import InputError
from pellucid.model import config as c
from pellucid.model.cache import Cache, KeysAndValues, cache_bytes, source_bytes
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.spectra.baseline import derived_seed, random_twin
from pellucid.spectra.kv_changes import Alteration, Comparison, Int8, LowRank, WindowAndSinks, directions
from pellucid.spectra.kv_results import CachedHead, Growth, KvReport, PartSpectrum, Room
from pellucid.spectra.rank import ranks_of
from pellucid.spectra.reading import Ids, Text, read

LONGEST = 131_072  # tokens: where a model names no context
TAUS = (0.9, 0.95, 0.99)
_FEWEST = 4  # tokens: two to keep, two to read after them


def kv_report(
    model: Model,
    text: Text,
    *,
    context: int | None = None,
    ranks: Sequence[int] | None = None,
    window: int | None = None,
    sinks: int = 4,
    tau: tuple[float, ...] = TAUS,
    baseline: bool = True,
    seed: int = 0,
) -> KvReport:
    """Measure the cache of a text: words, ids, or a pair (source, target) for an encoder-decoder.

    context: only the first so many tokens. ranks: an eighth, a quarter and half of the head's width unless given.
    window: a quarter of what is kept unless given. seed: where that of the random weights is derived from.

    The cache that is altered holds the first half of the text; the second half is read after it.
    """
    _check_model(model)
    texts = _ids(model, text, context)
    length = texts[-1].shape[1]
    cached = length // 2
    alterations = _alterations(model.config, cached, ranks, window, sinks)
    network = _on_fused_kernels(model.network)
    keeps_tokens = not isinstance(model.config.attention, c.Linear)
    heads = list(_heads(network, texts, tau)) if keeps_tokens else []
    if baseline and heads:
        random = random_twin(model.network, derived_seed(seed, "random weights"))
        twins = _heads(random, texts, tau)
        heads = [replace(head, baseline=twin.measured) for head, twin in zip(heads, twins, strict=True)]
    comparison = None
    if keeps_tokens:
        first = (*texts[:-1], texts[-1][:, :cached])
        comparison = Comparison.of(network, _filled(network, first, length), texts[-1][:, cached:])
    return KvReport(
        model=model.name,
        dtype=str(model.dtype).removeprefix("torch."),
        tokens=length,
        cached=cached,
        tau=tau,
        growth=_growth(model.config, model.dtype, texts),
        heads=tuple(heads),
        loss=None if comparison is None else comparison.loss,
        changes=() if comparison is None else tuple(comparison.change(each) for each in alterations),
        notes=tuple(_notes(model.config)),
    )


# --- what was asked for ---


def _check_model(model: Model) -> None:
    config = model.config
    if config.decoder_blocks == 0 or not config.causal:
        raise InputError(
            "this model reads a text at once and keeps no keys and values of it, so it has no cache: `pellucid "
            "spectrum` measures its attention"
        )
    if not isinstance(config.head, c.Unembed):
        raise InputError(
            f"this model has the head {config.head.kind!r} and writes no text, so it needs no cache: `pellucid "
            "spectrum` measures its attention"
        )


def _ids(model: Model, text: Text, context: int | None) -> tuple[Ids, ...]:
    found = read(model, text)
    longest = found[-1].shape[1]
    if context is not None and not _FEWEST <= context <= longest:
        raise InputError(
            f"the text has {longest} tokens, but a context of {context} was asked for: ask for {_FEWEST} to {longest}"
        )
    if longest < _FEWEST:
        raise InputError(
            f"the text has {longest} tokens, but half of it is kept and half is read after that: give {_FEWEST} or more"
        )
    return tuple(ids[:, :context] for ids in found)


def _alterations(
    config: c.ModelConfig, cached: int, ranks: Sequence[int] | None, window: int | None, sinks: int
) -> list[Alteration]:
    width = max(config.key_width, config.values_width)
    if ranks is None:
        ranks = [max(width // part, 1) for part in (8, 4, 2)]
    for rank in ranks:
        if rank > width:
            raise InputError(
                f"rank {rank} is above the width {width} of a head, which is full rank: give {width} at most"
            )
    shown = max(cached // 4, 1) if window is None else window
    return [*map(LowRank, dict.fromkeys(ranks)), WindowAndSinks(shown, sinks), Int8()]


def _on_fused_kernels(network: Transformer) -> Transformer:
    return network if network.kernel == "fused" and not network.training else network.twin("fused").eval()


# --- bytes ---


def _growth(config: c.ModelConfig, dtype: torch.dtype, texts: tuple[Ids, ...]) -> Growth:
    limit = config.context or LONGEST
    lengths = {max(limit // part, 1) for part in (64, 16, 4, 1)} | {texts[-1].shape[1]}
    of_source = source_bytes(config, 1, texts[0].shape[1], dtype) if config.is_encoder_decoder else 0
    rooms = tuple(Room(each, cache_bytes(config, 1, each, dtype), of_source) for each in sorted(lengths))
    if isinstance(config.attention, c.Linear):
        return Growth(0, "sums of constant size", rooms)
    widths = str(config.key_width)
    both = f"2 x {config.decoder_blocks} blocks"
    if config.key_width != config.values_width:
        both, widths = f"{config.decoder_blocks} blocks", f"({config.key_width} + {config.values_width})"
    per_token = cache_bytes(config.model_copy(update={"window": None}), 1, 1, dtype)
    formula = f"{both} x {config.groups} key-value heads x head width {widths} x {dtype.itemsize} bytes"
    return Growth(per_token, formula, rooms)


# --- spectra ---


@torch.no_grad()
def _filled(network: Transformer, texts: tuple[Ids, ...], capacity: int) -> Cache:
    cache = network.new_cache(1, capacity)
    memory = network.encode(texts[0]) if network.config.is_encoder_decoder else None
    network.decode(texts[-1], memory, cache=cache, last=True)
    return cache


def _heads(network: Transformer, texts: tuple[Ids, ...], tau: tuple[float, ...]) -> Iterator[CachedHead]:
    with _keys_before_rotation(network) as unturned:
        cache = _filled(network, texts, texts[-1].shape[1])
    for index, block in enumerate(cache.blocks):
        assert isinstance(block.own, KeysAndValues)
        filled = min(cache.length, block.own.size)
        found = {"key": block.own.key[0, :, :filled], "value": block.own.value[0, :, :filled]}
        if unturned:
            found["key before rotation"] = unturned[index][0, :, -filled:]
        yield from _of_parts(index, "self", found, tau)
        if isinstance(block.cross, tuple):
            yield from _of_parts(index, "cross", {"key": block.cross[0][0], "value": block.cross[1][0]}, tau)


@contextmanager
def _keys_before_rotation(network: Transformer) -> Iterator[list[Tensor]]:
    """Of each block of the decoder in turn; none where nothing is rotated."""
    assert network.decoder is not None
    seen: list[Tensor] = []

    def keep(module: nn.Module, inputs: object, key: Tensor) -> None:
        seen.append(key)

    turns = isinstance(network.config.position, c.Rotary)
    hooks = [block.attention.norm_key.register_forward_hook(keep) for block in network.decoder.blocks if turns]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _of_parts(block: int, kind: str, parts: dict[str, Tensor], tau: tuple[float, ...]) -> Iterator[CachedHead]:
    spectra = {part: _spectra(kept, tau) for part, kept in parts.items()}
    for head in range(len(next(iter(parts.values())))):
        for part, found in spectra.items():
            yield CachedHead(block, head, kind, part, found[head])  # type: ignore[arg-type]


def _spectra(kept: Float[Tensor, "groups tokens width"], tau: tuple[float, ...]) -> list[PartSpectrum]:
    if not bool(kept.isfinite().all()):
        raise InputError("cached keys or values are NaN or infinite, so they have no rank: check the weights")
    rounded, shape = torch.promote_types(kept.dtype, torch.float32), (kept.shape[1], kept.shape[2])
    values = directions(kept.double())[0].cpu()
    return [PartSpectrum(tuple(each.tolist()), ranks_of(each, shape, rounded, tau)) for each in values]


def _notes(config: c.ModelConfig) -> Iterator[str]:
    if isinstance(config.attention, c.Linear):
        yield (
            "Linear attention keeps sums of constant size and nothing per token: there are no cached keys and values "
            "to measure or to truncate."
        )
        return
    windows = [window for block in range(config.decoder_blocks) if (window := config.window_of(block)) is not None]
    if windows:
        yield (
            f"{len(windows)} of {config.decoder_blocks} blocks keep no more than a window of "
            f"{'/'.join(str(window) for window in sorted(set(windows)))} tokens."
        )
    if config.is_encoder_decoder:
        yield "The keys and values of the source (cross) change in rank and in bits too; a window leaves them whole."
