"""The app: one command per file; a user's mistake is one line, never a traceback."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from rich.console import Console

from softdex import __version__
from softdex.cli.compare import compare
from softdex.cli.demo import demo
from softdex.cli.doctor import doctor
from softdex.cli.evaluate import evaluate
from softdex.cli.explain import explain
from softdex.cli.export import export
from softdex.cli.fit import fit
from softdex.cli.recipes import recipes
from softdex.cli.recommend import recommend
from softdex.cli.similar import similar
from softdex.errors import SoftdexError
from softdex.machine import set_threads

COMMANDS = (
    fit, evaluate, recommend, similar, explain, export, compare, recipes, doctor, demo,
)  # fmt: skip
app = typer.Typer(name="softdex", no_args_is_help=True, pretty_exceptions_enable=False)
for command in COMMANDS:
    app.command()(command)


@app.callback(invoke_without_command=True)
def start(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print results only.")] = False,
    threads: Annotated[int | None, typer.Option(help="Number of CPU threads to use.")] = None,
) -> None:
    """Recommender retrieval: read a log, train, evaluate honestly, recommend."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    if threads is not None:
        set_threads(threads)
    if quiet:
        os.environ["SOFTDEX_QUIET"] = "1"


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2, Ctrl-C is 130."""
    try:
        app()
    except (SoftdexError, MemoryError, OSError) as error:
        text = str(error) or type(error).__name__
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {text}", style="red", markup=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
