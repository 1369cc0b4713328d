"""How fast a generation was, against what the memory allows, and what 8 bits cost in quality."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from pellucid.generation.lanes import Lanes
from pellucid.generation.quantize import quantized
from pellucid.generation.request import Request
from pellucid.generation.results import Result
from pellucid.generation.runner import resting
from pellucid.model.cache import cache_bytes
from pellucid.model.config import Linear, ModelConfig
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model


@dataclass
class Watch:
    """Takes the times of a run as it goes: when it began, when the prompts were read, when the last token came."""

    began: float = 0.0
    read: float = 0.0
    ended: float = 0.0
    steps: int = 0
    rows: int = 0
    capacity: int = 0
    cache_bytes: int = 0

    def start(self) -> None:
        self.began = time.perf_counter()

    def look(self, lanes: Lanes, steps: int) -> None:
        """After a value was read from the device, so that its work is done. The first time, the prompts were read."""
        self.ended, self.steps = time.perf_counter(), steps
        self.read = self.read or self.ended
        self.rows = len(lanes.token)
        if lanes.cache is not None:
            self.capacity = lanes.cache.capacity
            self.cache_bytes = sum(tensor.nbytes for tensor in lanes.cache.own_tensors())


@dataclass(frozen=True)
class Stats:
    """Times in seconds, rates in tokens per second, sizes in bytes.

    cache_bytes_per_token: what the tensors take over texts x capacity; formula_bytes_per_token: 2 x blocks x key-value
      heads x head width x bytes. Both None where the cache does not grow with the text, or there is none.
    bytes_per_step: the weights that every step reads, and the cache; bandwidth: bytes that a copy moves in a second.
    """

    prefill_tokens: int
    prefill_seconds: float
    decode_tokens: int
    decode_seconds: float
    cache_bytes_per_token: float | None
    formula_bytes_per_token: float | None
    bytes_per_step: int
    bandwidth: float
    steps: int

    @property
    def prefill_rate(self) -> float:
        return self.prefill_tokens / self.prefill_seconds

    @property
    def decode_rate(self) -> float | None:
        return self.decode_tokens / self.decode_seconds if self.decode_tokens else None

    @property
    def share_of_bandwidth(self) -> float | None:
        """Steps per second x bytes per step / bandwidth."""
        if not self.steps:
            return None
        return self.steps / self.decode_seconds * self.bytes_per_step / self.bandwidth

    def to_json(self) -> dict[str, Any]:
        rates = ("prefill_rate", "decode_rate", "share_of_bandwidth")
        return asdict(self) | {name: getattr(self, name) for name in rates}


def stats_of(asked: Request, watch: Watch, results: list[Result]) -> Stats:
    config, size = asked.model.config, asked.model.dtype
    written = sum(len(each.logprobs) for result in results for each in result.continuations)
    first = sum(len(result.continuations) for result in results)
    grows = watch.cache_bytes > 0 and not isinstance(config.attention, Linear)
    return Stats(
        prefill_tokens=sum(map(len, asked.prompts if asked.sources is None else asked.sources)),
        prefill_seconds=watch.read - watch.began,
        decode_tokens=written - first,
        decode_seconds=watch.ended - watch.read,
        cache_bytes_per_token=watch.cache_bytes / (watch.rows * watch.capacity) if grows else None,
        formula_bytes_per_token=formula(config, size) if grows else None,
        bytes_per_step=weight_bytes(asked) + watch.cache_bytes,
        bandwidth=copy_bandwidth(asked.model.device),
        steps=watch.steps - 1,
    )


def formula(config: ModelConfig, dtype: torch.dtype) -> float:
    """2 x blocks x key-value heads x head width x bytes, where keys and values are equally wide."""
    unlimited = config.model_copy(update={"window": None})
    return float(cache_bytes(unlimited, 1, 1, dtype))


def weight_bytes(asked: Request) -> int:
    """What a step reads of the weights: the decoder and the unembedding. One byte each where they are in 8 bits."""
    network = asked.model.network
    assert network.decoder is not None
    head = sum(p.numel() for p in network.head.parameters())
    tied = getattr(network.head, "weight", None) is None
    count = sum(p.numel() for p in network.decoder.parameters()) + head + tied * network.tokens.weight.numel()
    return count * (1 if asked.run.quantize else network.tokens.weight.dtype.itemsize)


def copy_bandwidth(device: torch.device, repeats: int = 5) -> float:
    """Bytes read and written in a second by copying a large tensor: the best of a few."""
    size, copies = (2**30, 8) if device.type == "cuda" else (2**26, 1)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(copies):
            target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return 2 * size * copies / best


@dataclass(frozen=True)
class QualityLoss:
    """The mean log-probability of each token of a text, by the float32 weights and by those in 8 bits."""

    tokens: int
    float32: float
    int8: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"change": self.int8 - self.float32}


def quality_loss(model: Model, result: Result) -> QualityLoss:
    """Measured on the prompt and what was written after it."""
    network = resting(model.network)
    means = [_mean_logprob(each, model, result) for each in (network, quantized(network))]
    return QualityLoss(len(result.ids) - 1, *means)


@torch.no_grad()
def _mean_logprob(network: Transformer, model: Model, result: Result) -> float:
    ids = torch.tensor([result.ids], device=model.device)
    read = ids[:, :-1]
    if model.config.is_encoder_decoder:
        scores = network(torch.tensor([result.prompt_ids], device=model.device), read)
    else:
        scores = network(read)
    return float(scores.log_softmax(-1).gather(2, ids[:, 1:, None]).mean())
