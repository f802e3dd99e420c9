"""Board: how far a comparison is, as a live table on a terminal, else as lines."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any, final

from rich.table import Table

from softdex import screen
from softdex.messages import METRIC, is_verbose, say, volume
from softdex.progress import Work, bar, shown
from softdex.tables import grid

WIDEST = 100  # columns of a terminal that the table takes


@final
class Board:
    """The state of each recipe."""

    def __init__(self, names: Iterable[str]) -> None:
        self.state = dict.fromkeys(names, "waiting")
        self.metric: dict[str, float] = {}
        self.seconds: dict[str, float] = {}
        self.now: str | None = None  # the recipe at work
        self.began = 0.0
        self.work = Work("comparing", "recipe", len(self.state))

    def begin(self, name: str, state: str = "training") -> None:
        """A recipe starts to train, or to be measured."""
        self.state[name], self.now, self.began = state, name, time.monotonic()
        screen.changed()

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

    def measured(self, name: str) -> None:
        """It is evaluated on the test part."""
        self.state[name], self.now = "measured on test", None

    def _end(self, name: str, state: str, more: str) -> None:
        self.state[name], self.now = state, None
        self.work.moved(self.work.done + 1)
        if not self.work.is_drawn or is_verbose():
            say(f"{name}: {state}{more}")

    def table(self, width: int = WIDEST) -> Table:
        """The table as it is now: the best on top, then the others in their order."""
        order = sorted(self.state, key=lambda name: -self.metric.get(name, -1.0))
        rows = [self._row(name) for name in order]
        header = ["", f"valid {METRIC}", "fit s", ""]
        columns = list(zip(header, *rows, strict=True))
        room = width - sum(max(map(len, column)) + 2 for column in columns[:-1])
        for row in rows:
            row[-1] = row[-1] if len(row[-1]) <= room else row[-1][: max(0, room - 1)] + "…"
        table = grid(header, rows)
        for column in table.columns:
            column.no_wrap, column.overflow = True, "crop"
        table.columns[-1].justify = "left"
        return table

    def _row(self, name: str) -> list[str]:
        metric, seconds, state = self.metric.get(name), self.seconds.get(name), self.state[name]
        inner = self.work.below
        if name == self.now:
            if inner is not None:
                state = inner.words() if inner.unit else self.work.inside
            if seconds is None:
                seconds = time.monotonic() - self.began
        shown = "" if metric is None else f"{metric:.4f}"
        return [name, shown, "" if seconds is None else f"{seconds:.1f}", state]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        if len(self.state) + 2 >= options.size.height:
            yield self.work
            return
        yield self.table(min(options.max_width, WIDEST))
        inner, total = self.work.below, len(self.state)
        part = inner.done / inner.total if inner is not None and inner.unit else 0.0
        done, words = self.work.done, f"  {self.work.done:.0f} of {total} recipes"
        yield bar((done + part) / total, options.max_width, words, ascii=options.ascii_only)


@contextmanager
def board(names: Iterable[str]) -> Iterator[Board]:
    """A board on standard error while recipes are trained; a live one takes the place of messages,
    unless all are wanted."""
    made = Board(names)
    with shown(made.work, made):
        alone = made.work.is_drawn and not is_verbose()
        with volume(quiet=True) if alone else nullcontext():
            yield made
