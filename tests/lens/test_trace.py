"""Every step of a trace agrees with the same step in float64: on every part of the library, alone and together."""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.lens.trace import trace
from pellucid.model import config as c
from pellucid.model.presets import PRESETS
from pellucid.model.sites import sites
from pellucid.pretrained.facade import Model
from tests.lens.models import DTYPES, build, check, ids, of_config
from tests.properties import combinations
from tests.properties.combinations import ALLOWED, Combination, Text

FUSED = ("*embedding.*", "*.input", "*.query", "*.key", "*.value", "*.heads", "*.output", "*.residual.*", "logits")

# One norm and placement for each attention and position, all of them for softmax.
CHOSEN = [
    each
    for each in ALLOWED
    if (each.norm, each.placement) == ("layer_norm", "pre") or (each.attention, each.position) == ("softmax", "rotary")
]

PARTS: dict[str, dict[str, Any]] = {
    "grouped heads": {"key_value_heads": 2},
    "one key for all heads": {"key_value_heads": 1},
    "value width": {"value_width": 3, "head_width": 6},
    "window": {"window": 2},
    "a window per block": {"window": (3, None)},
    "query and key norm": {"query_key_norm": True, "norm": c.RMSNorm()},
    "query and key layer norm": {"query_key_norm": True},
    "temperature": {"attention": c.Softmax(temperature=0.5)},
    "no biases": {"biases": c.Biases.none(), "norm": c.LayerNorm(bias=False)},
    "gated": {"feed_forward": c.Gated(hidden=10, activation="gelu_tanh")},
    "silu": {"feed_forward": c.Plain(hidden=10, activation="silu")},
    "scaled and normed embedding": {"scale_embedding": True, "embedding_norm": True},
    "segments": {"segments": 2},
    "no final norm": {"final_norm": False},
    "unmasked decoder": {"causal": False},
    "skipped learned positions": {"position": c.Learned(skip=2)},
    "half sinusoids, odd width": {"position": c.Sinusoidal(layout="half"), "width": 15, "heads": 3},
    "sinusoids in float32": {"position": c.Sinusoidal(precision="float32")},
    "interleaved part rotary": {"position": c.Rotary(layout="interleaved", fraction=0.5)},
    "rotary in float32": {"position": c.Rotary(precision="float32")},
    "linear scaling": {"position": c.Rotary(scaling=c.LinearScaling(factor=2))},
    "ntk": {"position": c.Rotary(scaling=c.NtkScaling(factor=2))},
    "dynamic ntk": {"position": c.Rotary(scaling=c.DynamicNtkScaling(factor=2, original_context=4))},
    "yarn": {"position": c.Rotary(scaling=c.YarnScaling(factor=4, original_context=8))},
    "llama 3": {"position": c.Rotary(scaling=c.Llama3Scaling(factor=4, original_context=8))},
    "transformed unembedding": {"head": c.Unembed(tied=False, bias=True, scale=0.5, transform="gelu")},
    "tag": {"head": c.Tag(labels=3)},
    "classify": {"head": c.Classify(labels=3)},
    "classify the mean": {"head": c.Classify(labels=3, pooling="mean", hidden=None, bias=False)},
    "pool the largest": {"head": c.Pool(pooling="max", project=True)},
    "pool the last": {"head": c.Pool(pooling="last", normalize=True)},
}
FAMILIES = ("bert", "bloom", "gpt2", "llama", "marian", "t5")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("tiny-")])
def test_every_tiny_preset(name: str, dtype: torch.dtype) -> None:
    model = of_config(PRESETS[name], dtype)
    whole = trace(model, *ids(model, 2, 9))
    check(whole, dtype)
    seen = {step.site for step in whole.steps}
    missing = set(sites(model.network.with_kernel("reference"))) - seen
    assert missing <= {"probabilities"}
    assert missing == ({"probabilities"} if isinstance(model.config.head, c.Pool) else set())


@pytest.mark.parametrize("combination", CHOSEN, ids=str)
def test_every_attention_and_position(combination: Combination) -> None:
    draw = combinations.random(combination, 3)
    text = Text.draw(combination, draw, 2, 7)
    arguments = [text.ids] if text.source is None else [text.source, text.ids]
    for dtype in (torch.float64, torch.float32):
        # A copy: built networks are shared with the tests of properties, which want them in float64.
        model = Model(combination.config, deepcopy(combinations.build(combination)).to(dtype))
        if dtype == torch.float64:
            check(trace(model, *arguments, sites=("*.heads",)), dtype)
        check(trace(model, *arguments), dtype)


# Linformer cannot be causal.
MASKED = [
    (attention, stacks)
    for attention in ("softmax", "normalized_relu", "linear_elu", "linear_random", "linformer_learned")
    for stacks in ("encoder", "decoder", "both")
    if stacks == "encoder" or not attention.startswith("linformer")
]


@pytest.mark.parametrize(("attention", "stacks"), MASKED)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_on_either_side(attention: str, side: str, stacks: str) -> None:
    position = c.Learned() if attention.startswith("linformer") else c.Rotary()
    model = build(stacks, attention=combinations.ATTENTIONS[attention], position=position)
    texts = ids(model, 3, 6)
    paddings = []
    for text in texts:
        real = torch.ones_like(text, dtype=torch.bool)
        real[0, slice(0, 3) if side == "left" else slice(-3, None)] = False
        paddings.append(real)
    options = dict(zip(("padding", "target_padding"), paddings, strict=False))
    padded = trace(model, *texts, **options)
    check(padded, torch.float64)
    check(trace(model, *texts, **options, sites=FUSED), torch.float64)
    scores = model.network.with_kernel("reference")(*texts, **options)
    assert torch.equal(padded["logits"].value, scores)


@pytest.mark.parametrize(
    ("stacks", "dtype"), [("decoder", torch.float32), ("decoder", torch.float64), ("encoder", torch.float64)]
)
@pytest.mark.parametrize("part", PARTS)
def test_every_part(part: str, stacks: str, dtype: torch.dtype) -> None:
    model = build(stacks, dtype=dtype, **PARTS[part])
    text = ids(model, 2, 8)
    check(trace(model, *text), dtype)
    check(trace(model, *text, sites=("*.heads",)), dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_source_vocabulary_and_a_window_in_an_encoder_decoder(dtype: torch.dtype) -> None:
    model = build("both", dtype=dtype, source_vocab=7, window=2, position=c.ALiBi())
    check(trace(model, *ids(model, 2, 6)), dtype)


@pytest.mark.parametrize("pooling", ["first", "last", "mean", "max"])
def test_pooling_leaves_padding_out(pooling: c.Pooling) -> None:
    model = build("encoder", head=c.Classify(labels=2, pooling=pooling))
    text = ids(model, 2, 5)[0]
    real = torch.tensor([[True] * 5, [True, True, False, False, False]])
    check(trace(model, text, padding=real), torch.float64)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_as_it_is_loaded(family: str, dtype: torch.dtype, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    case = import_module(f"tests.parity.table_{family}").CASES[0]
    model = pellucid.load(case.save(case.build(torch.float64), tmp_path), dtype=dtype)
    inputs = case.inputs(model.config.vocab, case.paddings[-1])
    texts = [inputs[name] for name in ("ids", "target") if name in inputs]
    check(trace(model, *texts, padding=inputs["padding"]), dtype)
    check(trace(model, *texts), dtype)
