"""A server in this process, with the worked example and small random models."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import uvicorn
from httpx import Response
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from pellucid import lora
from pellucid.lens.worked_example import worked_example
from pellucid.lora import Lora
from pellucid.model import config as c
from pellucid.model.transformer import Transformer
from pellucid.pretrained.facade import Model
from pellucid.pretrained.tokenizer import FastTokenizer
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app, listen
from pellucid.web.shelf import Shelf
from pellucid.web.work import Jobs

with warnings.catch_warnings():
    # It would rather have httpx's successor, which nothing else here needs.
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

PORT = 8000
BASE = f"http://127.0.0.1:{PORT}"
WORDS = "the cat sat on mat because it was tired and a dog ran over green hill to see red sun . , The"


def config(**changes: Any) -> c.ModelConfig:
    """A decoder with rotary positions, which has no longest text."""
    own: dict[str, Any] = {
        "vocab": len(WORDS.split()) + 1,
        "width": 32,
        "heads": 4,
        "decoder_blocks": 3,
        "feed_forward": c.Plain(hidden=64, activation="gelu"),
        "position": c.Rotary(),
    }
    return c.ModelConfig(**(own | changes))


def random_model(**changes: Any) -> Model:
    own = config(**changes)
    return Model(own, Transformer(own, seed=0).eval())


def with_words(model: Model) -> Model:
    vocab = {word: place for place, word in enumerate(["[UNK]", *WORDS.split()])}
    pipeline = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    return replace(model, tokenizer=FastTokenizer(pipeline))


def tuned() -> Model:
    """The model `words` with an adapter of rank 2 on its queries and values."""
    model = with_words(random_model())
    lora.add(model, Lora(rank=2, alpha=4, targets=("to_query", "to_value")), seed=0)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in model.network.parameters():
            if each.requires_grad:
                each.copy_(torch.randn(each.shape, generator=draw) * 0.2)
    return model


def shelf() -> dict[str, Callable[[], Model]]:
    return {
        "worked-example": worked_example,
        "words": lambda: with_words(random_model()),
        "words + tuned": tuned,
        "ids": lambda: random_model(),
        "pair": lambda: random_model(encoder_blocks=2, decoder_blocks=2, position=c.Sinusoidal()),
        "encoder": lambda: random_model(encoder_blocks=2, decoder_blocks=0, position=c.Learned(), context=64),
        "t5": lambda: random_model(position=c.T5Buckets()),
        "alibi": lambda: random_model(position=c.ALiBi(), heads=4),
        "linear": lambda: random_model(attention=c.Linear(features=c.EluPlusOne())),
    }


def client(limits: Limits = Limits(per_second=1e6, burst=10**6), address: Address | None = None) -> TestClient:
    app = create_app(shelf(), address or Address(port=PORT), limits)
    return TestClient(app, base_url=BASE)


@dataclass(frozen=True)
class Served:
    port: int
    shelf: Shelf
    jobs: Jobs

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def served(models: Mapping[str, Callable[[], Model]], limits: Limits) -> Iterator[Served]:
    """A real server, in a thread."""
    bound = listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    app = create_app(models, Address(port=port), limits)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield Served(port, app.state.shelf, app.state.jobs)
    server.should_exit = True
    thread.join(5)


def unpack(response: Response) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The naive twin of `payloads.pack`, and of the page's own reader."""
    assert response.status_code == 200, response.text
    data = response.content
    start = 4 + int.from_bytes(data[:4], "little")
    head = json.loads(data[4:start])
    arrays = {}
    for name, spec in head.pop("arrays").items():
        count = int(np.prod(spec["shape"]))
        found = np.frombuffer(data, spec["dtype"], count, start + spec["offset"])
        arrays[name] = found.reshape(spec["shape"])
    return head, arrays
