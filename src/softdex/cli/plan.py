"""softdex plan: what a training will need. The plan of a run, its config, is in `cli.config`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softdex.cli.arguments import pairs, words
from softdex.cli.complete import recipe_names, recipe_options
from softdex.cli.options import AsJson
from softdex.errors import SoftdexError
from softdex.listing import listing

if TYPE_CHECKING:
    from softdex.distributed.sizing import Layout, Sizes, Sizing

COUNTS = ("users", "items", "events")


def plan(
    log: Annotated[str, typer.Argument(help="Log, or its size: users=1e9,items=1e8,events=1e11.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe", "-r", autocompletion=recipe_names, help="Recipe; see `softdex recipes`."
        ),
    ] = None,
    dim: Annotated[int | None, typer.Option(help="Length of the vectors.")] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option", "-o", autocompletion=recipe_options, help="Recipe option, name=value."
        ),
    ] = None,
    gpus: Annotated[int, typer.Option(help="GPUs at hand; 0: the CPU.")] = 0,
    gpu_memory: Annotated[str, typer.Option(help="Memory of a GPU.")] = "80GB",
    memory: Annotated[
        str | None, typer.Option(help="Memory of the machine, without GPUs; by default this one's.")
    ] = None,
    network: Annotated[str, typer.Option(help="Network of a GPU.")] = "100Gbps",
    as_json: AsJson = False,
) -> None:
    """Estimate memory, network and time of a training, and how many GPUs it needs."""
    import torch

    from softdex.cli.output import print_json
    from softdex.distributed.sizing import Machines, size_up
    from softdex.machine import memory_of, parse_bytes, parse_network

    if gpus < 0:
        raise SoftdexError(f"plan: expected --gpus of at least 0, got {gpus}.")
    if gpus and memory is not None:
        raise SoftdexError("plan: --memory is of a machine without GPUs. Give --gpu-memory.")
    given = pairs(option, "--option") | ({} if dim is None else {"dim": dim})
    room = (
        parse_bytes(gpu_memory, "gpu_memory") if gpus
        else memory_of(torch.device("cpu")) if memory is None
        else parse_bytes(memory, "memory")
    )  # fmt: skip
    machines = Machines(max(1, gpus), gpus > 0, room, parse_network(network))
    found = size_up(recipe or listing().default, sizes_of(log), machines, given)
    if as_json:
        print_json(found.as_dict() | {"machines": vars(machines)})
    else:
        typer.echo(page(found, room, gpu=gpus > 0))


def sizes_of(text: str) -> Sizes:
    """Return the size of a log: its counts as text, or those of a file."""
    from softdex.data.read import read
    from softdex.distributed.sizing import Sizes

    if not re.match(r"(users|items|events)=", text) or Path(text).exists():
        log = read(text)
        return Sizes(log.num_users, log.num_items, len(log))
    given = pairs(words(text, "plan"), "plan")
    if set(given) != set(COUNTS):
        raise SoftdexError(
            f"plan: expected counts of users, items and events, got {' and '.join(given)} only. "
            "--help has an example."
        )
    for name, count in given.items():
        if isinstance(count, bool) or not isinstance(count, (int, float)) or not 1 <= count < 1e18:
            raise SoftdexError(f"plan: expected {name} as a number from 1, got {count!r}.")
    return Sizes(*(int(given[name]) for name in COUNTS))


def page(found: Sizing, room: int, *, gpu: bool) -> str:
    """Return a plan as text."""
    from softdex.tables import render

    sizes, unit = found.sizes, "GPU" if gpu else "machine"
    words = ", ".join(f"{name}={value}" for name, value in found.options.items())
    title = (
        f"{found.recipe} ({words}) on {sizes.users:,} users, {sizes.items:,} items, "
        f"{sizes.events:,} events; {room / 1e9:.4g} GB per {unit}"
    )
    header = ["", "tables", "ranks", "GB per rank", "MB per step", "steps", "s per epoch", "fits"]
    rows = [_row(layout, layout == found.cheapest) for layout in found.layouts]
    best, many = found.cheapest, f"{unit}s of this memory"
    if best is not None:
        ranks = f"{best.ranks} {unit}" + ("s" if best.ranks > 1 else "")
        says = f"cheapest: {ranks}, tables {best.tables}"
    elif found.needed is not None:
        says = f"none fits: it needs {found.needed:,} {many}, tables sharded"
    else:
        says = f"none fits, on any number of {many}"
    notes = [
        "memory and network: computed; memory is beside the libraries, and fits up to 90 %",
        f"seconds: {found.source}",
    ]
    return "\n".join([render(title, header, rows), "", says, *notes])


def _row(layout: Layout, chosen: bool) -> list[str]:
    return [
        ">" if chosen else "", layout.tables, f"{layout.ranks:,}", _short(layout.memory / 1e9),
        _short(layout.network / 1e6), f"{layout.steps:,}",
        "-" if layout.seconds is None else _short(layout.seconds), "yes" if layout.fits else "no",
    ]  # fmt: skip


def _short(value: float) -> str:
    """Return a number in three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
