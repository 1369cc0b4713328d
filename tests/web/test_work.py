"""One call at a time: queue, cancellation, time limits, and no crossed answers."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
import uvicorn
from starlette.requests import Request

from pellucid.web.refusal import Refused
from pellucid.web.security import Address, Limits
from pellucid.web.server import create_app, listen
from pellucid.web.work import Cancelled, Job, Jobs, Lane, watched_modules
from tests.web.serving import client, random_model, shelf, unpack

pytestmark = pytest.mark.slow  # real servers and clocks: unsteady on a machine that is busy


def request(gone: asyncio.Event | None = None) -> Request:
    """A request whose client goes away when the event is set."""

    async def receive() -> dict[str, Any]:
        await (gone or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    return Request({"type": "http", "headers": []}, receive)


def test_calls_run_one_after_the_other() -> None:
    async def run() -> list[int]:
        lane, running, most = Lane(8, 5.0), 0, []

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
        lane, hold = Lane(2, 5.0), threading.Event()
        tasks = [asyncio.create_task(lane.run(request(), lambda job: hold.wait(5), Job())) for _ in range(5)]
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
        lane, gone, counted = Lane(2, 5.0), asyncio.Event(), []

        def long(job: Job) -> None:
            for step in range(1000):
                job.check()
                counted.append(step)
                time.sleep(0.005)

        task = asyncio.create_task(lane.run(request(gone), long, Job()))
        queued = asyncio.create_task(lane.run(request(gone), lambda job: counted.append(-1), Job()))
        await asyncio.sleep(0.05)
        gone.set()
        for one in (task, queued):
            with pytest.raises(Cancelled):
                await one
        after = await lane.run(request(), lambda job: len(counted), Job())
        assert -1 not in counted
        lane.close()
        return after, lane.inside

    after, inside = asyncio.run(run())
    assert 0 < after < 200
    assert inside == 0


def test_a_call_that_takes_too_long_is_stopped() -> None:
    async def run() -> None:
        lane, job = Lane(2, 0.05), Job()
        with pytest.raises(Refused) as refused:
            await lane.run(request(), lambda own: time.sleep(0.15), job)
        assert refused.value.status == 504
        assert job.gone.is_set()
        lane.close()

    asyncio.run(run())


def test_a_model_that_runs_stops_at_its_next_module() -> None:
    model, job = random_model(), Job()
    ids = torch.ones(1, 4, dtype=torch.long)

    async def run() -> None:
        lane = Lane(1, 5.0)
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
def address():
    """A real server, for clients that go away and clients in a crowd."""
    bound = listen("127.0.0.1", 0)
    port = bound.getsockname()[1]
    app = create_app(shelf(), Address(port=port), Limits(waiting=4, per_second=1e6, burst=10**6))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}", app
    server.should_exit = True
    thread.join(5)


def test_a_closed_connection_frees_the_model(address: Any) -> None:
    base, app = address
    body = {"model": "ids", "text": "1 2 3 4 5", "tokens": 20_000}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base}/api/map", json=body, timeout=0.3, headers={"X-Job": "a-map-of-mine"})
    started = time.perf_counter()
    assert httpx.post(f"{base}/api/model", json={"model": "ids"}, timeout=20).status_code == 200
    assert time.perf_counter() - started < 3
    assert app.state.shelf["ids"].lane.inside == 0
    assert app.state.jobs.by_name == {}


def test_a_closed_connection_frees_both_models(address: Any) -> None:
    base, app = address
    body = {"model": "words", "other": "words + tuned", "text": "the cat sat on " * 64}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{base}/api/compare/heads", json=body, timeout=0.1, headers={"X-Job": "two-of-mine"})
    started = time.perf_counter()
    for name in ("words", "words + tuned"):
        assert httpx.post(f"{base}/api/model", json={"model": name}, timeout=20).status_code == 200
        assert app.state.shelf[name].lane.inside == 0
    assert time.perf_counter() - started < 3
    assert app.state.jobs.by_name == {}


def test_a_crowd_gets_its_own_answers(address: Any) -> None:
    base, app = address
    lengths = list(range(1, 17))

    def ask(length: int) -> list[tuple[int, int]]:
        seen = []
        with httpx.Client(base_url=base, timeout=20) as own:
            for turn in range(8):
                model = ("ids", "words")[turn % 2]
                text = " ".join(["1" if model == "ids" else "cat"] * length)
                answer = own.post("/api/attention", json={"model": model, "text": text})
                if answer.status_code != 429:
                    seen.append((length, len(unpack(answer)[0]["tokens"])))
                else:
                    assert answer.headers["retry-after"]
        return seen

    with ThreadPoolExecutor(16) as crowd:
        found = [pair for pairs in crowd.map(ask, lengths) for pair in pairs]
    assert len(found) > 16
    assert all(asked == answered for asked, answered in found)
    assert {book.lane.inside for book in app.state.shelf.books.values()} == {0}


def test_a_crowd_larger_than_the_queue_is_told_to_wait(address: Any) -> None:
    base, app = address
    hold = threading.Event()
    lane = app.state.shelf["t5"].lane
    lane.thread.submit(hold.wait, 10)
    body = {"model": "t5", "text": "1 2 3"}
    with ThreadPoolExecutor(12) as crowd:
        waiting = [crowd.submit(httpx.post, f"{base}/api/trace", json=body, timeout=20) for _ in range(12)]
        deadline = time.perf_counter() + 5
        while sum(one.done() for one in waiting) < 7 and time.perf_counter() < deadline:
            time.sleep(0.01)
        hold.set()
        codes = sorted(one.result().status_code for one in waiting)
    assert codes == [200] * 5 + [429] * 7
