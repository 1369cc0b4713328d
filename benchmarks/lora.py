"""How much of full fine-tuning does an adapter reach? Parts of speech of UD English EWT, from one small base.

Few labels on many texts, as fine-tuning mostly is: an encoder is trained from scratch to find hidden pieces of words in
all 12,544 training sentences, and then tags parts of speech, of which it sees those of every sixth sentence. With the
same steps, data, batches and evaluation: all weights are fine-tuned; an adapter is, with the new head; and the new head
alone, on a frozen base. Each has its own learning rate, of a few tried on the development sentences; the figures are of
the test sentences, over several seeds of head, adapter, order and dropout.
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import pellucid
from benchmarks.record import record
from pellucid import lora
from pellucid.pretrained.facade import Model
from pellucid.training.batches import Source
from pellucid.training.config import RunConfig
from pellucid.training.distributed import World
from pellucid.training.evaluate import evaluate
from pellucid.training.loop import Loop
from pellucid.training.optimizer import trained_parameters
from pellucid.training.progress import Reporter
from pellucid.training.run import model_for, prepared_for, train

TRAIN, VALID, TEST = "en_ewt-ud-train.rebuilt.conllu.gz", "en_ewt-ud-dev.conllu", "en_ewt-ud-test.conllu"
TAGGED, MARK = "tagged.conllu", "# text = "
MODEL = {
    "width": 96,
    "heads": 4,
    "encoder_blocks": 2,
    "position": {"kind": "rotary"},
    "feed_forward": {"kind": "plain", "hidden": 384, "activation": "gelu"},
    "dropout": 0.1,
}
BATCH = {"tokens": 2048, "context": 96, "multiple": 8}
TARGETS = ["attention.*", "feed_forward.*"]
RATES = {"full": 2e-3, "lora": 1e-2, "head": 1e-2}
GOAL = 0.98
Way = Callable[[Model, RunConfig], Model]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the files of UD English EWT")
    parser.add_argument("--pretraining", type=int, default=2000, help="steps of the base")
    parser.add_argument("--steps", type=int, default=500, help="steps of each fine-tuning")
    parser.add_argument("--sparsely", type=int, default=6, help="every so many sentences, the labels of one are seen")
    parser.add_argument("--rank", type=int, default=16, help="of the adapter; its alpha is twice that")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--only", choices=[*RATES], action="append", help="only these ways")
    parser.add_argument("--rate", type=float, help="another rate for them")
    parser.add_argument("--split", choices=["test", "dev"], default="test", help="what is scored")
    parser.add_argument("--work", type=Path, help="keep the runs here; a base that is there is taken")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        compare(options, options.work or Path(temporary))


def compare(options: argparse.Namespace, folder: Path) -> None:
    start, has_base = time.process_time(), (folder / "base").exists()
    base, hidden = pretrained(options, folder)
    print(f"base: finds {hidden:.1%} of what is hidden", flush=True)
    ways: dict[str, Way] = {"full": full, "lora": adapted, "head": frozen}
    rows = [score(name, ways[name], base, options, folder) for name in RATES if name in (options.only or RATES)]
    figures = {row["name"]: row["accuracy"] for row in rows}
    ratio = figures["lora"] / figures["full"] if {"lora", "full"} <= set(figures) else None
    if ratio is not None:
        print(f"an adapter reaches {ratio:.2%} of full fine-tuning's accuracy ({GOAL:.0%} wanted)")
    if options.out:
        settings = {"model": MODEL, "batch": BATCH, "lora": adapter_of(options), "rates": RATES, "seeds": options.seeds}
        steps = {"pretraining": options.pretraining, "fine_tuning": options.steps}
        about = {
            "task": "UD English EWT, universal parts of speech",
            "labels": f"of one sentence in {options.sparsely}",
        }
        about |= {"scored": options.split, "hidden_found": hidden}
        clock = {"cpu_minutes": (time.process_time() - start) / 60, "with_base": not has_base}
        record(options.out, {**about, **settings, "steps": steps, "rows": rows, "ratio": ratio, **clock})


def pretrained(options: argparse.Namespace, folder: Path) -> tuple[Path, float]:
    """The base, and the share of what is hidden in the development sentences that it finds."""
    write_data(options, folder)
    run = RunConfig(
        model=MODEL,
        task={"kind": "masked_language_model"},
        data={"train": [f"{TRAIN}.txt"], "valid": [f"{VALID}.txt"], "root": str(folder)}
        | {"format": {"kind": "text", "lines": True}},
        tokenizer={"kind": "bpe", "vocab": 3072, "words": True},
        batch=BATCH,
        optimizer={"rate": 2e-3, "decay": 0.01},
        schedule={"steps": options.pretraining, "warmup": 200, "floor": 0.05},
        evaluation={"every": 0},
        output={"folder": str(folder / "base"), "checkpoint": 10**6, "log": 100},
        compute={"device": "cpu", "threads": 1},
    )
    done = train(run)
    assert done.model is not None
    return done.model, done.metrics["accuracy"]


def write_data(options: argparse.Namespace, folder: Path) -> None:
    """The texts for the base, and the sentences whose labels are seen."""
    folder.mkdir(parents=True, exist_ok=True)
    train, valid = gzip.decompress((options.data / TRAIN).read_bytes()).decode(), (options.data / VALID).read_text()
    for name, data in ((TRAIN, train), (VALID, valid)):
        texts = [line.removeprefix(MARK) for line in data.splitlines() if line.startswith(MARK)]
        (folder / f"{name}.txt").write_text("\n".join(texts) + "\n")
    sentences = train.strip().split("\n\n")
    (folder / TAGGED).write_text("\n\n".join(sentences[:: options.sparsely]) + "\n\n")
    (folder / VALID).write_text(valid)


def tagging(options: argparse.Namespace, name: str, seed: int, folder: Path) -> RunConfig:
    return RunConfig(
        task={"kind": "tagging"},
        data={"train": [TAGGED], "valid": [VALID], "root": str(folder), "format": {"kind": "conllu"}}
        | {"cache": str(folder / "cache")},
        batch=BATCH,
        optimizer={"rate": options.rate or RATES[name], "decay": 0.01},
        schedule={"steps": options.steps, "warmup": 40, "floor": 0.0},
        evaluation={"every": 0},
        lora=adapter_of(options) if name == "lora" else None,
        output={
            "folder": str(folder / f"{name}-{seed}-{options.rate}-{options.steps}-{options.rank}-{options.sparsely}")
        }
        | {"checkpoint": 10**6, "log": 100},
        compute={"device": "cpu", "threads": 1},
        seed=seed,
    )


def adapter_of(options: argparse.Namespace) -> dict[str, Any]:
    return {"rank": options.rank, "alpha": 2.0 * options.rank, "targets": TARGETS}


def score(name: str, way: Way, base: Path, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    accuracies, trained = [], 0
    start = time.process_time()
    for seed in options.seeds:
        run = tagging(options, name, seed, folder)
        model = way(pellucid.load(base), run)
        trained = sum(each.numel() for each in trained_parameters(model.network).values())
        found = evaluate(model, run, [options.data / (TEST if options.split == "test" else VALID)])
        accuracies.append(found["accuracy"])
    mean, seconds = statistics.mean(accuracies), (time.process_time() - start) / len(options.seeds)
    shown = " ".join(f"{each:.4f}" for each in accuracies)
    print(
        f"{name:6}{trained:10,} trained   accuracy {mean:.4f}  ({shown})  {seconds:.0f} s of CPU time each", flush=True
    )
    return {"name": name, "trained": trained, "accuracy": mean, "accuracies": accuracies, "cpu_seconds": seconds}


def full(base: Model, run: RunConfig) -> Model:
    return pellucid.load(train(run, base=base).model)


def adapted(base: Model, run: RunConfig) -> Model:
    done = train(run, base=base)
    model = lora.fitted(base, done.adapter)
    lora.load(model, done.adapter)
    return model


def frozen(base: Model, run: RunConfig) -> Model:
    """The head alone. No run file asks for this, so the loop is called by itself."""
    folder, world = Path(run.output.folder), World(torch.device("cpu"))
    folder.mkdir(parents=True, exist_ok=True)
    report = Reporter(folder, run.schedule.steps, quiet=True)
    prepared = prepared_for(run, base, folder, world, report)
    model, _ = model_for(run, base, prepared, world)
    model.network.requires_grad_(False)
    model.network.head.requires_grad_(True)
    source = Source(prepared.train, run, prepared.words, training=True)
    Loop(run, world, model.network, source, None, folder).go(report)
    model.network.eval()
    return replace(model, labels=prepared.labels)


if __name__ == "__main__":
    main()
