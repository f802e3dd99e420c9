"""The app: one command per file; a user's mistake is one line, never a traceback."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import signal
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from softdex import __version__
from softdex.errors import SoftdexError, ToldElsewhere
from softdex.messages import volume

COMMANDS = (
    "fit", "evaluate", "recommend", "similar", "explain", "look", "serve", "events", "export",
    "compare", "plan", "recipes", "doctor", "demo",
)  # fmt: skip
FLAGS = (
    "user", "item", "time", "rating", "weight", "items", "item_columns", "users", "bad_rows",
    "separator", "encoding",
)  # fmt: skip
Version = Annotated[bool, typer.Option("--version", help="Print the version.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print results only.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print a line per epoch too.")]
Threads = Annotated[int | None, typer.Option(help="Number of CPU threads to use.")]


class Commands(TyperGroup):
    """Commands that are imported when they are called; `--help` only reads their docstrings."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.commands: dict[str, Any] = dict.fromkeys(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command as `--help` lists it."""
        return TyperCommand(cmd_name, help=summary(cmd_name)) if cmd_name in COMMANDS else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that the arguments call, and the arguments that it gets."""
        name, _, rest = super().resolve_command(ctx, args)
        return name, None if name is None else load(name), rest


app = typer.Typer(
    name="softdex", cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False
)


@app.callback(invoke_without_command=True)
def start(
    ctx: typer.Context,
    version: Version = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    threads: Threads = None,
) -> None:
    """Recommender retrieval: read a log, train, evaluate honestly, recommend."""
    if version:
        typer.echo(__version__)
        raise typer.Exit
    use_threads(threads)
    ctx.with_resource(volume(quiet=quiet, verbose=verbose))


def load(name: str) -> Any:
    """Import a command; it takes the options of the app too."""
    command = getattr(import_module(f"softdex.cli.{name}"), name)
    one = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    one.command(name)(everywhere(command))
    return typer.main.get_command(one)


def everywhere(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options --quiet, --verbose and --threads of the app."""

    def called(
        *, quiet: Quiet = False, verbose: Verbose = False, threads: Threads = None, **given: Any
    ) -> None:
        use_threads(threads)
        with volume(quiet=quiet, verbose=verbose):
            command(**given)

    *added, _ = inspect.signature(called, eval_str=True).parameters.values()
    own = inspect.signature(command, eval_str=True)
    parameters = [p.replace(kind=p.KEYWORD_ONLY) for p in own.parameters.values()] + added
    functools.update_wrapper(called, command)
    called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {p.name: p.annotation for p in parameters}
    return called


def summary(name: str) -> str:
    """The first line of a command's docstring, read without importing the command."""
    tree = ast.parse(Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8"))
    functions = (node for node in tree.body if isinstance(node, ast.FunctionDef))
    text = next(ast.get_docstring(function) for function in functions if function.name == name)
    return (text or "").partition("\n")[0]


def use_threads(n: int | None) -> None:
    """Set the number of threads, if one was given."""
    if n is not None:
        from softdex.machine import set_threads  # loads torch

        set_threads(n)


def as_flags(text: str) -> str:
    """Return an error of the library with the arguments of `read` as the flags of the commands.

    Example:
        >>> as_flags("Name them: read(path, user='...'). Or drop rows with bad_rows='drop'.")
        "Name them: --user '...'. Or drop rows with --bad-rows 'drop'."
    """
    text = re.sub(r"\b(order|column)='(\w+)'", r"-s \1=\2", text)  # of splits
    text = re.sub(r"\bread\((?:path, )?(\w+=[^()]*)\)", r"\1", text)
    return re.sub(rf"\b({'|'.join(FLAGS)})=", lambda m: f"--{m[1].replace('_', '-')} ", text)


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2.

    Ctrl-C is exit code 130. SIGTERM ends a command in the same way, with 143.
    """
    terminated = False

    def terminate(number: int, frame: object) -> None:
        nonlocal terminated
        terminated = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names of files may be no Unicode
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        app(prog_name="softdex")  # also as python -m softdex
    except (SoftdexError, MemoryError, OSError) as error:
        from rich.console import Console  # takes a while

        if isinstance(error, ToldElsewhere):
            sys.exit(2)
        text = as_flags(str(error)) or type(error).__name__
        Console(stderr=True, highlight=False, soft_wrap=True).print(
            f"error: {text}", style="red", markup=False
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)
        if terminated:
            sys.exit(143)
