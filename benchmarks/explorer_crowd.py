"""Many clients at once: every answer is compared with what its own text gives when it is computed directly."""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import httpx
import torch

from pellucid.pretrained.facade import Model

TEXTS = 4  # of each client
TOKENS = (6, 24)
VIEWS = ("trace", "attention")
ALLOWED = 1e-4  # of a probability: float32 on another kernel


@dataclass(frozen=True)
class Question:
    text: str
    tokens: list[str]
    probabilities: list[float]


@dataclass
class Seen:
    told: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)


def crowd(address: str, name: str, model: Model, clients: int, seconds: float) -> dict[str, Any]:
    draw = random.Random(0)
    questions = [[question(model, draw) for _ in range(TEXTS)] for _ in range(clients)]
    seen = Seen()
    asyncio.run(_all(address, name, questions, seconds, seen))
    waits = sorted(seen.seconds)
    return {
        "clients": clients,
        "seconds": seconds,
        "answers": seen.told["right"],
        "crossed_or_wrong": seen.told["wrong"],
        "lost": seen.told["lost"],
        "faults": seen.told["fault"],
        "told_to_wait": seen.told["wait"],
        "least_answers_of_a_client": min(seen.told[f"client {place}"] for place in range(clients)),
        "answer_s": {"median": round(statistics.median(waits), 3), "p99": round(waits[int(0.99 * len(waits))], 3)},
    }


def question(model: Model, draw: random.Random) -> Question:
    """A text of its own, and the likeliest next tokens, computed without the server."""
    from pellucid.web.asking import words

    ids = [draw.randrange(1, model.config.vocab) for _ in range(draw.randint(*TOKENS))]
    text = " ".join(map(str, ids)) if model.tokenizer is None else model.decode(ids)
    ids = ids if model.tokenizer is None else model.encode(text)
    shares = torch.softmax(model.logits([ids])[0, -1].double(), -1).topk(5).values
    return Question(text, words(model, tuple(ids)), shares.tolist())


async def _all(address: str, name: str, questions: list[list[Question]], seconds: float, seen: Seen) -> None:
    until = time.perf_counter() + seconds
    limits = httpx.Limits(max_connections=len(questions))
    async with httpx.AsyncClient(base_url=address, timeout=300, limits=limits) as web:
        await asyncio.gather(*(_client(web, name, place, own, until, seen) for place, own in enumerate(questions)))


async def _client(web: httpx.AsyncClient, name: str, place: int, own: list[Question], until: float, seen: Seen) -> None:
    draw = random.Random(place)
    while time.perf_counter() < until:
        asked, view, started = draw.choice(own), draw.choice(VIEWS), time.perf_counter()
        try:
            while (
                answer := await web.post(f"api/{view}", json={"model": name, "text": asked.text})
            ).status_code == 429:
                seen.told["wait"] += 1
                await asyncio.sleep(draw.uniform(0.2, float(answer.headers["retry-after"])))
        except httpx.HTTPError:
            seen.told["lost"] += 1
            continue
        if answer.status_code != 200:
            seen.told["fault"] += 1
            continue
        seen.seconds.append(time.perf_counter() - started)
        seen.told["right" if _is_for(asked, answer.content) else "wrong"] += 1
        seen.told[f"client {place}"] += 1


def _is_for(asked: Question, content: bytes) -> bool:
    end = 4 + int.from_bytes(content[:4], "little")
    head = json.loads(content[4:end])
    near = all(
        abs(one["probability"] - share) <= ALLOWED
        for one, share in zip(head["prediction"], asked.probabilities, strict=False)
    )
    return head["tokens"] == asked.tokens and bool(head["prediction"]) and near
