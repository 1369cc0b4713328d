"""One call at a time: queue, cancellation, time limits, and no crossed answers."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from starlette.requests import Request

from pellucid.web.refusal import Refused
from pellucid.web.security import Limits
from pellucid.web.work import Cancelled, Job, Jobs, Lane, watched_modules
from tests.web.serving import WORDS, Served, client, random_model, served, shelf, unpack

# Nothing here is expected by a clock: this is only how long a broken server may hold a test up.
PATIENCE = 60.0
LONG = 20_000  # steps: more than any machine takes before a client is seen to go


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def request(gone: asyncio.Event | None = None) -> Request:
    """A request whose client goes away when the event is set."""

    async def receive() -> dict[str, Any]:
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


def test_calls_run_one_after_the_other() -> None:
    async def run() -> list[int]:
        lane, running, most = Lane(8, PATIENCE), 0, []

        def call(job: Job) -> None:
            nonlocal running
            running += 1
            most.append(running)
            time.sleep(0.01)
            running -= 1

        await asyncio.gather(*(lane.run(request(), call, Job()) for _ in range(6)))
        lane.close()
        return most

    assert asyncio.run(run()) == [1] * 6


def test_a_full_queue_says_so_and_empties() -> None:
    async def run() -> list[Any]:
        lane, hold = Lane(2, PATIENCE), threading.Event()
        tasks = [asyncio.create_task(lane.run(request(), lambda job: hold.wait(PATIENCE), Job())) for _ in range(5)]
        await asyncio.sleep(0.05)
        hold.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert lane.inside == 0
        lane.close()
        return found

    found = asyncio.run(run())
    assert found[:3] == [True] * 3
    assert all(isinstance(one, Refused) and one.status == 429 for one in found[3:])


def test_a_client_that_goes_away_ends_its_call() -> None:
    async def run() -> tuple[int, int]:
        lane, gone, begun, counted = Lane(2, PATIENCE), asyncio.Event(), threading.Event(), []

        def long(job: Job) -> None:
            begun.set()
            for step in range(LONG):
                job.check()
                counted.append(step)
                time.sleep(0.001)

        task = asyncio.create_task(lane.run(request(gone), long, Job()))
        queued = asyncio.create_task(lane.run(request(gone), lambda job: counted.append(-1), Job()))
        await asyncio.to_thread(begun.wait, PATIENCE)
        gone.set()
        for one in (task, queued):
            with pytest.raises(Cancelled):
                await one
        after = await lane.run(request(), lambda job: len(counted), Job())
        assert -1 not in counted
        lane.close()
        return after, lane.inside

    after, inside = asyncio.run(run())
    assert after < LONG
    assert inside == 0


def test_a_call_that_takes_too_long_is_stopped() -> None:
    async def run() -> None:
        lane, job = Lane(2, 0.05), Job()
        with pytest.raises(Refused) as refused:
            await lane.run(request(), lambda own: own.gone.wait(PATIENCE), job)
        assert refused.value.status == 504
        assert job.gone.is_set()
        lane.close()

    asyncio.run(run())


def test_a_model_that_runs_stops_at_its_next_module() -> None:
    model, job = random_model(), Job()
    ids = torch.ones(1, 4, dtype=torch.long)

    async def run() -> None:
        lane = Lane(1, PATIENCE)
        job.expect(3)
        await lane.run(request(), lambda own: model.logits(ids), job)
        assert (job.done, job.state) == (3, "over")
        stopped = Job()
        hook = model.network.decoder.blocks[1].register_forward_pre_hook(lambda *_: stopped.gone.set())
        with pytest.raises(Cancelled):
            await lane.run(request(), lambda own: model.logits(ids), stopped)
        hook.remove()
        lane.close()

    with watched_modules():
        asyncio.run(run())
    model.logits(ids)


def test_jobs_are_known_by_their_own_name() -> None:
    jobs = Jobs()
    with jobs.named("12345678") as job, jobs.named("12345678") as other, jobs.named(None):
        assert jobs.by_name == {"12345678": job}
        assert other is not job
    assert jobs.by_name == {}
    with client() as web:
        assert web.get("/api/jobs/none-such-job").json()["state"] == "over"
        assert web.get("/api/jobs/x").status_code == 422


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A real server, for clients that go away and clients in a crowd."""
    with served(shelf(), Limits(waiting=4, per_second=1e6, burst=10**6)) as running:
        yield running


def test_a_closed_connection_frees_the_model(server: Served) -> None:
    lane, jobs, name = server.shelf["ids"].lane, server.jobs, "a-map-of-mine"
    assert httpx.post(f"{server.address}/api/model", json={"model": "ids"}, timeout=PATIENCE).status_code == 200
    blocks = server.shelf["ids"].model.network.decoder.blocks
    inside, seen = threading.Event(), []

    def hold(*_: Any) -> None:
        seen.append(jobs.by_name[name])
        inside.set()
        assert seen[0].gone.wait(PATIENCE)

    hooks = [
        blocks[1].register_forward_pre_hook(hold),
        blocks[2].register_forward_pre_hook(lambda *_: seen.append("a block that nobody waits for")),
    ]
    open_request(server.port, "/api/map", {"model": "ids", "text": "1 2 3", "block": 2}, name, until_here=inside)
    answer = httpx.post(f"{server.address}/api/model", json={"model": "ids"}, timeout=PATIENCE)
    for hook in hooks:
        hook.remove()
    assert answer.status_code == 200
    assert [type(one) for one in seen] == [Job]
    assert lane.inside == 0
    assert jobs.by_name == {}


def test_a_closed_connection_frees_both_models(server: Served) -> None:
    names, job = ("words", "words + tuned"), "two-of-mine"
    for name in names:
        assert httpx.post(f"{server.address}/api/model", json={"model": name}, timeout=PATIENCE).status_code == 200
    inside = threading.Event()

    def hold(*_: Any) -> None:
        running = server.jobs.by_name[job]
        inside.set()
        assert running.gone.wait(PATIENCE)

    hook = server.shelf["words"].model.network.decoder.blocks[0].register_forward_pre_hook(hold)
    body = {"model": names[0], "other": names[1], "text": "the cat sat"}
    open_request(server.port, "/api/compare/heads", body, job, until_here=inside)
    until(lambda: all(server.shelf[name].lane.inside == 0 for name in names))
    hook.remove()
    for name in names:
        assert httpx.post(f"{server.address}/api/model", json={"model": name}, timeout=PATIENCE).status_code == 200
    assert server.jobs.by_name == {}


def open_request(port: int, path: str, body: dict[str, Any], job: str, until_here: threading.Event) -> None:
    """Ask, and hang up without waiting for the answer."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", port)) as line:
        line.sendall(f"{head}X-Job: {job}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        assert until_here.wait(PATIENCE)


def test_a_crowd_gets_its_own_answers(server: Served) -> None:
    """Whoever is told to wait asks again: in the end all have all of their answers."""
    words = WORDS.split()
    turns = range(8)

    def ask(own: int) -> list[tuple[list[str], list[str]]]:
        with httpx.Client(base_url=server.address, timeout=PATIENCE) as web:
            return [(tokens := spoken(own, turn), answered(web, turn, tokens)) for turn in turns]

    def spoken(own: int, turn: int) -> list[str]:
        return [str(1 + own)] * (1 + turn) if turn % 2 else [words[own]] * (1 + turn)

    with ThreadPoolExecutor(16) as crowd:
        found = [pair for pairs in crowd.map(ask, range(16)) for pair in pairs]
    assert len(found) == 16 * len(turns)
    assert all(asked == told for asked, told in found)
    assert {book.lane.inside for book in server.shelf.books.values()} == {0}


def answered(web: httpx.Client, turn: int, tokens: list[str]) -> list[str]:
    body = {"model": ("words", "ids")[turn % 2], "text": " ".join(tokens)}
    deadline = time.monotonic() + PATIENCE
    while (answer := web.post("/api/attention", json=body)).status_code == 429:
        assert answer.headers["retry-after"]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    told: list[str] = unpack(answer)[0]["tokens"]
    return told


def test_a_crowd_larger_than_the_queue_is_told_to_wait(server: Served) -> None:
    hold = threading.Event()
    server.shelf["t5"].lane.thread.submit(hold.wait, PATIENCE)
    body = {"model": "t5", "text": "1 2 3"}
    with ThreadPoolExecutor(12) as crowd:
        address = f"{server.address}/api/trace"
        waiting = [crowd.submit(httpx.post, address, json=body, timeout=2 * PATIENCE) for _ in range(12)]
        until(lambda: sum(one.done() for one in waiting) >= 7)
        hold.set()
        codes = sorted(one.result().status_code for one in waiting)
    assert codes == [200] * 5 + [429] * 7
