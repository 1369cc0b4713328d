"""How fast does the training loop learn? Whole steps (forward, backward, AdamW) against the same shape in other loops.

On a GPU: GPT-2 124M, 1024 tokens, bfloat16 autocast, all compiled: ours against transformers and against a plain GPT
loop; tokens per second and MFU of 989 TFLOP/s. On a CPU: a character model of a million parameters against the same
model written as a plain PyTorch loop, eager, in CPU time. Contestants take turns, so that noise hits all of them; the
medians are compared. Ours is the real loop of `pellucid train` with its clipping and checks, which the others lack.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.record import record
from pellucid.model.flops import flops_per_token
from pellucid.model.presets import gpt2
from pellucid.model.transformer import Transformer
from pellucid.training.batches import Batch
from pellucid.training.config import RunConfig
from pellucid.training.distributed import World
from pellucid.training.loop import Loop, Work
from pellucid.training.order import Position

PEAK = 989e12


@dataclass(frozen=True)
class Shape:
    blocks: int
    width: int
    heads: int
    context: int
    vocab: int
    batch: int


LARGE = Shape(blocks=12, width=768, heads=12, context=1024, vocab=50_304, batch=32)
SMALL = Shape(blocks=5, width=128, heads=4, context=128, vocab=65, batch=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int, help="rows of a step")
    parser.add_argument("--steps", type=int, default=10, help="steps of a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--chunk", type=int, default=0, help="rows of logits at a time; 0 is by size")
    parser.add_argument("--only", action="append", help="only these contestants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    shape = LARGE if on_gpu else SMALL
    shape = shape if options.batch is None else Shape(**{**asdict(shape), "batch": options.batch})
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    steps = {
        name: build(shape, options) for name, build in contestants(on_gpu).items() if _is_asked(name, options.only)
    }
    rows = compare(steps, shape, options, on_gpu)
    if options.out:
        record(options.out, {"shape": asdict(shape), "seed": options.seed, "chunk": options.chunk, "rows": rows})


def _is_asked(name: str, only: list[str] | None) -> bool:
    return not only or name in only


Step = Callable[[], object]


def contestants(on_gpu: bool) -> dict[str, Callable[[Shape, argparse.Namespace], Step]]:
    both = {"pellucid": ours, "plain": plain}
    return {**both, "transformers": transformers_loop} if on_gpu else both


def compare(steps: dict[str, Step], shape: Shape, options: argparse.Namespace, on_gpu: bool) -> list[dict[str, Any]]:
    for step in steps.values():
        for _ in range(5):
            step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(options.turns):
        for name, step in list(steps.items())[:: -1 if turn % 2 else 1]:
            times[name].append(clocked(step, options.steps, on_gpu) / options.steps)
    flops = flops_per_token(config_of(shape), shape.context)
    tokens = shape.batch * shape.context
    ours = statistics.median(times["pellucid"])
    rows = []
    for name, samples in times.items():
        seconds = statistics.median(samples)
        row = {
            "name": name,
            "ms": seconds * 1e3,
            "tokens_per_second": tokens / seconds,
            "time_over_ours": seconds / ours,
        }
        if on_gpu:
            row["mfu"] = tokens / seconds * flops / PEAK
        rows.append(row)
        share = f"  MFU {row['mfu']:.3f}" if on_gpu else ""
        print(
            f"{name:14}{row['ms']:9.2f} ms{row['tokens_per_second']:14,.0f} tokens/s{share}  {seconds / ours:5.2f} x",
            flush=True,
        )
    return rows


def clocked(step: Step, count: int, on_gpu: bool) -> float:
    if on_gpu:
        torch.cuda.synchronize()
    clock = time.perf_counter if on_gpu else time.process_time
    start = clock()
    for _ in range(count):
        step()
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - start


def config_of(shape: Shape) -> Any:
    return gpt2(shape.blocks, shape.width, shape.heads, vocab=shape.vocab, context=shape.context)


def ids_of(shape: Shape, options: argparse.Namespace) -> Tensor:
    draw = torch.Generator().manual_seed(options.seed)
    return torch.randint(0, shape.vocab, (shape.batch, shape.context + 1), generator=draw).to(options.device)


def ours(shape: Shape, options: argparse.Namespace) -> Step:
    on_gpu = options.device == "cuda"
    run = RunConfig(
        model=config_of(shape).model_dump(),
        task={"kind": "language_model", "packing": "stream"},
        data={"train": ["none"]},
        batch={"tokens": shape.batch * shape.context, "context": shape.context},
        schedule={"kind": "constant", "steps": 10**6, "warmup": 0},
        optimizer={"rate": 1e-4},
        compute={"device": options.device, "compile": on_gpu, "chunk": options.chunk}
        | {"precision": "bfloat16" if on_gpu else "float32"},
        output={"folder": tempfile.mkdtemp()},
    )
    network = Transformer(config_of(shape), seed=options.seed).to(options.device)
    # Without files: the batch is given. Evaluation, records and checkpoints are no part of a step.
    loop = Loop(run, World(torch.device(options.device)), network, None, None, Path(run.output.folder))  # type: ignore[arg-type]
    ids = ids_of(shape, options)
    batch = Batch(
        ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), shape.batch * shape.context, shape.batch * shape.context
    )
    work = Work([(0, batch)], Position())

    def step() -> None:
        loop._learn(work)
        if not on_gpu:
            loop._refuse_nan()

    return step


def transformers_loop(shape: Shape, options: argparse.Namespace) -> Step:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocab,
        n_embd=shape.width,
        n_layer=shape.blocks,
        n_head=shape.heads,
        n_positions=shape.context,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
    )
    network = GPT2LMHeadModel(config).to(options.device).train()
    ids = ids_of(shape, options)[:, :-1].contiguous()
    return looped(network, torch.compile(network), lambda call: call(input_ids=ids, labels=ids).loss)


def plain(shape: Shape, options: argparse.Namespace) -> Step:
    torch.manual_seed(options.seed)
    network = PlainGPT(shape).to(options.device)
    ids = ids_of(shape, options)
    inputs, answers = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    call = torch.compile(network) if options.device == "cuda" else network
    return looped(network, call, lambda call: call(inputs, answers))


def looped(network: nn.Module, call: Any, loss_of: Callable[[Any], Tensor]) -> Step:
    """The shortest loop there is."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
    on_gpu = next(network.parameters()).device.type == "cuda"

    def step() -> None:
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            loss = loss_of(call)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class PlainBlock(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """The same shape as a person would write it for one model alone."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(shape.vocab, shape.width), nn.Embedding(shape.context, shape.width)
        self.blocks = nn.ModuleList(PlainBlock(shape) for _ in range(shape.blocks))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocab, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, ids: Tensor, answers: Tensor) -> Tensor:
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), answers.view(-1))


if __name__ == "__main__":
    main()
