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
    device: Device = "cpu",
    dtype: Dtype = None,
) -> None:
    """Open the explorer: a page on this machine that shows every number."""
    from pellucid.web.security import Address
    from pellucid.web.server import create_app, listen, serve
    from pellucid.web.shelf import titles

    Address(host, 1, token)  # refused before anything listens
    sources = list(models or [])
    if WORKED_EXAMPLE not in sources:
        sources.append(WORKED_EXAMPLE)
    named = titles(sources)
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


def _check(source: str) -> None:
    """A name that cannot be opened is said now, not when somebody clicks on it."""
    from pellucid.cli.options import is_adapter_folder
    from pellucid.pretrained.load import find_folder

    if not is_adapter_folder(source):
        find_folder(source)


def _model(source: str, device: str, dtype: DtypeName | None) -> Model:
    if source == WORKED_EXAMPLE:
        from pellucid.lens.worked_example import worked_example

        return worked_example()
    return open_model(source, device, dtype)


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
