"""Is the spectrum without the matrix right, and how much faster is it than with it?

make bench NAME=spectra                                    on this CPU
python -m benchmarks.spectra --device cuda                 on a GPU
python -m benchmarks.spectra --record FILE                 keep the figures
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.record import record
from pellucid.kernels.mask import Mask
from pellucid.kernels.operator import AttentionOperator, DenseOperator
from pellucid.kernels.view import View
from pellucid.spectra.operator import open_operator
from pellucid.spectra.spectrum import Effort, free_spectrum

Row = dict[str, Any]


@dataclass(frozen=True)
class Shape:
    """One head: how many tokens, how wide, whether it sees the future."""

    tokens: int
    width: int
    causal: bool

    def operator(self, device: torch.device, dtype: torch.dtype) -> AttentionOperator:
        query, key = structured(self, device, dtype)
        view = View(self.tokens, self.tokens, device, Mask.causal() if self.causal else Mask())
        return open_operator(query, key, scale=self.width**-0.5, view=view)

    @property
    def scores(self) -> float:
        """How many weights are not zero."""
        return self.tokens**2 / (2 if self.causal else 1)


def structured(shape: Shape, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Queries and keys of smooth waves and noise: neither random nor too easy. Seeded by nothing but the shape."""
    generator = torch.Generator(device).manual_seed(shape.tokens + shape.width)
    place = torch.linspace(0, 1, shape.tokens, device=device)[:, None]
    wave = torch.arange(1, shape.width + 1, device=device)
    x = torch.sin(6 * math.pi * place * wave) / wave.sqrt() * 8
    x += torch.randn(x.shape, generator=generator, device=device)
    turns = torch.randn(2, shape.width, shape.width, generator=generator, device=device) / shape.width**0.5
    query, key = (x @ turn for turn in turns)
    return query[None, None].to(dtype), key[None, None].to(dtype)


def columns(shape: Shape, count: int, device: torch.device) -> Tensor:
    return torch.randn(1, 1, shape.tokens, count, generator=torch.Generator(device).manual_seed(0), device=device)


# --- the questions ---


def accuracy(device: torch.device, dtype: torch.dtype) -> Iterator[Row]:
    """Against the dense matrix in float64: products, energy, the top 64 singular values, the bracket."""
    for causal in (False, True):
        shape = Shape(4096, 64, causal)
        operator = shape.operator(device, dtype)
        dense = DenseOperator(operator.query, operator.key, scale=operator.scale, view=operator.view)
        values = torch.linalg.eigvalsh(dense.weights[0, 0].mT @ dense.weights[0, 0]).clamp(min=0).flip(0).cpu()
        found, x = free_spectrum(operator, Effort(budget=1024)), columns(shape, 64, device)
        top = torch.tensor(found.values[:64], dtype=torch.float64)
        held = (values.cumsum(0) / values.sum()).tolist()
        true = {tau: next(i + 1 for i, share in enumerate(held) if share >= tau) for tau in found.effective}
        yield {
            "question": "accuracy",
            "tokens": shape.tokens,
            "causal": causal,
            "apply": relative(operator.apply(x), dense.apply(x)),
            "apply_transposed": relative(operator.apply_transposed(x), dense.apply_transposed(x)),
            "energy": relative(operator.energy(), dense.energy()),
            "top_64": float(((top - values[:64].sqrt()) / values[:64].sqrt()).abs().max()),
            "brackets": {tau: list(ends) for tau, ends in found.effective.items()},
            "true": true,
        }


def products(device: torch.device, dtype: torch.dtype, lengths: list[int], widths: list[int]) -> Iterator[Row]:
    """How fast A x and A' y are, counting the scores and the product once each."""
    for tokens in lengths:
        for width in widths:
            for causal in (False, True):
                shape = Shape(tokens, width, causal)
                operator = shape.operator(device, dtype)
                for count in (64, 128, 256):
                    x = columns(shape, count, device)
                    work = 2 * shape.scores * (width + count) / 1e12
                    forward = median(partial(operator.apply, x), device)
                    back = median(partial(operator.apply_transposed, x), device)
                    yield {
                        "question": "products",
                        "tokens": tokens,
                        "width": width,
                        "causal": causal,
                        "columns": count,
                        "tflops": work / forward,
                        "tflops_transposed": work / back,
                    }


def spectra(device: torch.device, dtype: torch.dtype, wanted: list[tuple[int, int, int]]) -> Iterator[Row]:
    """The whole measurement, from queries and keys to brackets: rows, energy, basis, values; and certified."""
    for tokens, width, budget in wanted:
        for causal in (False, True):
            shape = Shape(tokens, width, causal)
            query, key = structured(shape, device, dtype)
            view = View(tokens, tokens, device, Mask.causal() if causal else Mask())

            def measure(certify: bool, q: Tensor = query, k: Tensor = key, v: View = view, n: int = budget) -> Any:
                operator = open_operator(q, k, scale=q.shape[-1] ** -0.5, view=v)
                return free_spectrum(operator, Effort(top=n, budget=n, settled=0.0, certify=certify))

            small = Shape(min(tokens, 4096), width, causal).operator(device, dtype)
            free_spectrum(small, Effort(top=budget, budget=budget, settled=0.0))  # compiles the kernels
            _reset_peak(device)
            found, seconds = timed(lambda: measure(False), device)
            peak = _peak(device)
            certified, seconds_certified = timed(lambda: measure(True), device)
            yield {
                "question": "spectrum",
                "tokens": tokens,
                "width": width,
                "columns": budget,
                "causal": causal,
                "seconds": seconds,
                "seconds_certified": seconds_certified,
                "peak_gib": peak,
                "captured": found.captured,
                "brackets": {tau: list(ends) for tau, ends in certified.effective.items()},
            }


def against_dense(device: torch.device, dtype: torch.dtype, tokens: int, effort: Effort, repeats: int) -> Iterator[Row]:
    """The spectrum without the matrix against torch.linalg.svdvals of the matrix, interleaved."""
    shape = Shape(tokens, 64, True)
    operator = shape.operator(device, dtype)
    dense = operator.tile(slice(0, tokens), slice(0, tokens))[0, 0].contiguous()
    free_spectrum(operator, effort)
    seconds: dict[str, list[float]] = {"free": [], "svd": []}
    for _ in range(repeats):
        seconds["free"] += [timed(lambda: free_spectrum(shape.operator(device, dtype), effort), device)[1]]
        seconds["svd"] += [timed(lambda: torch.linalg.svdvals(dense), device)[1]]
    best = {name: min(times) for name, times in seconds.items()}
    yield {
        "question": "against dense",
        "tokens": tokens,
        "top": effort.top,
        "budget": effort.budget,
        "seconds": best["free"],
        "seconds_svd": best["svd"],
        "ratio": best["svd"] / best["free"],
    }


def growth(device: torch.device, dtype: torch.dtype, lengths: list[int]) -> Iterator[Row]:
    """Fitted exponents of time and memory against length, for a pair of products with 64 columns."""
    seconds, memory = [], []
    for tokens in lengths:
        shape = Shape(tokens, 64, True)
        operator, x = shape.operator(device, dtype), columns(shape, 64, device)
        seconds.append(median(partial(_pair, operator, x), device, repeats=5))
        del operator, x
        memory.append(_memory_of_pair(shape, device, dtype))
    yield {
        "question": "growth",
        "lengths": lengths,
        "seconds": seconds,
        "time_exponent": slope(lengths, seconds),
        "memory_gib": memory,
        "memory_exponent": slope(lengths, memory),
    }


def _pair(operator: AttentionOperator, x: Tensor) -> Tensor:
    return operator.apply_transposed(operator.apply(x))


def _memory_of_pair(shape: Shape, device: torch.device, dtype: torch.dtype) -> float:
    """The peak over what was there before, in GiB. A CPU process cannot reset its peak, so it gets a fresh one."""
    if device.type == "cpu":
        code = (
            "import torch; from benchmarks.spectra import *; from benchmarks.spectra import _pair, _peak\n"
            f"d = torch.device('cpu'); small = Shape(256, 64, True); s = Shape({shape.tokens}, 64, True)\n"
            "_pair(small.operator(d, torch.float32), columns(small, 64, d)); before = _peak(d)\n"
            "_pair(s.operator(d, torch.float32), columns(s, 64, d)); print(_peak(d) - before)"
        )
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    before = torch.cuda.memory_allocated() / 2**30
    _reset_peak(device)
    _pair(shape.operator(device, dtype), columns(shape, 64, device))
    return _peak(device) - before


# --- measuring ---


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def timed(action: Callable[[], Any], device: torch.device) -> tuple[Any, float]:
    _wait(device)
    start = time.perf_counter()
    result = action()
    _wait(device)
    return result, time.perf_counter() - start


def median(action: Callable[[], Any], device: torch.device, repeats: int = 5) -> float:
    action()
    return sorted(timed(action, device)[1] for _ in range(repeats))[repeats // 2]


def slope(lengths: list[int], values: list[float]) -> float:
    x, y = (torch.tensor(v, dtype=torch.float64).log() for v in (lengths, values))
    x, y = x - x.mean(), y - y.mean()
    return float((x * y).sum() / x.square().sum())


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak(device: torch.device) -> float:
    """In GiB: of the device, or of the whole process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    # Not getrusage: a new process inherits its parent's figure.
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**20


def on_cpu(device: torch.device) -> Iterator[Row]:
    full = torch.float32
    yield from spectra(device, full, [(32768, 64, 64)])  # first: the peak of a process never falls
    yield from growth(device, full, [2048, 4096, 8192, 16384, 32768])
    yield from against_dense(device, full, 4096, Effort(top=64, narrow=1.0, certify=False), repeats=2)
    yield from accuracy(device, full)


def on_gpu(device: torch.device) -> Iterator[Row]:
    half = torch.bfloat16
    yield from spectra(device, half, [(131072, 128, 512), (1048576, 64, 256)])
    yield from products(device, half, [131072], [64, 128])
    yield from growth(device, half, [65536, 131072, 262144, 524288, 1048576])
    yield from accuracy(device, half)
    yield from accuracy(device, torch.float32)
    yield from against_dense(device, half, 16384, Effort(top=512, budget=512, settled=0.0, certify=False), repeats=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    device, rows = torch.device(given.device), []
    for row in (on_gpu if device.type == "cuda" else on_cpu)(device):
        print("  ".join(f"{name} {_short(value)}" for name, value in row.items()), flush=True)
        rows.append(row)
        if given.record:
            record(given.record, {"rows": rows})


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
