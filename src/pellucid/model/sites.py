"""Sites: the named places where a value can be seen. A site is an identity module, and its path is its name."""

from __future__ import annotations

from torch import Tensor, nn

from pellucid import axes
from pellucid.errors import InputError

_TOKENS = (axes.BATCH, axes.TOKEN, axes.WIDTH)
_HIDDEN = (axes.BATCH, axes.TOKEN, axes.HIDDEN)
_MATRIX = (axes.BATCH, axes.HEADS, axes.QUERY, axes.KEY)

# The axes of each site, by the last two words of its name. Logits depend on the head (see `axes_of`).
_AXES = {
    "embedding.tokens": _TOKENS,
    "embedding.positions": _TOKENS,
    "embedding.segments": _TOKENS,
    "embedding.sum": _TOKENS,
    "embedding.norm": _TOKENS,
    "attention.input": _TOKENS,
    "attention.query": (axes.BATCH, axes.HEADS, axes.QUERY, axes.HEAD_WIDTH),
    "attention.key": (axes.BATCH, axes.KEY_VALUE_HEADS, axes.KEY, axes.HEAD_WIDTH),
    "attention.value": (axes.BATCH, axes.KEY_VALUE_HEADS, axes.KEY, axes.VALUE_WIDTH),
    "attention.scores": _MATRIX,
    "attention.weights": _MATRIX,
    "attention.heads": (axes.BATCH, axes.HEADS, axes.QUERY, axes.VALUE_WIDTH),
    "attention.output": _TOKENS,
    "residual.mid": _TOKENS,
    "residual.cross": _TOKENS,
    "residual.out": _TOKENS,
    "feed_forward.input": _TOKENS,
    "feed_forward.hidden": _HIDDEN,
    "feed_forward.active": _HIDDEN,
    "feed_forward.output": _TOKENS,
    "final.norm": _TOKENS,
}


class Site(nn.Module):
    """Passes its value on unchanged; a lens hooks it. Compiled away, so a compiled module has nothing to see."""

    def forward(self, value: Tensor) -> Tensor:
        return value


def sites(network: nn.Module) -> dict[str, Site]:
    """All sites of a network, by name, in the order in which they were built."""
    return {name: module for name, module in network.named_modules() if isinstance(module, Site)}


def axes_of(name: str) -> tuple[str, ...]:
    """The axes of a site's value. For logits and probabilities, those of the unembedding."""
    if name in ("logits", "probabilities"):
        return (axes.BATCH, axes.TOKEN, axes.VOCAB)
    tail = ".".join(name.replace("cross.", "attention.").split(".")[-2:])
    if tail not in _AXES:
        raise InputError(f"no site is called {name!r}; sites end in one of: {', '.join(_AXES)}")
    return _AXES[tail]
