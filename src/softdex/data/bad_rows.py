"""Bad rows: find them, name each with its place in its file, and refuse or drop them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from softdex.data.delimited import explain
from softdex.data.numbers import nulls, numbers
from softdex.data.sources import Fetched, Source
from softdex.errors import DataError, counted

FIX = (
    "Correct the source, drop such rows with bad_rows='drop', or leave an optional column out, "
    "e.g. time=False."
)
NONE_LEFT = (
    "No good row is left. Is it the right file? An optional column can be left out, e.g. "
    "time=False."
)


def check(
    table: pa.Table, chosen: Mapping[str, str]
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Convert the numeric columns, and find the rows that cannot be used.

    Args:
        table: the columns that were read.
        chosen: the column of each role.

    Returns:
        values by role (time, rating, weight), and a mask of bad rows per problem.
    """
    values: dict[str, np.ndarray] = {}
    bad: dict[str, np.ndarray] = {}
    for role, name in chosen.items():
        absent = nulls(table[name])
        bad[f"no value in column {name!r}"] = absent
        if role in ("user", "item"):
            continue
        found, wrong = numbers(table[name], f"the {role} column {name!r}", dates=role == "time")
        if role != "time":
            with np.errstate(over="ignore"):
                found = found.astype(np.float32)
            wrong |= ~np.isfinite(found)
        if wrong.any():
            example = str(table[name][int(np.argmax(wrong))])[:30]
            kind = "a number or a date like the rest" if role == "time" else "a finite number"
            bad[f"column {name!r} is not {kind} (e.g. {example!r})"] = wrong
        if role == "weight":
            bad[f"negative weight in column {name!r}"] = (found < 0) & ~absent
        values[role] = found
    return values, {problem: mask for problem, mask in bad.items() if mask.any()}


def refuse_or_drop(
    source: Source, fetched: Fetched, bad: dict[str, np.ndarray], bad_rows: str, notes: list[str]
) -> np.ndarray:
    """Mask of the good rows of a table; an error if bad rows are refused or no row is good.

    Args:
        source: where the table came from.
        fetched: the table, with the place of each row and the lines that did not parse.
        bad: a mask of bad rows per problem.
        bad_rows: `error` or `drop`.
        notes: gets a note of what was dropped.
    """
    problems = {label: dict(found) for label, found in fetched.problems.items()}
    start = 0
    for label, lines in fetched.places or []:
        for problem, mask in bad.items():
            hit = lines[mask[start : start + len(lines)]].tolist()
            if hit:
                problems.setdefault(label, {})[problem] = hit
        start += len(lines)
    unit = source.unit
    said = "; ".join(f"{label}: {explain(p, unit)}" for label, p in problems.items())
    drop = np.logical_or.reduce([np.zeros(fetched.table.num_rows, bool), *bad.values()])
    if bad_rows == "error" or drop.all():
        raise DataError(f"read: {said}. {NONE_LEFT if drop.all() else FIX}")
    unparsed = sum(len(lines) for found in fetched.problems.values() for lines in found.values())
    notes.append(f"(dropped {unparsed + int(drop.sum()):,} bad {unit}s: {said})")
    return ~drop


def of_weight(weight: np.ndarray, label: str, column: str, notes: list[str]) -> np.ndarray:
    """Mask of the rows above weight 0; the rest count for nothing, and `notes` says how many."""
    good = weight > 0
    if len(good) and not good.any():
        raise DataError(
            f"read: every row of {label} has weight 0 in column {column!r}. weight=False counts "
            "each row as 1."
        )
    if not good.all():
        notes.append(f"({counted(int((~good).sum()), 'rows')} of weight 0 left out)")
    return good
