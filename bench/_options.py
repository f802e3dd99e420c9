"""The options of every benchmark: --help, --tiny, and mistakes in one line with exit code 2."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import softdex as sdx
from _harness import TINY, scratch

README = Path(__file__).with_name("README.md")


class Parser(argparse.ArgumentParser):
    """Options of a script. A mistake ends in one line and exit code 2."""

    own: Mapping[str, Any] | None = None

    def recipe_options(self, own: Mapping[str, Any]) -> None:
        """Take NAME=VALUE: options of a recipe, and of the script itself.

        Args:
            own: options of the script with their defaults, `recipe` among them. Parsed, they are
                in `own`, and those of the recipe in `options`.
        """
        self.own = own
        text = "option of the recipe, VALUE as JSON or text; the script's own: " + ", ".join(own)
        self.add_argument(
            "options", nargs="*", type=_pair, default=[], metavar="NAME=VALUE", help=text
        )

    def parse(self, words: Sequence[str] | None = None) -> argparse.Namespace:
        """Parse a command line; options of a recipe are checked, too."""
        given = self.parse_intermixed_args(words)
        if self.own is not None:
            pairs = dict(given.options)
            given.own = {name: pairs.pop(name, default) for name, default in self.own.items()}
            try:
                given.options = _checked(given.own["recipe"], pairs)
            except sdx.SoftdexError as error:
                self.error(str(error))
        return given

    def error(self, message: str) -> NoReturn:
        """End with one line on standard error."""
        self.exit(2, f"{self.prog}: {' '.join(message.split())} (--help explains)\n")


def parser(path: str, doc: str | None) -> Parser:
    """The options of the script at `path`: its docstring is the help."""
    name = Path(path).name
    minutes, machine = row(name)
    made = Parser(
        prog=f"bench/{name}",
        description=doc,
        epilog=f"Minutes: {minutes}, on {machine}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "--tiny", action="store_true", help="tiny sizes and synthetic data: shows that it runs"
    )
    return made


def row(name: str) -> tuple[str, str]:
    """Minutes and machine of a script, as bench/README.md states them."""
    for line in README.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == f"`{name}`":
            return cells[2], cells[3]
    raise SystemExit(f"bench/README.md has no row for {name}")


def run(made: Parser, main: Callable[[argparse.Namespace], None]) -> None:
    """Run a script; what the library refuses is a mistake of the command line, too."""
    given = made.parse()
    for value in vars(given).values():
        if isinstance(value, Path) and not value.parent.is_dir():
            made.error(f"there is no folder {value.parent}")
    if TINY:
        sdx.set_threads(1)  # as quick, and other processes do not matter
    try:
        main(given)
    except sdx.SoftdexError as error:
        made.error(str(error))


def unless_tiny(default: Any) -> dict[str, Any]:
    """What makes a required argument optional with --tiny."""
    return {"nargs": "?", "default": default} if TINY else {}


def written(name: str) -> dict[str, Any]:
    """The same for a file that is written: with --tiny in a temporary folder."""
    return {"type": Path} | unless_tiny(scratch() / name if TINY else None)


def size(text: str) -> int:
    """A whole number above 0, written 100000 or 1e5."""
    try:
        value = float(text)
        if value >= 1 and value == int(value):
            return int(value)
    except (ValueError, OverflowError):
        pass
    raise argparse.ArgumentTypeError(f"expected a whole number such as 1000 or 1e6, got {text!r}")


def _checked(recipe: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options, unless the recipe refuses them; a tiny run has one epoch."""
    sdx.recipes.checked(recipe, options)
    if TINY and "epochs" in sdx.recipes.choices(recipe):
        return {"epochs": 1} | options
    return options


def _pair(text: str) -> tuple[str, Any]:
    """The name and the value of NAME=VALUE."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
