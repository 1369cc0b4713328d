"""The ids of what is measured: of a text, or of both of a pair."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxtyping import Int
from torch import Tensor

from pellucid.errors import InputError
from pellucid.pretrained.facade import Model

Ids = Int[Tensor, "1 _"]  # a source and its target differ in length
Part = str | Sequence[int] | Tensor
Text = Part | tuple[Part, Part]


def read(model: Model, text: Text) -> tuple[Ids, ...]:
    """From words or ids; for an encoder-decoder, pairs (source, target). A target of words gets its start token."""
    both = model.config.is_encoder_decoder
    if both != isinstance(text, tuple):
        raise InputError(
            "an encoder-decoder reads pairs (source, target): give both"
            if both
            else "this model reads one text, not a pair: leave the target out"
        )
    source, *targets = text if isinstance(text, tuple) else (text,)
    return _ids(model, source, model.encode), *(_ids(model, target, model.encode_target) for target in targets)


def _ids(model: Model, part: Part, encode: Callable[[str], list[int]]) -> Ids:
    found = model.ids(part if isinstance(part, Tensor) else encode(part) if isinstance(part, str) else list(part))
    if found.shape[0] != 1:
        raise InputError(f"one text is measured at a time, but {found.shape[0]} came: call once for each")
    return found
