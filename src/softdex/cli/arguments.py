"""Parse the text of arguments: comma-separated words, name=value pairs, cut-offs."""

from __future__ import annotations

import csv
import json
import re
from typing import Any

from softdex.errors import SoftdexError


def words(text: str, flag: str) -> list[str]:
    """Parse comma-separated words; a word that holds a comma is quoted."""
    try:
        rows = list(csv.reader([text], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise SoftdexError(
            f"{flag}: expected comma-separated words, got {text!r} ({error})."
        ) from None
    return [word.strip() for row in rows for word in row if word.strip()]


def pairs(given: list[str] | None, flag: str) -> dict[str, Any]:
    """Parse name=value pairs."""
    found: dict[str, Any] = {}
    for pair in given or []:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise SoftdexError(f"{flag}: expected name=value, got {pair!r}.")
        found[name.strip().replace("-", "_")] = value(text)
    return found


def value(text: str) -> Any:
    """Parse a value: JSON, or as Python writes it (.5, True), else text."""
    if re.fullmatch(r"-?(\d+\.|\.\d+)(e-?\d+)?", text):
        return float(text)
    try:
        return json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
    except (ValueError, RecursionError):
        return text


def conditions(given: list[str]) -> dict[str, list[str]]:
    """Parse column=value conditions: the values per column."""
    wanted: dict[str, list[str]] = {}
    for condition in given:
        name, equals, text = condition.partition("=")
        if not equals:
            raise SoftdexError(f"--where: expected column=value, got {condition!r}.")
        wanted.setdefault(name, []).append(text)
    return wanted


def shard(text: str | None) -> tuple[int, int] | None:
    """Parse a shard, i/n."""
    if text is None:
        return None
    i, slash, n = text.partition("/")
    if not slash or not (i.isdecimal() and n.isdecimal() and int(i) < int(n)):
        raise SoftdexError(f"--shard: expected i/n, with i from 0 to n - 1, got {text!r}.")
    return int(i), int(n)


def cutoffs(text: str | None) -> list[int] | None:
    """Parse comma-separated cut-offs."""
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise SoftdexError(f"--k: expected comma-separated numbers, got {text!r}.") from None
