"""Board: how far a comparison is, as a live table on a terminal, else as lines."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from softdex.messages import METRIC, has_bars, is_verbose, say, volume
from softdex.tables import grid


@final
class Board:
    """The state of each recipe."""

    def __init__(self, names: Iterable[str], *, live: bool) -> None:
        self.state, self.live = dict.fromkeys(names, "waiting"), live
        self.metric: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.began: dict[str, float] = {}  # of the recipe in training

    def begin(self, name: str) -> None:
        """A recipe starts to train."""
        self.state[name], self.began = "training", {name: time.monotonic()}

    def epoch(self, name: str, record: Mapping[str, Any]) -> None:
        """An epoch of it is over."""
        metric = f", {METRIC} {record['metric']:.4f}" if "metric" in record else ""
        self.state[name] = f"epoch {record['epoch']}{metric}"
        say(f"{name}: {self.state[name]}", logging.DEBUG)

    def done(self, name: str, entry: Mapping[str, Any], *, before: bool = False) -> None:
        """It is trained; `before` in an earlier call."""
        how = "stopped by the budget" if entry["cut"] is not None else "trained"
        how += " before" if before else ""
        self.seconds[name], metric = entry["seconds"], ""
        if entry["valid"] is not None:
            self.metric[name] = entry["valid"]
            metric = f", {METRIC} {entry['valid']:.4f} on validation"
        self._end(name, how, f" in {entry['seconds']:.1f} s{metric}")

    def missing(self, name: str, why: str) -> None:
        """It has no result."""
        self._end(name, why, "")

    def _end(self, name: str, state: str, more: str) -> None:
        self.state[name], self.began = state, {}
        if not self.live:
            say(f"{name}: {state}{more}")

    def table(self) -> Table:
        """The table as it is now: the best on top, then the others in their order."""
        now = {name: time.monotonic() - began for name, began in self.began.items()}
        rows = []
        for name in sorted(self.state, key=lambda name: -self.metric.get(name, -1.0)):
            metric, seconds = self.metric.get(name), (self.seconds | now).get(name)
            shown = "" if metric is None else f"{metric:.4f}"
            took = "" if seconds is None else f"{seconds:.1f}"
            rows.append([name, shown, took, self.state[name]])
        table = grid(["", f"valid {METRIC}", "fit s", ""], rows)
        table.columns[-1].justify = "left"
        return table


@contextmanager
def board(names: Iterable[str]) -> Iterator[Board]:
    """A board on standard error while recipes are trained; a live one leaves no room for messages
    and other bars, so `verbose` has lines."""
    made = Board(names, live=has_bars() and not is_verbose())
    if not made.live:
        yield made
        return
    console = Console(file=sys.stderr)
    with volume(quiet=True), Live(get_renderable=made.table, console=console, transient=True):
        yield made
