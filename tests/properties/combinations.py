"""Every combination of attention, position, norm, placement and architecture: which are allowed, which are refused.

The properties that a combination must have, and why one may not apply to it, stand here too: the tests are
parametrised by this table, and the summary at the end of a run (tests/conftest.py) is printed from it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import product

import pytest
import torch
from hypothesis import Phase, settings
from torch import Tensor

from pellucid.errors import ConfigError
from pellucid.model import config as c
from pellucid.model.transformer import Transformer

VOCAB, CONTEXT = 11, 20

ATTENTIONS: dict[str, c.Attention] = {
    "softmax": c.Softmax(),
    "normalized_relu": c.NormalizedRelu(),
    "linformer_learned": c.Linformer(rank=3),
    "linformer_random": c.Linformer(rank=3, learned=False),
    # A chunk of 3, so that texts of a few tokens cross its edges.
    "linear_elu": c.Linear(chunk=3),
    "linear_relu": c.Linear(features=c.Relu(), chunk=3),
    # A small scale keeps a query's features within a few orders of magnitude of each other: rotary positions mix them
    # in pairs, and beyond six orders the products of the large ones no longer cancel to the tolerance below.
    "linear_random": c.Linear(features=c.PositiveRandom(count=6, scale=0.02), chunk=3),
}
POSITIONS: dict[str, c.Position] = {
    "none": c.NoPositions(),
    "sinusoidal": c.Sinusoidal(),
    "learned": c.Learned(),
    # Distances beyond 3 and 6, so that texts of a few tokens reach the shared ends of the tables.
    "relative": c.Relative(max_distance=3),
    "t5_buckets": c.T5Buckets(buckets=8, max_distance=6),
    "alibi": c.ALiBi(),
    "rotary": c.Rotary(),
}
NORMS: dict[str, c.Norm] = {"layer_norm": c.LayerNorm(), "rms_norm": c.RMSNorm(), "identity": c.Identity()}
PLACEMENTS = ("pre", "post")
ARCHITECTURES = {"encoder": (2, 0), "decoder": (0, 2), "both": (2, 2)}


@dataclass(frozen=True)
class Combination:
    attention: str
    position: str
    norm: str
    placement: str
    architecture: str

    def __str__(self) -> str:
        return "-".join(astuple(self))

    @property
    def config(self) -> c.ModelConfig:
        """Tiny. Half of the combinations of each attention and position share keys and values among heads."""
        encoder_blocks, decoder_blocks = ARCHITECTURES[self.architecture]
        shares = sum(names.index(name) for names, name in zip(_AXES[2:], astuple(self)[2:], strict=True)) % 2
        return c.ModelConfig(
            vocab=VOCAB,
            width=16 if shares else 8,
            heads=4 if shares else 2,
            key_value_heads=2,
            encoder_blocks=encoder_blocks,
            decoder_blocks=decoder_blocks,
            context=CONTEXT,
            feed_forward=c.Gated(hidden=12) if shares else c.Plain(hidden=12, activation="gelu"),
            attention=ATTENTIONS[self.attention],
            position=POSITIONS[self.position],
            norm=NORMS[self.norm],
            placement=self.placement,
        )


_AXES = [list(axis) for axis in (ATTENTIONS, POSITIONS, NORMS, PLACEMENTS, ARCHITECTURES)]
ALL = [Combination(*names) for names in product(*_AXES)]


def refusal(combination: Combination) -> str | None:
    """What the config says against a combination; None where it is allowed."""
    try:
        _ = combination.config
    except ConfigError as error:
        return str(error)
    return None


REFUSED = {combination: message for combination in ALL if (message := refusal(combination)) is not None}
ALLOWED = [combination for combination in ALL if combination not in REFUSED]


# --- the properties, and why one does not apply ---


def _future(of: Combination) -> str | None:
    return "an encoder sees the future" if of.architecture == "encoder" else None


def _always(of: Combination) -> str | None:
    return None


def _permutation(of: Combination) -> str | None:
    if of.position != "none":
        return "positions tell tokens apart"
    if of.architecture != "encoder":
        return "a causal mask tells tokens apart"
    return "Linformer's projection runs along the sequence" if of.attention.startswith("linformer") else None


def _shift(of: Combination) -> str | None:
    return "no positions to shift" if of.position == "none" else None


def _cache(of: Combination) -> str | None:
    return "an encoder has no cache" if of.architecture == "encoder" else None


PROPERTIES: dict[str, Callable[[Combination], str | None]] = {
    "future": _future,
    "padding": _always,
    "permutation": _permutation,
    "shift": _shift,
    "cache": _cache,
    "batch": _always,
    "kernels": _always,
}


def having(property_name: str) -> list[Combination]:
    """The allowed combinations that the property applies to."""
    return [combination for combination in ALLOWED if PROPERTIES[property_name](combination) is None]


def for_each_having(property_name: str) -> pytest.MarkDecorator:
    """The summary reads the property and the combination from a test's id."""
    cases = [pytest.param(combination, id=f"{property_name}:{combination}") for combination in having(property_name)]
    return pytest.mark.parametrize("combination", cases)


# --- networks and texts ---

# The same few examples in every run; the combination's name is part of the seed of what they are filled with.
# Nothing is shrunk: the texts are tiny already.
few = settings(max_examples=2, deadline=None, derandomize=True, database=None, phases=(Phase.explicit, Phase.generate))

# Sums of fewer than 100 products of size up to about 10, in float64 (eps 2e-16), through four blocks.
EXACT = {"rtol": 1e-10, "atol": 1e-10}


@lru_cache(maxsize=4)
def build(combination: Combination, kernel: str = "fused") -> Transformer:
    """In float64, with parameters far from their small initial values: no part may hide behind being near zero.

    Without norms the numbers grow from block to block, and their rounding errors with them: less is added there.
    """
    network = Transformer(combination.config, kernel=kernel, seed=0).double().eval()
    draw, spread = random(combination, 0), 0.1 if combination.norm == "identity" else 0.3
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64), alpha=spread)
    return network


def random(combination: Combination, seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(f"{combination} {seed}".encode()))


def draw_ids(draw: torch.Generator, *shape: int) -> Tensor:
    return torch.randint(VOCAB, shape, generator=draw)


@dataclass(frozen=True)
class Text:
    """What a network is called with: a text, its padding, and the source that an encoder-decoder reads first."""

    ids: Tensor
    source: Tensor | None = None
    padding: Tensor | None = None
    source_padding: Tensor | None = None

    @staticmethod
    def draw(combination: Combination, draw: torch.Generator, batch: int, length: int) -> Text:
        source = draw_ids(draw, batch, length + 1) if combination.architecture == "both" else None
        return Text(draw_ids(draw, batch, length), source)

    def text(self, index: int) -> Text:
        """One text of the batch, alone."""
        everything = (self.ids, self.source, self.padding, self.source_padding)
        return Text(*(None if x is None else x[index : index + 1] for x in everything))


def scores(network: Transformer, text: Text) -> Tensor:
    if text.source is None:
        return network(text.ids, padding=text.padding)
    return network(text.source, text.ids, padding=text.source_padding, target_padding=text.padding)
