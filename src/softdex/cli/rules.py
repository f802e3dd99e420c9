"""Options for which items may come back, shared by the commands that recommend."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from softdex.cli.arguments import conditions
from softdex.errors import SoftdexError
from softdex.model.key_files import items_in


def _rule(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Rules")


@dataclass(frozen=True)
class RuleOptions:
    """Which items may come back; see `Retriever.recommend`."""

    where: Annotated[list[str] | None, _rule("Item column=value; repeat for more.")] = None
    at_most: Annotated[
        list[str] | None, _rule("Item column=n: at most n items per value; repeat for more.")
    ] = None
    allow: Annotated[list[str] | None, _rule("Only this item; repeat for more.")] = None
    allow_file: Annotated[
        Path | None, _rule("Table of the only items; with a user column, per user.")
    ] = None
    deny: Annotated[list[str] | None, _rule("Never this item; repeat for more.")] = None
    deny_file: Annotated[
        Path | None, _rule("Table of items to leave out; with a user column, per user.")
    ] = None

    def given(self) -> dict[str, Any]:
        """Return them as arguments of `Retriever.recommend`."""
        return {
            "where": conditions(self.where) if self.where else None,
            "at_most": _limits(self.at_most or []),
            "allow": _items(self.allow, self.allow_file, "--allow"),
            "deny": _items(self.deny, self.deny_file, "--deny"),
        }


def _limits(given: list[str]) -> dict[str, int]:
    """Parse column=number limits."""
    found = {}
    for limit in given:
        name, _, text = limit.rpartition("=")
        if not name or not re.fullmatch(r"[1-9]\d{0,8}", text, re.ASCII):
            raise SoftdexError(
                f"--at-most: expected column=number with a number of at least 1, got {limit!r}."
            )
        found[name] = int(text)
    return found


def _items(keys: list[str] | None, file: Path | None, flag: str) -> Any:
    if file and keys:
        raise SoftdexError(f"{flag}: expected {flag} or {flag}-file, not both.")
    return items_in(file) if file else keys or None
