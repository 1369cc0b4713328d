# ruff: noqa: A005 (the question is about the trace; it is run as benchmarks.trace)
"""What does looking cost? A capture against a bare forward, and against TransformerLens' run_with_cache, in one run.

A GPT-2-small-shaped model with random weights, float32, CPU. Three tasks: a bare forward; the residual stream after
every sub-layer; everything, attention scores and weights included. Each measurement is a fresh process that builds its
model, warms up on a few tokens, and runs the task once: CPU time of that run, and the peak of resident pages beyond the
built model. Contestants and tasks take turns; figures are medians. Captures are checked when a step's error is asked
for, so the float64 recheck is no part of these times; TransformerLens has none. Each runs as it comes: a bare forward
and residuals on the fused kernel here, on formed matrices there, where there is no other way.

The peer is not part of any extra; HookedTransformer was removed in its version 4: pip install 'transformer-lens<4'
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from benchmarks.record import record

TASKS = ("forward", "residuals", "everything")
CONTESTANTS = ("pellucid", "transformer-lens")

# Shared by both probes: a task is called with ids, and what it returns is kept until the peak is read.
MEASURE = """
import json, sys, time
import torch
task, length = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
torch.set_grad_enabled(False)
def resident(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
def measure(tasks):
    run, ids = tasks[task], torch.arange(length)[None] * 31 % 50257
    run(ids[:, :8])
    open("/proc/self/clear_refs", "w").write("5")
    before, cpu, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
    kept = run(ids)
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak": resident("VmHWM") - before}))
"""
PROBES = {
    "pellucid": MEASURE
    + """
from pellucid.lens.trace import trace
from pellucid.model.presets import preset
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
config = preset("gpt2-small")
model = Model(config, Transformer(config, seed=0).eval())
measure({
    "forward": model.network,
    "residuals": lambda ids: trace(model, ids, sites=["*.residual.*"]),
    "everything": lambda ids: trace(model, ids, memory_limit=2**40),
})
""",
    "transformer-lens": MEASURE
    + """
from transformer_lens import HookedTransformer, HookedTransformerConfig
config = HookedTransformerConfig(n_layers=12, d_model=768, n_heads=12, d_head=64, d_mlp=3072, n_ctx=1024,
    d_vocab=50257, act_fn="gelu_new", normalization_type="LN", seed=0, device="cpu")
model = HookedTransformer(config).eval()
residual = lambda name: name.endswith(("hook_resid_mid", "hook_resid_post"))
measure({
    "forward": model,
    "residuals": lambda ids: model.run_with_cache(ids, names_filter=residual),
    "everything": lambda ids: model.run_with_cache(ids),
})
""",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    if find_spec("transformer_lens") is None:
        sys.exit(
            "this compares with TransformerLens, which is not installed: pip install 'transformer-lens<4' "
            "(version 4 has no HookedTransformer)"
        )
    rows = [compare(length, options.repeats) for length in options.tokens]
    if options.out:
        peer = {"transformer-lens": version("transformer-lens")}
        record(options.out, {"peer": peer, "repeats": options.repeats, "rows": rows})


def compare(length: int, repeats: int) -> dict[str, object]:
    samples: dict[tuple[str, str], list[dict[str, float]]] = {(who, task): [] for task in TASKS for who in CONTESTANTS}
    for _ in range(repeats):
        for (who, task), runs in samples.items():
            runs.append(probe(who, task, length))
    medians = {
        key: {figure: statistics.median(run[figure] for run in runs) for figure in runs[0]}
        for key, runs in samples.items()
    }
    row: dict[str, object] = {"tokens": length}
    print(f"{length} tokens")
    for task in TASKS:
        ours, theirs = (medians[who, task] for who in CONTESTANTS)
        figures = {
            "pellucid": _readable(ours),
            "transformer-lens": _readable(theirs),
            "time_ratio": round(ours["cpu_s"] / theirs["cpu_s"], 3),
            "memory_ratio": round(ours["peak"] / theirs["peak"], 3),
            "time_over_own_forward": round(ours["cpu_s"] / medians["pellucid", "forward"]["cpu_s"], 3),
        }
        row[task] = figures
        print(
            f"  {task:11} {ours['cpu_s']:6.2f} s against {theirs['cpu_s']:6.2f} s CPU ({figures['time_ratio']:.2f} x)  "
            f"{ours['peak'] / 1e6:6.0f} MB against {theirs['peak'] / 1e6:6.0f} MB ({figures['memory_ratio']:.2f} x)  "
            f"{figures['time_over_own_forward']:.2f} x our bare forward"
        )
    return row


def _readable(figures: dict[str, float]) -> dict[str, float]:
    return {
        "cpu_s": round(figures["cpu_s"], 3),
        "wall_s": round(figures["wall_s"], 3),
        "peak_mb": round(figures["peak"] / 1e6, 1),
    }


def probe(contestant: str, task: str, length: int) -> dict[str, float]:
    command = [sys.executable, "-W", "ignore", "-c", PROBES[contestant], task, str(length)]
    # No network: the peer asks a hub for nothing that this needs.
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if run.returncode:
        sys.exit(f"{contestant} failed at {task} of {length} tokens:\n{run.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(run.stdout.strip().splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
