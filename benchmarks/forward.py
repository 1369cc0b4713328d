"""How fast are our blocks? Forward, and forward with backward, against the same shapes built by others.

Prints, for each peer, its time over ours (above 1: we are faster). All contestants of a row are timed in turns, so that
noise hits all of them: CPU time on a CPU, device events on a GPU; the medians are compared.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.peers import Contestant, Shape, families, parameters, token_ids
from benchmarks.record import record

SMALL = Shape(blocks=4, width=256, heads=4, batch=4, length=256)
LARGE = Shape(blocks=12, width=768, heads=12, batch=16, length=1024, vocab=32_768)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", help="only these (default: all)")
    parser.add_argument("--mode", choices=["eager", "compiled", "both"], default="both")
    parser.add_argument("--blocks", type=int, help="another depth (compiling takes longer the deeper the model is)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    shape = LARGE if options.device == "cuda" else SMALL
    shape = replace(shape, blocks=options.blocks or shape.blocks)
    modes = {"eager": (False,), "compiled": (True,), "both": (False, True)}[options.mode]
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    rows = []
    for family, contestants in families(shape).items():
        if options.family and family not in options.family:
            continue
        for compiled in modes:
            rows += compare(family, contestants, shape, options.device, dtype, compiled, options.repeats, options.seed)
    if options.out:
        record(options.out, {"shape": asdict(shape), "dtype": str(dtype), "seed": options.seed, "rows": rows})


def compare(
    family: str,
    contestants: list[Contestant],
    shape: Shape,
    device: str,
    dtype: torch.dtype,
    compiled: bool,
    repeats: int,
    seed: int,
) -> list[dict[str, object]]:
    """Time all contestants of a family, and print a line per peer."""
    ids = token_ids(shape, device, seed)
    steps: dict[str, dict[str, Callable[[], object]]] = {"forward": {}, "forward+backward": {}}
    networks = {}
    for contestant in contestants:
        torch.manual_seed(seed)
        torch.compiler.reset()
        network = contestant.build().to(device, dtype)
        networks[contestant.name] = network
        call = torch.compile(contestant.call) if compiled else contestant.call
        steps["forward"][contestant.name] = forward_step(network, call, ids)
        steps["forward+backward"][contestant.name] = training_step(network, call, ids)
    rows = []
    mode = "compiled" if compiled else "eager"
    for step, calls in steps.items():
        for network in networks.values():
            network.train(step != "forward")
        times = in_turns(calls, device, repeats)
        ours = times.pop("pellucid")
        print(f"{family:16} {mode:9} {step:17} pellucid {ours:8.2f} ms", flush=True)
        for peer, milliseconds in times.items():
            ratio = milliseconds / ours
            print(f"{'':44} {peer:15} {milliseconds:8.2f} ms  {ratio:5.2f} x", flush=True)
            rows.append(
                {
                    "family": family,
                    "mode": mode,
                    "step": step,
                    "peer": peer,
                    "ratio": round(ratio, 3),
                    "ours_ms": round(ours, 3),
                    "peer_ms": round(milliseconds, 3),
                    "parameters": {name: parameters(networks[name]) for name in ("pellucid", peer)},
                }
            )
    return rows


def forward_step(network: nn.Module, call: Callable[[nn.Module, Tensor], Tensor], ids: Tensor) -> Callable[[], object]:
    def step() -> object:
        with torch.no_grad():
            return call(network, ids)

    return step


def training_step(network: nn.Module, call: Callable[[nn.Module, Tensor], Tensor], ids: Tensor) -> Callable[[], object]:
    def step() -> object:
        network.zero_grad(set_to_none=True)
        return call(network, ids).float().square().mean().backward()

    return step


def in_turns(calls: dict[str, Callable[[], object]], device: str, repeats: int) -> dict[str, float]:
    """The median time of each call, in milliseconds."""
    for call in calls.values():
        for _ in range(3):
            call()
    clock = gpu_milliseconds if device == "cuda" else cpu_milliseconds
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            times[name].append(clock(call))
    return {name: statistics.median(samples) for name, samples in times.items()}


def cpu_milliseconds(call: Callable[[], object]) -> float:
    start = time.process_time()
    call()
    return (time.process_time() - start) * 1e3


def gpu_milliseconds(call: Callable[[], object]) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


if __name__ == "__main__":
    main()
