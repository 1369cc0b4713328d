"""Change a value on its way through the network and see what becomes of the output; and the logit lens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pellucid.errors import InputError
from pellucid.lens.recipes import Text
from pellucid.lens.trace import MATRICES, Trace, _no_such_site, _refuse_unseen, _words, read_texts, record
from pellucid.lens.whatif import Share, side_by_side
from pellucid.model.config import Pool, Unembed
from pellucid.model.sites import sites
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model

# What a tensor takes in brackets: along the axes of the site, the batch first.
Index = tuple[int | slice, ...]


@dataclass(frozen=True)
class Zero:
    """Put 0 there; everywhere unless an index is given."""

    index: Index | None = None


@dataclass(frozen=True)
class Replace:
    """Put a number there, or numbers of the same shape."""

    value: float | list[Any] | Tensor
    index: Index | None = None


@dataclass(frozen=True)
class Patch:
    """Put there what stands at the same place in another run: of another text (or ids), or of a trace.

    Another text of an encoder-decoder is another source, with the same target.
    """

    source: Any
    index: Index | None = None


Edit = Zero | Replace | Patch


@dataclass(frozen=True)
class Edited:
    """The output of one text without and with the edits.

    before, after: probabilities, or the vector where the head only pools.
    predictions: (token or label, share before, share after), of the first text's last token or of the text.
    """

    edits: Mapping[str, Edit]
    before: Float[Tensor, "batch *axes"]
    after: Float[Tensor, "batch *axes"]
    predictions: tuple[Share, ...]
    largest_change: float

    def to_json(self) -> dict[str, Any]:
        return {
            "edits": {
                site: {"kind": type(edit).__name__, "index": _written(edit)} for site, edit in self.edits.items()
            },
            "predictions": [
                {"token": token, "before": before, "after": after} for token, before, after in self.predictions
            ],
            "largest_change": self.largest_change,
        }


@torch.no_grad()
def edit(
    model: Model, text: Any, edits: Mapping[str, Edit], target: Any = None, *, before: Tensor | None = None
) -> Edited:
    """Run a text twice on the same kernel: as the model is, and with the values at some sites changed on their way.

    Scores and weights can be edited too: both runs are on the reference kernel then.
    before: what the first run gives, as an earlier `Edited` has it: it is not run again then.
    """
    _refuse_unseen(model.network)
    network = model.network
    if any(site.endswith(MATRICES) for site in edits):
        network = network.with_kernel("reference")
    known = sites(network)
    for site in edits:
        if site not in known:
            raise InputError(_no_such_site(site, list(known)))
    texts = read_texts(model, text, target)
    values = {site: _new_value(model, network, site, one, target) for site, one in edits.items()}
    before = _output(model, network, texts) if before is None else before
    with _edited(network, edits, values):
        after = _output(model, network, texts)
    largest = float((before - after).abs().max())
    return Edited(dict(edits), before, after, side_by_side(model, before, after, texts[-1]), largest)


@contextmanager
def _edited(network: Transformer, edits: Mapping[str, Edit], values: Mapping[str, Any]) -> Iterator[None]:
    def change(site: str, one: Edit) -> Any:
        return lambda module, inputs, value: _changed(site, one, value, values[site])

    with ExitStack() as hooks:
        for site, one in edits.items():
            hooks.callback(network.get_submodule(site).register_forward_hook(change(site, one)).remove)
        yield


def _new_value(model: Model, network: Transformer, site: str, one: Edit, target: Any) -> Tensor:
    """What will stand at a site; for a patch, the whole value of the other run."""
    like = network.tokens.weight
    match one:
        case Zero():
            return torch.zeros((), dtype=like.dtype, device=like.device)
        case Replace(value=value):
            return torch.as_tensor(value, dtype=like.dtype, device=like.device)
        case Patch(source=Trace() as run):
            return run[site].full.to(like)
        case Patch(source=source):
            with record(network, {site}) as recorded:
                _output(model, network, read_texts(model, source, target))
            return recorded[site]


def _changed(site: str, one: Edit, value: Tensor, new: Tensor) -> Tensor:
    index: Index = () if one.index is None else one.index
    changed = value.clone()
    place = _at(changed, index, site)
    if isinstance(one, Patch):
        new = _at(new, index, site)
    if new.dim() and new.shape != place.shape:
        raise InputError(
            f"{site} has the shape {list(place.shape)} there, but the new value has {list(new.shape)}: give the same "
            "shape, one number, or an index"
        )
    changed[index] = new
    return changed


def _at(value: Tensor, index: Index, site: str) -> Tensor:
    try:
        return value[index]
    except IndexError as error:
        raise InputError(f"{site} has the shape {list(value.shape)}, where {index} is no index: {error}") from None


def _output(model: Model, network: Transformer, texts: list[Text]) -> Tensor:
    names = ("padding", "target_padding")
    paddings = {name: text.padding for name, text in zip(names, texts, strict=False) if text.padding is not None}
    run = network if isinstance(model.config.head, Pool) else network.predict
    found: Tensor = run(*(text.ids for text in texts), **paddings)
    return found


def _written(one: Edit) -> list[int | list[int | None]] | None:
    """Slices as [start, stop, step]."""
    if one.index is None:
        return None
    return [[i.start, i.stop, i.step] if isinstance(i, slice) else i for i in one.index]


# --- the logit lens ---


@dataclass(frozen=True)
class LensRow:
    """The likeliest next tokens, read from one place of the residual stream: for each token, with their shares."""

    site: str
    top: tuple[tuple[tuple[str, float], ...], ...]


@dataclass(frozen=True)
class LogitLens:
    """A row per block, the embedding first; the last row is what the model says."""

    tokens: tuple[str, ...]
    rows: tuple[LensRow, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": list(self.tokens),
            "rows": [
                {
                    "site": row.site,
                    "top": [[{"token": token, "probability": share} for token, share in one] for one in row.top],
                }
                for row in self.rows
            ],
        }


@torch.no_grad()
def logit_lens(model: Model, text: Any, target: Any = None, *, top: int = 5) -> LogitLens:
    """Read the last stack's residual stream through the final norm and the unembedding, after each block.

    For the first text. The stream starts at embedding.sum, or at embedding.norm where there is one.
    """
    _refuse_unseen(model.network)
    if not isinstance(model.config.head, Unembed):
        raise InputError(f"the logit lens needs an unembedding, but this model has the head {model.config.head.kind!r}")
    if top < 1:
        raise InputError(f"at least one token is shown per place, not {top}")
    network, texts = model.network, read_texts(model, text, target)
    name, depth = (
        ("decoder", model.config.decoder_blocks) if network.decoder else ("encoder", model.config.encoder_blocks)
    )
    start = "embedding.norm" if model.config.embedding_norm else "embedding.sum"
    places = [start, *(f"{name}.{block}.residual.out" for block in range(depth))]
    with record(network, set(places)) as recorded:
        _output(model, network, texts)
    rows = tuple(LensRow(place, _top(model, recorded[place][:1], top)) for place in places)
    return LogitLens(_words(model, texts[-1]), rows)


def _top(model: Model, stream: Float[Tensor, "1 token width"], top: int) -> tuple[tuple[tuple[str, float], ...], ...]:
    network, tokenizer = model.network, model.tokenizer
    scores: Tensor = network.head(network.final(stream), network.tokens.weight, None)
    best = scores[0].softmax(-1).topk(min(top, scores.shape[-1]))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return tuple(
        tuple(
            (str(i) if tokenizer is None else tokenizer.token(i), share) for i, share in zip(ids, shares, strict=True)
        )
        for ids, shares in pairs
    )
