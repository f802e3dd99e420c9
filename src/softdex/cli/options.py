"""Arguments that several commands share."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from softdex.data.split import SPLITS

DATA, SPLIT, OUTPUT = "Data", "Split", "Output"
Source = Annotated[
    str | None, typer.Argument(help="Log: CSV, TSV, .inter, Parquet, folder or glob.")
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file with the same arguments.")
]
UserColumn = Annotated[
    str | None, typer.Option("--user", help="User column.", rich_help_panel=DATA)
]
ItemColumn = Annotated[
    str | None, typer.Option("--item", help="Item column.", rich_help_panel=DATA)
]
TimeColumn = Annotated[
    str | None, typer.Option("--time", help="Time column.", rich_help_panel=DATA)
]
Rating = Annotated[
    str | None, typer.Option("--rating", help="Rating column.", rich_help_panel=DATA)
]
Weight = Annotated[
    str | None, typer.Option("--weight", help="Weight column.", rich_help_panel=DATA)
]
Items = Annotated[
    str | None, typer.Option("--items", help="Item table to attach.", rich_help_panel=DATA)
]
Users = Annotated[
    str | None, typer.Option("--users", help="User table to attach.", rich_help_panel=DATA)
]
Duplicates = Annotated[
    str | None, typer.Option(help="Repeated pairs: keep, last or sum.", rich_help_panel=DATA)
]
BadRows = Annotated[str | None, typer.Option(help="Bad rows: error or drop.", rich_help_panel=DATA)]
Separator = Annotated[str | None, typer.Option(help="Of a text file.", rich_help_panel=DATA)]
Encoding = Annotated[str | None, typer.Option(help="Of a text file.", rich_help_panel=DATA)]
MinRating = Annotated[
    float | None, typer.Option(help="Keep rows rated at least this.", rich_help_panel=DATA)
]
KCore = Annotated[
    int | None, typer.Option(help="Drop users and items with fewer rows.", rich_help_panel=DATA)
]
SplitName = Annotated[
    str | None,
    typer.Option("--split", help=f"One of {', '.join(SPLITS)}.", rich_help_panel=SPLIT),
]
SplitOption = Annotated[
    list[str] | None,
    typer.Option("--split-option", "-s", help="name=value, e.g. -s seed=1.", rich_help_panel=SPLIT),
]
Cutoffs = Annotated[str | None, typer.Option("--k", help="Cut-offs, e.g. 10,20,50.")]
MaxMemory = Annotated[
    str | None,
    typer.Option(help="Of ranking at a time, of training in all: 2GB."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)]


class IndexMode(StrEnum):
    """Which list is measured."""

    served = "served"
    exact = "exact"
    both = "both"
