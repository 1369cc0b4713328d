"""`pellucid explore [MODEL ...]`: the explorer in a browser."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from socket import socket
from typing import TYPE_CHECKING, Annotated

import typer

from pellucid.cli.options import Device, Dtype, DtypeName, open_model

if TYPE_CHECKING:
    from pellucid.pretrained.facade import Model
    from pellucid.web.shelf import Source

WORKED_EXAMPLE = "worked-example"
PORT = 8765


def explore(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Bundled names, folders or hub ids.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help=f"{PORT}, or any free one if that is taken.", min=0, max=65535)
    ] = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    host: Annotated[str, typer.Option(help="Listen here; other machines need --token.")] = "127.0.0.1",
    token: Annotated[str | None, typer.Option(help="A secret that visitors must know.")] = None,
    adapters: Annotated[
        list[str] | None,
        typer.Option("--adapter", metavar="FOLDER", help="An adapter of the first model, beside it; may be repeated."),
    ] = None,
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Open the explorer: a page on this machine that shows every number."""
    from pellucid.web.security import Address
    from pellucid.web.server import create_app, listen, serve
    from pellucid.web.shelf import titles

    Address(host, 1, token)  # refused before anything listens
    named = titles(_sources(models or [], adapters or []))
    for source in named.values():
        _check(source)
    bound = _bound(listen, host, port)
    address = Address(host, bound.getsockname()[1], token)
    page = _page(address.host, address.port, token)

    def started() -> None:
        typer.echo(f"Pellucid is at {page} (Ctrl-C stops it)", err=True)
        if browser:
            _open(page)

    opened = {name: partial(_model, source, device, dtype) for name, source in named.items()}
    serve(create_app(opened, address, started=started), bound)


def _sources(models: list[str], adapters: list[str]) -> list[Source]:
    """The first model, its adapters, the others, all bundled ones unless named; the worked example is always there."""
    from pellucid.errors import InputError
    from pellucid.pretrained.bundled import DESCRIPTIONS
    from pellucid.web.shelf import Source

    if adapters and not models:
        raise InputError(
            "--adapter is put on the first model: name that one too, as in: explore MODEL --adapter FOLDER"
        )
    bases = [*(models or DESCRIPTIONS), WORKED_EXAMPLE]
    return [Source(bases[0]), *(Source(bases[0], adapter) for adapter in adapters), *map(Source, bases[1:])]


def _check(source: Source) -> None:
    """A name that cannot be opened is said now, not when somebody clicks on it."""
    from pellucid.cli.options import is_adapter_folder
    from pellucid.errors import InputError
    from pellucid.pretrained.load import find_folder

    if source.adapter is not None and not is_adapter_folder(source.adapter):
        raise InputError(f"--adapter {source.adapter} is no folder of an adapter: it has no adapter.json")
    if source.adapter is not None and is_adapter_folder(source.model):
        raise InputError(
            f"{source.model} is an adapter itself: name the model that both adapt, and give --adapter twice"
        )
    if not is_adapter_folder(source.model):
        find_folder(source.model)


def _model(source: Source, device: str, dtype: DtypeName | None) -> Model:
    if source.model == WORKED_EXAMPLE and source.adapter is None:
        from pellucid.lens.worked_example import worked_example

        return worked_example()
    return open_model(source.model, device, dtype, adapter=source.adapter)


def _bound(listen: Callable[[str, int], socket], host: str, port: int | None) -> socket:
    from pellucid.errors import InputError

    if port is not None:
        return listen(host, port)
    try:
        return listen(host, PORT)
    except InputError:
        return listen(host, 0)


def _page(host: str, port: int, token: str | None) -> str:
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    return f"http://{shown}:{port}/" + (f"?token={token}" if token else "")


def _open(page: str) -> None:
    """In a thread: some systems wait until the browser is up."""
    import threading
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(page,), daemon=True).start()
