"""Traces for the tests of their renderings: of a tiny model, and made up."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from pellucid.lens.recipes import Recipe
from pellucid.lens.trace import Step, Trace, trace
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model

NASTY = ("<script>alert(1)</script>", ' "quoted" & more', "line\nend\x07", "", "\u202eback", "日本")


def tiny(name: str = "tiny-gpt2", length: int = 6, dtype: torch.dtype = torch.float32) -> Trace:
    """A run with weights large enough that every part counts, and with tokens that a page must not believe."""
    config = preset(name)
    network = Transformer(config, seed=0).to(dtype).eval()
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw).to(dtype), alpha=0.1)
    ids = [[place % 7 for place in range(length)]]
    target = (ids,) if config.is_encoder_decoder else ()
    found = trace(Model(config, network), ids, *target)
    words = tuple(NASTY[place % len(NASTY)] for place in range(length))
    return replace(found, model='a "model" <here>', tokens=words, prediction=(("<i>", 0.75), ("\n", 0.25)))


def made_up(site: str, axes: tuple[str, ...], value: Tensor, again: Tensor | None = None) -> Step:
    """A step whose recheck gives `again`, or the value itself."""
    recipe = Recipe("y = x", (), lambda _: (value if again is None else again).double())
    return Step(site, recipe.formula, (), axes, value, recipe, {site: value}, value)


def attention_maps(weights: Tensor, blocks: int) -> Trace:
    """A trace of weights alone: the same number of heads and tokens in every block."""
    axes = ("batch", "heads", "query", "key")
    steps = tuple(made_up(f"decoder.{block}.attention.weights", axes, weights) for block in range(blocks))
    return Trace("made up", tuple(f"t{place}" for place in range(weights.shape[-1])), steps, ())
