"""How fast is a checkpoint opened, and in how much memory? Against transformers' from_pretrained, in the same run.

Each measurement is a fresh process that imports first, then opens a random checkpoint and runs one token through it, so
that mapped weights are really read. Memory is the peak of resident pages beyond what the imports took, mapped files
included, over the size of the weights as they are used. Time is CPU and wall time of the opening and the token, after
the imports. Each checkpoint is opened as it is stored, and converted to bfloat16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.record import record

SHAPES = {
    "gpt2-small": ("GPT2LMHeadModel", "GPT2Config", {}),
    "llama-0.5b": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 16,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "intermediate_size": 4096,
            "vocab_size": 32_000,
        },
    ),
}

PROBE = """
import json, os, sys, time
import torch
contestant, folder, dtype = sys.argv[1:]
torch.set_num_threads(1)
if contestant == "pellucid":
    from pellucid.pretrained.load import load
    from pellucid.model.transformer import Transformer
else:
    import transformers
    from transformers import AutoModelForCausalLM
    from transformers.models.gpt2 import modeling_gpt2
    from transformers.models.llama import modeling_llama
    transformers.logging.disable_progress_bar()
def resident(key):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(key))
open("/proc/self/clear_refs", "w").write("5")
before, cpu, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
ids = torch.zeros(1, 1, dtype=torch.long)
with torch.no_grad():
    if contestant == "pellucid":
        load(folder, dtype=getattr(torch, dtype)).logits(ids)
    else:
        AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))(ids)
cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
print(json.dumps({"cpu_s": cpu, "wall_s": wall, "peak": resident("VmHWM") - before}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    rows = []
    for name, (model, config, values) in SHAPES.items():
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(model, config, values, folder)
            rows += [compare(name, folder, dtype, options.repeats) for dtype in ("float32", "bfloat16")]
    if options.out:
        record(options.out, {"repeats": options.repeats, "rows": rows})


def write_checkpoint(model: str, config: str, values: dict[str, int], folder: str) -> None:
    import torch
    import transformers

    torch.manual_seed(0)
    getattr(transformers, model)(getattr(transformers, config)(**values)).save_pretrained(folder)


def compare(name: str, folder: str, dtype: str, repeats: int) -> dict[str, object]:
    stored = sum(file.stat().st_size for file in Path(folder).glob("*.safetensors"))
    size = stored // 2 if dtype == "bfloat16" else stored
    samples: dict[str, list[dict[str, float]]] = {"pellucid": [], "transformers": []}
    for _ in range(repeats):
        for contestant, runs in samples.items():
            runs.append(probe(contestant, folder, dtype))
    row: dict[str, object] = {"checkpoint": name, "dtype": dtype, "bytes": size}
    print(f"{name} as {dtype}: {size / 1e6:.0f} MB of weights")
    for contestant, runs in samples.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        row[contestant] = {
            "cpu_s": round(middle["cpu_s"], 3),
            "wall_s": round(middle["wall_s"], 3),
            "peak_over_weights": round(middle["peak"] / size, 3),
        }
        print(
            f"  {contestant:13} {middle['cpu_s']:6.2f} s CPU  {middle['wall_s']:6.2f} s wall  "
            f"peak {middle['peak'] / size:.2f} x the weights"
        )
    return row


def probe(contestant: str, folder: str, dtype: str) -> dict[str, float]:
    run = subprocess.run(
        [sys.executable, "-c", PROBE, contestant, folder, dtype], capture_output=True, text=True, check=True
    )
    figures: dict[str, float] = json.loads(run.stdout.strip().splitlines()[-1])
    return figures


if __name__ == "__main__":
    main()
