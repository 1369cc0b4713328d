"""The mechanisms: what happens between projected queries, keys and values and the output of the heads.

A mechanism reads (`read`) from what it keeps of keys and values (`keep`); in self-attention (`attend`) a cache may hold
the part that came before. Each runs on a kernel that is chosen by name when the model is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from pellucid.errors import KernelError
from pellucid.kernels import fused, linear, reference, relu
from pellucid.kernels.linear import Phi, State
from pellucid.kernels.linformer import project
from pellucid.kernels.mask import Mask
from pellucid.kernels.reference import Heads, Key, Matrix, Query, Value, share
from pellucid.kernels.view import View
from pellucid.model import config as c
from pellucid.model.cache import KeysAndValues, OwnCache, Running
from pellucid.model.positions import Places, Rotation
from pellucid.model.sites import Site

KernelName = Literal["fused", "reference", "flex", "grouped"]
Kernel = Callable[..., Heads]
Kept = tuple[Tensor, Tensor] | State


@dataclass(frozen=True)
class Sight:
    """What the queries of a call see: the view, the places of the keys, and the rotation of both, if any.

    offset: how many tokens came before; a tensor in a step.
    """

    view: View
    key_places: Places
    rotation: Rotation | None = None
    offset: int | Int[Tensor, ""] = 0


@dataclass(frozen=True)
class Shown:
    """The sites that the reference kernel lets its matrices pass through."""

    scores: Site = field(default_factory=Site)
    weights: Site = field(default_factory=Site)


class Mechanism(nn.Module, ABC):
    @abstractmethod
    def keep(self, key: Key, value: Value, sight: Sight) -> Kept:
        """What any number of queries needs of these keys and values."""

    @abstractmethod
    def read(self, query: Query, kept: Kept, sight: Sight) -> Heads:
        """Let every query read from what was kept."""

    @abstractmethod
    def attend(self, query: Query, key: Key, value: Value, sight: Sight, cache: OwnCache | None) -> Heads:
        """Self-attention, after the keys and values in the cache."""


class Scored(Mechanism):
    """Softmax and normalised ReLU: every query scores every key."""

    def __init__(self, kernel: Kernel, scale: float) -> None:
        super().__init__()
        self.kernel, self.scale = kernel, scale

    def keep(self, key: Key, value: Value, sight: Sight) -> Kept:
        return key, value

    def read(self, query: Query, kept: Kept, sight: Sight) -> Heads:
        assert isinstance(kept, tuple)
        return self.kernel(query, *kept, scale=self.scale, view=sight.view)

    def attend(self, query: Query, key: Key, value: Value, sight: Sight, cache: OwnCache | None) -> Heads:
        if isinstance(cache, KeysAndValues):
            offset = sight.offset
            written = cache.extend(key, value, offset) if isinstance(offset, int) else cache.write(key, value, offset)
            key, value = written
        return self.read(query, (key, value), sight)


class LinformerMechanism(Mechanism):
    """Softmax over mixtures of the keys. A slot is mixed by its place in its text: padding on the left is harmless."""

    key_projection: Tensor
    value_projection: Tensor

    def __init__(self, part: c.Linformer, context: int, kernel: Kernel, scale: float) -> None:
        super().__init__()
        self.kernel, self.scale = kernel, scale
        for name in ("key_projection", "value_projection"):
            matrix = torch.empty(part.rank, context)
            if part.learned:
                self.register_parameter(name, nn.Parameter(matrix))
            else:
                self.register_buffer(name, matrix)

    def keep(self, key: Key, value: Value, sight: Sight) -> Kept:
        padding = sight.view.mask.padding
        key_mix = self.key_projection[:, sight.key_places].movedim(0, 1)
        value_mix = self.value_projection[:, sight.key_places].movedim(0, 1)
        return project(key_mix, key, padding), project(value_mix, value, padding)

    def read(self, query: Query, kept: Kept, sight: Sight) -> Heads:
        assert isinstance(kept, tuple)
        view = View(query.shape[-2], kept[0].shape[-2], query.device, Mask())
        return self.kernel(query, *kept, scale=self.scale, view=view)

    def attend(self, query: Query, key: Key, value: Value, sight: Sight, cache: OwnCache | None) -> Heads:
        _refuse(sight.view.mask, causal=False, mechanism="Linformer")
        return self.read(query, self.keep(key, value, sight), sight)


class LinearMechanism(Mechanism):
    """Feature maps in place of scores. Rotary positions turn the features, so that their products see distances."""

    def __init__(self, part: c.Linear, config: c.ModelConfig) -> None:
        super().__init__()
        self.heads, self.chunk = config.heads, part.chunk
        self.map = build_feature_map(part.features, config)

    def keep(self, key: Key, value: Value, sight: Sight) -> Kept:
        return linear.summarize(phi_of_key(self.map, key, self.heads, sight), share(value, self.heads))

    def read(self, query: Query, kept: Kept, sight: Sight) -> Heads:
        assert isinstance(kept, State)
        return linear.read(phi_of_query(self.map, query, sight), kept, query.dtype)

    def attend(self, query: Query, key: Key, value: Value, sight: Sight, cache: OwnCache | None) -> Heads:
        mask = sight.view.mask
        _refuse(mask, causal=True, mechanism="linear attention")
        if not mask.is_causal:
            return self.read(query, self.keep(key, value, sight), sight)
        phi_query, phi_key = phi_of_query(self.map, query, sight), phi_of_key(self.map, key, self.heads, sight)
        if isinstance(cache, Running) and sight.view.ring is not None:
            cache.write(linear.joined(cache.state, linear.summarize(phi_key, share(value, self.heads))))
            return linear.read(phi_query, cache.state, value.dtype)
        past = cache.state if isinstance(cache, Running) else None
        heads, state = linear.causal(phi_query, phi_key, share(value, self.heads), past, self.chunk)
        if isinstance(cache, Running):
            cache.state = state
        return heads


class LinearTwin(Mechanism):
    """The twin of linear attention that forms its weights, so that they can be seen."""

    def __init__(self, part: c.Linear, config: c.ModelConfig, weights: Site) -> None:
        super().__init__()
        self.heads, self.weights = config.heads, weights
        self.map = build_feature_map(part.features, config)

    def keep(self, key: Key, value: Value, sight: Sight) -> Kept:
        return key, value

    def read(self, query: Query, kept: Kept, sight: Sight) -> Heads:
        assert isinstance(kept, tuple)
        key, value = kept
        phi_query, phi_key = phi_of_query(self.map, query, sight), phi_of_key(self.map, key, self.heads, sight)
        weights = linear.reference_weights(phi_query, phi_key, causal=sight.view.mask.is_causal)
        return reference.mix(self.weights(weights).to(value.dtype), value)

    def attend(self, query: Query, key: Key, value: Value, sight: Sight, cache: OwnCache | None) -> Heads:
        _refuse(sight.view.mask, causal=True, mechanism="linear attention")
        if cache is not None:
            raise KernelError(
                "the reference kernel forms the weights of all keys, but a cache of linear attention keeps only sums. "
                "Use kernel='fused', or no cache."
            )
        return self.read(query, (key, value), sight)


# --- feature maps ---


class FeatureMap(nn.Module):
    """The same function of a query and of a key."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def of_query(self, query: Query) -> Float[Tensor, "batch heads query features"]:
        return self.function(query)

    def of_key(self, key: Key) -> Float[Tensor, "batch groups key features"]:
        return self.function(key)


class RandomFeatureMap(nn.Module):
    """Positive random features; `redraw` replaces the projection that they are drawn by."""

    projection: Tensor

    def __init__(self, part: c.PositiveRandom, width: int, scale: float) -> None:
        super().__init__()
        self.part, self.scale = part, scale
        self.register_buffer("projection", torch.empty(part.count, width))

    def redraw(self, generator: torch.Generator | None = None) -> None:
        count, width = self.projection.shape
        rows = linear.gaussian_rows(count, width, orthogonal=self.part.orthogonal, generator=generator)
        self.projection.copy_(rows)

    def of_query(self, query: Query) -> Float[Tensor, "batch heads query features"]:
        return self._map(query, shift=True)

    def of_key(self, key: Key) -> Float[Tensor, "batch groups key features"]:
        return self._map(key, shift=False)

    def _map(self, x: Tensor, *, shift: bool) -> Tensor:
        exact = torch.promote_types(x.dtype, torch.float32)
        features = linear.positive_random(x.to(exact), self.projection.to(exact), self.scale, shift=shift)
        return features.to(x.dtype)


def build_feature_map(part: c.Features, config: c.ModelConfig) -> FeatureMap | RandomFeatureMap:
    match part:
        case c.EluPlusOne():
            return FeatureMap(linear.elu_plus_one)
        case c.Relu():
            return FeatureMap(torch.relu)
        case c.PositiveRandom():
            return RandomFeatureMap(part, config.key_width, config.scale)


def phi_of_query(features: FeatureMap | RandomFeatureMap, query: Query, sight: Sight) -> Phi:
    return _turned(features.of_query(_roomy(query)), sight.rotation)


def phi_of_key(features: FeatureMap | RandomFeatureMap, key: Key, heads: int, sight: Sight) -> Phi:
    """Every head gets its group's features, those of padding silenced. A cache's padding covers earlier keys too."""
    padding = sight.view.mask.padding
    own = None if padding is None else padding[:, -key.shape[-2] :]
    return _turned(share(features.of_key(_roomy(key)), heads), sight.rotation).without(own)


# --- which kernel a mechanism runs on ---


def build_mechanism(config: c.ModelConfig, kernel: KernelName, shown: Shown) -> Mechanism:
    softmax: dict[str, Kernel] = {
        "fused": fused.sdpa,
        "flex": fused.flex,
        "reference": partial(_in_sight, weigh=reference.softmax_weights, shown=shown),
        "grouped": fused.grouped,
    }
    if kernel not in softmax:
        raise KernelError(f"no kernel is called {kernel!r}: choose one of {', '.join(softmax)}")
    match config.attention:
        case c.Softmax():
            return Scored(softmax[kernel], config.scale)
        case c.NormalizedRelu():
            _needs_no_flex(kernel, "normalised ReLU")
            formed = partial(_in_sight, weigh=reference.normalized_relu_weights, shown=shown)
            return Scored(formed if kernel == "reference" else relu.normalized_relu, config.scale)
        case c.Linformer() as part:
            _needs_no_flex(kernel, "Linformer")
            assert config.context is not None
            return LinformerMechanism(part, config.context, softmax[kernel], config.scale)
        case c.Linear() as part:
            _needs_no_flex(kernel, "linear attention")
            return LinearTwin(part, config, shown.weights) if kernel == "reference" else LinearMechanism(part, config)


def _in_sight(
    query: Query,
    key: Key,
    value: Value,
    *,
    scale: float,
    view: View,
    weigh: Callable[[Matrix, bool], Matrix],
    shown: Shown,
) -> Heads:
    """A reference kernel whose scores and weights pass through sites."""
    matrix = shown.scores(reference.scores(query, key, scale=scale, view=view))
    return reference.mix(shown.weights(weigh(matrix, view.blind is not None)), value)


def _needs_no_flex(kernel: KernelName, mechanism: str) -> None:
    if kernel == "flex":
        raise KernelError(f"the flex kernel is for softmax attention, not for {mechanism}: use 'fused' or 'reference'")


def _refuse(mask: Mask, *, causal: bool, mechanism: str) -> None:
    """Sums over keys can leave out padding and, where they run along the text, the future: nothing else."""
    future = mask.prefix is not None and not (causal and mask.is_causal)
    if future or mask.window is not None or mask.documents is not None:
        hidden = f"the future after a prefix of {mask.prefix}" if future else "a window or other documents of a row"
        raise KernelError(f"{mechanism} cannot hide {hidden}: its sums run over all keys. Use softmax attention.")


def _turned(features: Tensor, rotation: Rotation | None) -> Phi:
    return Phi(features, features if rotation is None else rotation.turn(features))


def _roomy(x: Tensor) -> Tensor:
    """float16 has no room for sums over many keys."""
    return x.float() if x.dtype == torch.float16 else x
