"""The worked example with the parts that the note leaves out: real norms, and a mask."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pellucid.errors import InputError
from pellucid.model.config import LayerNorm, ModelConfig
from pellucid.model.transformer import Transformer
from pellucid.pretrained.bundled import bundled_folder
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load

NormChoice = Literal["identity", "pre", "post"]
MaskChoice = Literal["none", "causal"]


def worked_example(norm: NormChoice = "identity", mask: MaskChoice = "none") -> Model:
    """The bundled `worked-example`, in float64: as the note has it, or changed in its norms, its mask or both.

    norm: "post" normalises after each sum, "pre" before each part and once at the end; unit gain, zero shift.
    """
    _check("norm", norm, get_args(NormChoice))
    _check("mask", mask, get_args(MaskChoice))
    plain = load(bundled_folder("worked-example"))
    changes: dict[str, Any] = {"causal": mask == "causal"}
    if norm != "identity":
        changes |= {"norm": LayerNorm(epsilon=1e-5), "placement": norm}
    config = ModelConfig(**{**dict(plain.config), **changes})
    network = Transformer(config).to(plain.dtype).eval()
    # A new LayerNorm has unit gain and zero shift; everything else is the note's.
    network.load_state_dict(network.state_dict() | plain.network.state_dict())
    return Model(config, network, plain.tokenizer, plain.labels, plain.origin)


def _check(option: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise InputError(f"{option} {given!r} is not one of {', '.join(known)}")
