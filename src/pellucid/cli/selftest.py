"""`pellucid selftest MODEL`: what a user runs before trusting any number."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import typer

from pellucid.cli.options import Device, Dtype, Json, ModelArgument, Seed, open_model

if TYPE_CHECKING:
    from pellucid.pretrained.selftest import SelfTest


def selftest(
    model: ModelArgument, device: Device = "cpu", dtype: Dtype = None, seed: Seed = 0, as_json: Json = False
) -> None:
    """Prove on your own model that caching, batching, padding and the choice of kernel change nothing."""
    from pellucid.pretrained.selftest import selftest as run

    quiet_transformers()
    result = run(open_model(model, device, dtype), seed=seed)
    if as_json:
        print(json.dumps(result.to_json()))
    else:
        show(result)
    if not result.holds:
        raise typer.Exit(1)


def quiet_transformers() -> None:
    """Its progress bars and warnings would stand between the rows of the table."""
    if find_spec("transformers") is not None:
        logging: Any = import_module("transformers.utils.logging")
        logging.set_verbosity_error()
        logging.disable_progress_bar()


def show(result: SelfTest) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", "check", "largest error", "allowed", box=None, title=f"{result.model}, {result.dtype}")
    for check in result.checks:
        mark = "[yellow]-[/]" if check.error is None else "[green]holds[/]" if check.holds else "[red]FAILS[/]"
        error = check.note if check.error is None else f"{check.error:.1e}"
        table.add_row(mark, check.name, error, "" if check.error is None else f"{check.tolerance:.0e}")
    Console().print(table)
