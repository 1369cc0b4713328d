"""One model call at a time per model: a short queue, and calls that end when nobody waits for their answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from starlette.requests import Request
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from pellucid.model.block import Block
from pellucid.web.refusal import Refused

Result = TypeVar("Result")
State = Literal["waiting", "running", "over"]
JOB_HEADER = "x-job"
PATIENCE = 0.05  # seconds between two looks at whether a call that waits for a second lane is still wanted


class Cancelled(Exception):  # noqa: N818 (nobody waits for the answer: not an error)
    pass


@dataclass
class Job:
    """A call: how far it is, and whether anybody still waits for it. The thread that runs it asks `check` often."""

    state: State = "waiting"
    done: int = 0
    total: int = 0
    gone: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.gone.is_set():
            raise Cancelled

    def expect(self, total: int) -> None:
        """So many steps will be reported."""
        self.done, self.total = 0, total

    def report(self, done: int, total: int, label: str = "") -> None:
        """How far the library is, as its own `progress` tells it."""
        self.check()
        self.done, self.total = done, total

    def advance(self) -> None:
        self.check()
        self.done = min(self.done + 1, self.total)


class Lane:
    """The queue of one model: a thread, and `waiting` places before it."""

    def __init__(self, waiting: int, seconds: float) -> None:
        self.waiting, self.seconds = waiting, seconds
        self.inside, self.counting = 0, threading.Lock()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="model")

    async def run(self, request: Request, call: Callable[[Job], Result], job: Job) -> Result:
        """The result of a call; the call ends early if the client goes away or the time is over."""
        return await _while_awaited(request, self._submit(call, job), job, self.seconds)

    def run_within(self, call: Callable[[Job], Result], job: Job) -> Result:
        """The result of a call that needs this lane too, in the thread of another, which stays taken until it ends.

        Whoever takes several lanes takes them in one order, that of their names: then none waits for itself.
        """
        job.state = "waiting"
        future = self._submit(call, job)
        while not future.done():
            if job.gone.is_set() and future.cancel():
                raise Cancelled
            wait([future], timeout=PATIENCE)
        return future.result()

    def _submit(self, call: Callable[[Job], Result], job: Job) -> Future[Result]:
        if self.inside > self.waiting:
            raise Refused(429, "busy", f"{self.inside} calls of this model wait already: ask again in a moment")
        self._count(1)
        future = self.thread.submit(_run, job, call)
        future.add_done_callback(lambda _: self._count(-1))
        return future

    def _count(self, more: int) -> None:
        with self.counting:
            self.inside += more

    def close(self) -> None:
        self.thread.shutdown(wait=False, cancel_futures=True)


class Jobs:
    """The jobs under way by the name that their page gave them: a page asks how far its own is."""

    def __init__(self) -> None:
        self.by_name: dict[str, Job] = {}

    @contextmanager
    def named(self, name: str | None) -> Iterator[Job]:
        job = Job()
        if name is None or not (8 <= len(name) <= 64) or name in self.by_name:
            yield job
            return
        self.by_name[name] = job
        try:
            yield job
        finally:
            del self.by_name[name]

    def cancel_all(self) -> None:
        for job in self.by_name.values():
            job.gone.set()


async def _while_awaited(request: Request, future: Future[Result], job: Job, seconds: float) -> Result:
    result = asyncio.wrap_future(future)
    gone = asyncio.ensure_future(_disconnected(request))
    either: set[asyncio.Future[Any]] = {result, gone}
    try:
        done, _ = await asyncio.wait(either, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if result in done:
            return result.result()
        if gone in done:
            raise Cancelled
        raise Refused(504, "slow", f"the model took more than {seconds:g} s: try a shorter text", seconds=seconds)
    finally:
        job.gone.set()
        gone.cancel()
        # In the queue it never begins; under way it ends at its next check, and its lane stays taken until then.
        result.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


_here = threading.local()


def _run(job: Job, call: Callable[[Job], Result]) -> Result:
    job.check()
    job.state, _here.job = "running", job
    try:
        return call(job)
    finally:
        job.state, _here.job = "over", None


@contextmanager
def watched_modules() -> Iterator[None]:
    """While this is open, every module that a job's thread calls asks first whether the job is still wanted."""

    def before(module: nn.Module, inputs: Any) -> None:
        job: Job | None = getattr(_here, "job", None)
        if job is None:
            return
        if isinstance(module, Block):
            job.advance()
        else:
            job.check()

    hook = register_module_forward_pre_hook(before)
    try:
        yield
    finally:
        hook.remove()
