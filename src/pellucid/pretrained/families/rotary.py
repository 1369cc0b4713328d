"""The words for rotary positions that Llama and its relatives share, of transformers 4 and of transformers 5."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pellucid.errors import CheckpointError
from pellucid.model.config import (
    DynamicNtkScaling,
    LinearScaling,
    Llama3Scaling,
    Rotary,
    Scaling,
    YarnScaling,
)
from pellucid.pretrained.family import ConfigReader

ORIGINAL = "original_max_position_embeddings"


def read_rotary(config: ConfigReader, context: int | None) -> Rotary:
    """From `rope_theta` and `rope_scaling`, or from `rope_parameters`, whose own `rope_theta` wins over the other."""
    base = config.take("rope_theta", float, 10_000.0)
    original = config.optional(ORIGINAL, int)
    old, new = config.optional("rope_scaling", dict), config.optional("rope_parameters", dict)
    inner = dict(old or new or {})
    inner.setdefault("rope_type", inner.pop("type", None))
    rope = ConfigReader(inner)
    for reader in (config, rope):
        reader.expect("partial_rotary_factor", None, 1)  # transformers ignores it in these families, others do not
    rotary = Rotary(
        base=rope.take("rope_theta", float, base),
        scaling=rope.choose("rope_type", _SCALINGS, "default")(rope, context, original),
        precision="float32",
    )
    rope.finish()
    return rotary


def write_rotary(rotary: Rotary) -> dict[str, Any]:
    """In the older words, which every version reads."""
    return {"rope_theta": rotary.base, "rope_scaling": _write_scaling(rotary.scaling)}


def _write_scaling(scaling: Scaling | None) -> dict[str, Any] | None:
    match scaling:
        case None:
            return None
        case LinearScaling(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case DynamicNtkScaling(factor=factor):
            return {"rope_type": "dynamic", "factor": factor}
        case YarnScaling():
            words = {"rope_type": "yarn", "factor": scaling.factor, ORIGINAL: scaling.original_context}
            words |= {"beta_fast": scaling.fast, "beta_slow": scaling.slow}
            words |= {} if scaling.attention_factor is None else {"attention_factor": scaling.attention_factor}
            return words if scaling.whole_pairs else words | {"truncate": False}
        case Llama3Scaling():
            words = {"rope_type": "llama3", "factor": scaling.factor, ORIGINAL: scaling.original_context}
            return words | {"low_freq_factor": scaling.low, "high_freq_factor": scaling.high}
        case _:
            raise CheckpointError(f"{scaling.kind} scaling of rotary positions has no word in this family")


# --- each reads its part of the dictionary, given max_position_embeddings and the original one from outside it ---


def _default(rope: ConfigReader, context: int | None, original: int | None) -> None:
    rope.expect("factor", None, 1)
    rope.ignore(ORIGINAL)


def _linear(rope: ConfigReader, context: int | None, original: int | None) -> LinearScaling:
    rope.ignore(ORIGINAL)
    return LinearScaling(factor=rope.take("factor", float))


def _dynamic(rope: ConfigReader, context: int | None, original: int | None) -> DynamicNtkScaling:
    """transformers grows from max_position_embeddings on, others from the original: a file must say one length."""
    inner = rope.optional(ORIGINAL, int)
    if context is None or {inner, original} - {None, context}:
        raise CheckpointError(
            f"config.json says max_position_embeddings = {context} and {ORIGINAL} = {original or inner}, but dynamic "
            "scaling starts at one length: give max_position_embeddings, and leave the other out"
        )
    return DynamicNtkScaling(factor=rope.take("factor", float), original_context=context)


def _yarn(rope: ConfigReader, context: int | None, original: int | None) -> YarnScaling:
    start = _original(rope, context, original)
    factor = rope.optional("factor", float) or (context or start) / start
    rope.ignore("finetuned")
    for key in ("extrapolation_factor", "attn_factor", "apply_yarn_scaling"):
        rope.expect(key, None, 1)
    return YarnScaling(
        factor=factor,
        original_context=start,
        fast=rope.optional("beta_fast", float) or 32.0,
        slow=rope.optional("beta_slow", float) or 1.0,
        attention_factor=_sharpening(rope, factor),
        whole_pairs=rope.take("truncate", bool, True),
    )


def _sharpening(rope: ConfigReader, factor: float) -> float | None:
    """Yarn's attention factor, given or as the quotient that DeepSeek's two words stand for."""
    given = rope.optional("attention_factor", float)
    above, below = rope.optional("mscale", float), rope.optional("mscale_all_dim", float)
    if given is not None or not above or not below:
        return given
    growth = math.log(max(factor, 1.0))
    return (0.1 * above * growth + 1.0) / (0.1 * below * growth + 1.0)


def _llama3(rope: ConfigReader, context: int | None, original: int | None) -> Llama3Scaling:
    return Llama3Scaling(
        factor=rope.take("factor", float),
        original_context=_original(rope, context, original),
        low=rope.take("low_freq_factor", float),
        high=rope.take("high_freq_factor", float),
    )


def _original(rope: ConfigReader, context: int | None, outer: int | None) -> int:
    """The context before scaling: as transformers has it, from outside the dictionary, from inside, or the context."""
    inner = rope.optional(ORIGINAL, int)
    found = outer or inner or context
    if found is None:
        raise CheckpointError(
            f"config.json scales its positions, but has neither {ORIGINAL} nor max_position_embeddings"
        )
    return found


_SCALINGS: dict[str, Callable[[ConfigReader, int | None, int | None], Scaling | None]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
}
