"""The server: its routes, its files, and how it starts."""

from __future__ import annotations

import mimetypes
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Annotated, Any

import uvicorn
from fastapi import FastAPI, Path, Request, Response

import pellucid
from pellucid.errors import InputError
from pellucid.figures.vega import fitting, vega, vega_version
from pellucid.pretrained.facade import Model
from pellucid.report.heat import colours
from pellucid.web import refusal
from pellucid.web.asking import AskedModel, on_model
from pellucid.web.security import Address, Gate, Limits
from pellucid.web.shelf import Shelf
from pellucid.web.views import VIEWS
from pellucid.web.work import Cancelled, Jobs, watched_modules

Started = Callable[[], None]
Served = tuple[bytes, dict[str, str]]
SCRIPT = {"Content-Type": "text/javascript; charset=utf-8"}


def create_app(
    models: Mapping[str, Callable[[], Model]],
    address: Address,
    limits: Limits = Limits(),
    started: Started = lambda: None,
) -> FastAPI:
    """models: what the page may choose from, each by what opens it; the first is chosen when the page opens."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with watched_modules():
            first = next(iter(app.state.shelf.books.values()))
            # The first model is opened while the browser starts.
            first.lane.thread.submit(lambda: first.formed)
            started()
            yield
            app.state.jobs.cancel_all()
            app.state.shelf.close()

    app = FastAPI(title="Pellucid", version=pellucid.__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
                  openapi_url="/api/openapi.json")  # fmt: skip
    app.state.shelf, app.state.jobs = Shelf(models, limits), Jobs()
    app.add_middleware(Gate, address=address, limits=limits)
    refusal.install(app)
    app.add_exception_handler(Cancelled, _cancelled)
    for router in VIEWS.values():
        app.include_router(router)
    _add_start(app)
    _add_files(app)
    return app


async def _cancelled(request: Request, error: Exception) -> Response:
    return refusal.answer(499, "cancelled", "the client went away")


def _add_start(app: FastAPI) -> None:
    @app.get("/api/start")
    async def start() -> dict[str, Any]:
        """What the page needs to draw itself."""
        return {
            "version": pellucid.__version__,
            "models": app.state.shelf.list(),
            "views": list(VIEWS),
            "palettes": {name: colours(name) for name in ("one", "two")},
        }

    @app.post("/api/model")
    async def model(asked: AskedModel, request: Request) -> dict[str, Any]:
        """What a model is; it is opened if it was not yet."""
        return await on_model(request, asked.model, lambda book, job: book.describe())

    @app.get("/api/jobs/{name}")
    async def job(name: Annotated[str, Path(min_length=8, max_length=64)]) -> dict[str, Any]:
        """How far the call is that was sent with this name."""
        found = app.state.jobs.by_name.get(name)
        if found is None:
            return {"state": "over", "done": 0, "total": 0}
        return {"state": found.state, "done": found.done, "total": found.total}


def _add_files(app: FastAPI) -> None:
    """The page's files are read once: a path in a request is a key, never a place on the disk."""
    served = dict(_files(files("pellucid.web").joinpath("static"), ""))
    served["fit.js"] = fitting().encode(), SCRIPT

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        content, headers = served["index.html"]
        return Response(content, headers=headers)

    @app.get("/static/vega.js", include_in_schema=False)
    def charts(request: Request) -> Response:
        """Made when a chart first asks for it; a browser that has it asks only whether it is still the same."""
        headers = SCRIPT | {"ETag": f'"{vega_version()}"'}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(vega("export default vegaEmbed;"), headers=headers)

    @app.get("/static/{name:path}", include_in_schema=False)
    async def file(name: str) -> Response:
        if name not in served:
            return refusal.answer(404, "no_file", "there is no such file")
        content, headers = served[name]
        return Response(content, headers=headers)


def _files(folder: Traversable, prefix: str) -> list[tuple[str, Served]]:
    found: list[tuple[str, Served]] = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _files(entry, f"{prefix}{entry.name}/")
        else:
            kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
            headers = SCRIPT if entry.name.endswith(".js") else {"Content-Type": f"{kind}; charset=utf-8"}
            found.append((prefix + entry.name, (entry.read_bytes(), headers)))
    return found


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound already, so that the port is known before the server runs."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise InputError(f"cannot listen on {host}:{port}: {error.strerror}; try another --port") from None
    bound.listen(128)
    return bound


def serve(app: FastAPI, bound: socket.socket) -> None:
    """Until Ctrl-C."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=256,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[bound])
