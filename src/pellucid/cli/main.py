"""The command `pellucid`: one file per subcommand, heavy imports inside it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

import pellucid
from pellucid.cli.exchange import export, import_
from pellucid.cli.explore import explore
from pellucid.cli.generate import generate
from pellucid.cli.kv_report import kv_report
from pellucid.cli.models import models
from pellucid.cli.selftest import selftest
from pellucid.cli.spectrum import spectrum
from pellucid.cli.trace import trace
from pellucid.cli.train import evaluate, finetune, train
from pellucid.errors import PellucidError

app = typer.Typer(
    name="pellucid",
    help="A Transformer you can see through.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> bool:
    if asked:
        typer.echo(f"pellucid {pellucid.__version__}")
        raise typer.Exit
    return asked


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """A Transformer you can see through."""


app.command()(models)
app.command()(trace)
app.command()(spectrum)
app.command()(generate)
app.command("kv-report")(kv_report)
app.command()(train)
app.command()(finetune)
app.command()(evaluate)
app.command()(explore)
app.command()(selftest)
app.command("import")(import_)
app.command()(export)


def main() -> None:
    """Run the command; a known error is one line on stderr and exit code 2."""
    try:
        app()
    except PellucidError as error:
        print(f"pellucid: {error}", file=sys.stderr)
        sys.exit(2)
