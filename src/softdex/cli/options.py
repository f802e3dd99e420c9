"""Options that commands share, declared once, and the decorator that unfolds them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from softdex.data.split import SPLITS


def _data(help: str) -> Any:
    return typer.Option(help=help, rich_help_panel="Data")


def _split(name: str, *short: str, help: str) -> Any:
    return typer.Option(name, *short, help=help, rich_help_panel="Split")


Model = Annotated[Path, typer.Argument(help="Run folder or saved model.")]
Columns = Annotated[str, typer.Option(help="Item columns to show, comma-separated.")]
ListLength = Annotated[int, typer.Option("--k", "-k", help="Length of each list.")]
Cutoffs = Annotated[
    str | None, typer.Option("--k", "-k", help="Cut-offs of the metrics, e.g. 10,20,50.")
]
MaxMemory = Annotated[str | None, typer.Option(help="Memory limit of a ranking block: 2GB.")]
TableFile = Annotated[
    Path | None, typer.Option(help="File to write: .parquet, .arrow, .csv, .tsv or .jsonl.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel="Output")]


@dataclass(frozen=True)
class LogOptions:
    """A log, its split and its evaluation: a field named as in the config sets the same there."""

    source: Annotated[
        str | None,
        typer.Argument(help="Log: CSV, TSV, .inter, JSON lines, Parquet, zip, a folder or a glob."),
    ] = None
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="TOML file with the same arguments.")
    ] = None
    user: Annotated[str | None, _data("User column.")] = None
    item: Annotated[str | None, _data("Item column.")] = None
    time: Annotated[str | None, _data("Time column, or false: no time.")] = None
    rating: Annotated[str | None, _data("Rating column, or false.")] = None
    weight: Annotated[str | None, _data("Weight column, or false.")] = None
    items: Annotated[str | None, _data("Item table to join.")] = None
    item_columns: Annotated[
        str | None, _data("Columns of an item table without header, comma-separated.")
    ] = None
    users: Annotated[str | None, _data("User table to join.")] = None
    events: Annotated[
        str | None, _data("Event file of softdex serve, whose events join the log.")
    ] = None
    duplicates: Annotated[str | None, _data("Repeated pairs: keep, last or sum.")] = None
    bad_rows: Annotated[str | None, _data("Unreadable rows: error or drop.")] = None
    separator: Annotated[str | None, _data("Column separator of a text file.")] = None
    encoding: Annotated[str | None, _data("Encoding of a text file.")] = None
    min_rating: Annotated[float | None, _data("Keep rows with at least this rating.")] = None
    k_core: Annotated[int | None, _data("Drop users and items with fewer rows.")] = None
    split_name: Annotated[str | None, _split("--split", help=f"One of {', '.join(SPLITS)}.")] = None
    split_option: Annotated[
        list[str] | None,
        _split("--split-option", "-s", help="Split argument, name=value, e.g. -s seed=1."),
    ] = None
    k: Cutoffs = None
    max_memory: Annotated[
        str | None, typer.Option(help="Memory limit of a ranking block, in fit of training: 2GB.")
    ] = None


def unfold(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the fields of each dataclass among its parameters as parameters instead."""
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if not is_dataclass(parameter.annotation):
            parameters.append(parameter)
            continue
        group = groups[parameter.name] = parameter.annotation
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            parameter.replace(name=f.name, default=f.default, annotation=hints[f.name])
            for f in fields(group)
        ]

    @functools.wraps(command)
    def unfolded(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        command(**given)

    unfolded.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    unfolded.__annotations__ = {p.name: p.annotation for p in parameters}
    return unfolded
