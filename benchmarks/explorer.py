"""Is the explorer quick, and does a crowd get its own answers? The real server, and the real page in Chromium.

MODEL is a folder or the name of a bundled model; without one, random weights of the story model's shape. The server is
`pellucid explore` in a process of its own. A crowd asks it for traces and attention of its own texts for a minute; each
client compares the tokens and the probabilities that come back with those computed here, directly. Whoever is told to
wait asks again. Then a browser opens the page: the first view, new texts of 32 tokens, and a map of 16,384 tokens, for
which the model is opened once more without its longest text. Last, the largest answer of every view.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import torch

from benchmarks.explorer_crowd import crowd
from benchmarks.explorer_page import timings
from benchmarks.record import record
from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.load import load
from pellucid.pretrained.save import save

TARGETS = {"first_view_s": 2.0, "new_trace_s": 1.0, "zoom_s": 0.5, "largest_mb": 2.0}
LONG = 16_384
STORIES = {
    "vocab": 4096,
    "width": 256,
    "heads": 8,
    "key_value_heads": 4,
    "decoder_blocks": 6,
    "context": 512,
    "position": c.Rotary(),
    "norm": c.RMSNorm(),
    "feed_forward": c.Gated(hidden=688),
    "biases": c.Biases(query=False, key=False, value=False, output=False, feed_forward=False),
}


@dataclass(frozen=True)
class Server:
    """address: as it was printed; up: when that was."""

    address: str
    up: float
    process: int

    def cpu(self) -> float:
        """The seconds of CPU that it has used: on a busy machine, what the same would take on a quiet one."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*folders: str) -> Iterator[Server]:
    command = [sys.executable, "-m", "pellucid", "explore", *folders, "--no-browser", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        if found is None:
            sys.exit(f"the server did not start: {line}{process.stderr.read()}")
        try:
            yield Server(found[0], time.perf_counter(), process.pid)
        finally:
            process.terminate()


def opened(source: str | None) -> Model:
    if source is not None:
        return load(source)
    config = c.ModelConfig(**STORIES)
    return Model(config, Transformer(config, seed=0).eval())


def endless(model: Model) -> Model | None:
    """The same weights with no longest text; nothing where positions have a table."""
    if isinstance(model.config.position, c.Learned):
        return None
    config = c.ModelConfig(**(model.config.model_dump() | {"context": None}))
    network = Transformer(config, seed=0).eval()
    network.load_state_dict(model.network.state_dict())
    return replace(model, config=config, network=network)


def largest_answers(address: str, name: str, long_name: str | None, text: str) -> dict[str, float]:
    """Megabytes of the largest answer of each view, each asked for the most that it shows."""
    head = {"place": 0, "head": 0}
    asked: list[tuple[str, dict[str, Any]]] = [
        ("trace", {}),
        ("trace/values", {"site": "logits"}),
        ("attention", {"change": "no_scaling"}),
        ("attention/head", {**head, "change": "no_scaling"}),
        ("spectra", {}),
        ("spectra/head", head),
        ("spectra/rank", {**head, "rank": 4}),
        ("cache", {"written": 64, "text": " ".join(text.split()[:128])}),
    ]
    bodies = [(path, {"model": name, "text": text, **more}) for path, more in asked]
    bodies += [("positions", {"model": name, "length": 65_536, "width": 256}), ("training", {"model": name})]
    if long_name is not None:
        bodies.append(("map", {"model": long_name, "text": text, "tokens": LONG}))
    sizes: dict[str, float] = {}
    with httpx.Client(base_url=address, timeout=600) as web:
        for path, body in bodies:
            answer = web.post(f"api/{path}", json=body)
            if answer.status_code != 200:
                print(f"  {path}: {answer.json()['message']}")
                continue
            view = path.split("/")[0]
            sizes[view] = max(sizes.get(view, 0.0), len(answer.content) / 1e6)
    return {view: round(size, 3) for view, size in sizes.items()}


def longest_text(model: Model, tokens: int) -> str:
    """About so many tokens, all of them known to the model."""
    if model.tokenizer is None:
        return " ".join(str(1 + place % (model.config.vocab - 1)) for place in range(tokens))
    text = "Once upon a time there was a little girl who had a red ball and a dog . " * tokens
    return model.decode(model.encode(text)[:tokens])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    with tempfile.TemporaryDirectory() as made:
        model = opened(options.model)
        folders = [str(save(model, Path(made) / "explored"))]
        long = endless(model)
        if long is not None:
            folders.append(str(save(long, Path(made) / "endless")))
        names = [Path(folder).name for folder in folders]
        figures = measured(model, folders, names, options.clients, options.seconds)
    shape = {
        "source": options.model or "random weights",
        **{key: getattr(model.config, key) for key in ("width", "heads", "decoder_blocks", "context", "vocab")},
    }
    if options.out:
        record(options.out, {"model": shape, "load_of_the_machine": os.getloadavg(), **figures})


def measured(model: Model, folders: list[str], names: list[str], clients: int, seconds: float) -> dict[str, Any]:
    long_name = names[1] if len(names) > 1 else None
    page = timings(lambda: serving(*folders), names[0], long_name, LONG, model)
    print("page:", page)
    with serving(*folders) as server:
        asked = crowd(server.address, names[0], model, clients, seconds)
        print("crowd:", asked)
        sizes = largest_answers(server.address, names[0], long_name, longest_text(model, model.config.context or 512))
    print("largest answers, MB:", sizes)
    held = {
        "first_view_s": page["first_view_s"],
        "new_trace_s": page["new_trace_s"]["worst"],
        "largest_mb": max(sizes.values()),
    }
    if long_name is not None:
        held["zoom_s"] = page["zoom_s"]["worst"]
    verdict = {
        name: {"measured": value, "target": TARGETS[name], "holds": value < TARGETS[name]}
        for name, value in held.items()
    }
    for name, one in verdict.items():
        print(
            f"  {name:14} {one['measured']:7.3f} of {one['target']:.1f}  {'holds' if one['holds'] else 'DOES NOT HOLD'}"
        )
    return {"page": page, "crowd": asked, "largest_answers_mb": sizes, "verdict": verdict}


if __name__ == "__main__":
    main()
