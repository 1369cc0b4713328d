"""The same network with random weights: what every spectral statement is compared with."""

from __future__ import annotations

from hashlib import blake2b

from pellucid.model.transformer import Transformer


def random_twin(network: Transformer, seed: int) -> Transformer:
    """The same config, initialised from a seed, where the network's weights are."""
    return Transformer(network.config, seed=seed).to(network.tokens.weight).eval()


def derived_seed(*parts: int | str) -> int:
    """A seed of its own for every use. Weights that were drawn from a seed would be their own baseline without it."""
    return int.from_bytes(blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest(), "big")
