"""Progress: one line per piece of work, drawn anew on a terminal or in a notebook.

Elsewhere a training has a few plain lines, and everything else none. Work inside other work shares
its line.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, final

from softdex import screen
from softdex.messages import METRIC, is_quiet, is_verbose, say

EVERY, PARTS = 10.0, 10  # plain lines: seconds between two at least, and their number at most
LOOK = 0.5  # seconds between two looks at the loss inside an epoch, where a line is drawn
BAR = 20

T = TypeVar("T")
_inside: ContextVar[Work | None] = ContextVar("_inside", default=None)


@final
class Work:
    """A piece of work as its line shows it.

    Attributes:
        name: of a recipe, or what is done.
        unit: what `total` counts, such as epochs; "" where it says nothing to a reader.
        total: number of units; 0 where that is not known.
        done: units, and fractions of them.
        facts: such as the loss, the more important ones last.
        below: work inside, which is shown on the same line.
    """

    def __init__(self, name: str, unit: str = "", total: int = 0, done: float = 0.0) -> None:
        self.name, self.unit, self.total, self.done = name, unit, total, done
        self.facts: dict[str, str] = {}
        self.below: Work | None = None
        self.is_drawn, self.began = False, time.monotonic()
        self.first: tuple[float, float] | None = None  # a moment, and what was done then

    def moved(self, done: float) -> None:
        """So much is done now."""
        self.done = done
        if self.first is None:  # until here code may have been compiled
            self.first = time.monotonic(), done
        screen.changed()

    @property
    def place(self) -> str:
        """Which unit it is at, such as "epoch 7/20"."""
        if not self.unit:
            return f"{self.done / self.total:.0%}" if self.total else ""
        return f"{self.unit} {min(math.floor(self.done) + 1, self.total)}/{self.total}"

    @property
    def pace(self) -> float:
        """Seconds per unit so far; 0 where that is not known yet."""
        since, before = self.first or (0.0, self.done)
        return (time.monotonic() - since) / (self.done - before) if self.done > before else 0.0

    @property
    def rate(self) -> str:
        """The pace in words."""
        if not self.unit or not self.pace:
            return ""
        if self.pace >= 1:
            return f"{self.pace:.1f} s/{self.unit}"
        return f"{1 / self.pace:.0f} {self.unit}s/s"

    @property
    def left(self) -> str:
        """The time that the rest would take."""
        return f"{clock(self.pace * (self.total - self.done))} left" if self.pace else ""

    @property
    def inside(self) -> str:
        """What goes on inside, in words."""
        found, work = [], self.below
        while work is not None:
            found.append(work.place if work.unit else f"{work.name} {work.place}".rstrip())
            work = work.below
        return ", ".join(found)

    def words(self) -> str:
        """The state in words, without the name."""
        facts = [f"{name} {value}" for name, value in self.facts.items()]
        return ", ".join(filter(None, [self.place, *facts, self.inside, self.rate, self.left]))

    def line(self, width: int, *, ascii: bool = False) -> str:
        """The state on one line: what matters least is left out where there is no room."""
        drawn = _bar(self.done / self.total, BAR, ascii=ascii) if self.total else ""
        facts = [(3 + i, f"{n} {v}") for i, (n, v) in enumerate(reversed(self.facts.items()))]
        parts = [(0, self.name), (1, self.place), (6, drawn), *facts[::-1], (5, self.inside)]
        parts += [(7, self.rate), (2, self.left)]
        parts = [(rank, text) for rank, text in parts if text]
        while len(parts) > 1 and sum(len(text) + 2 for _, text in parts) - 2 > width:
            parts.remove(max(parts))
        return "  ".join(text for _, text in parts)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        yield _coloured(self.line(options.max_width, ascii=options.ascii_only))


@contextmanager
def shown(work: Work, drawing: Any = None) -> Iterator[None]:
    """Show work while it lasts, inside other work on its line.

    Args:
        work: what is going on.
        drawing: is drawn instead of its line.
    """
    above = _inside.get()
    before = _inside.set(work)
    try:
        if above is not None:
            above.below, work.is_drawn = work, above.is_drawn
            yield
        elif is_quiet():
            yield
        else:
            with screen.drawn(work if drawing is None else drawing) as work.is_drawn:
                yield
    finally:
        _inside.reset(before)
        if above is not None:
            above.below = None


@contextmanager
def progress(steps: Sequence[T], name: str) -> Iterator[Iterator[T]]:
    """Give the steps one by one, and show how far they are."""
    work = Work(name, total=len(steps) if len(steps) > 1 else 0)

    def each() -> Iterator[T]:
        for i, step in enumerate(steps, 1):
            yield step
            work.moved(i)

    with shown(work):
        yield each()


@contextmanager
def training(
    name: str, unit: str, total: int, done: int = 0, *, quiet: bool = False
) -> Iterator[Meter]:
    """Show a training while it lasts, and say in one line at its end how it went.

    Inside other work, that says how it went.

    Args:
        name: of the recipe.
        unit: what an epoch is called.
        total, done: epochs, and those of an earlier run that it resumes.
        quiet: show it, but say nothing.
    """
    alone, work = _inside.get() is None, Work(name, unit, total, done)
    meter = Meter(work, quiet=quiet)
    with shown(work):
        yield meter
    if alone and not quiet and meter.records:
        say(meter.summary())


@final
class Meter:
    """Takes in how far a training is."""

    def __init__(self, work: Work, *, quiet: bool) -> None:
        self.work, self.quiet = work, quiet
        self.records: list[dict[str, Any]] = []
        self.said = self.looked = work.began
        self.part = self._part()

    def is_due(self) -> bool:
        """Whether it is time to look where an epoch is; on a GPU that waits for the step."""
        now = time.monotonic()
        if self.work.first is None:
            self.work.first = now, self.work.done
        return now - self.looked >= (LOOK if self.work.is_drawn else EVERY)

    def at(self, done: float, loss: float | None) -> None:
        """Take in epochs done, with a fraction of the present one, and its loss so far."""
        self.looked = time.monotonic()
        if loss is not None:
            self.work.facts["loss"] = f"{loss:.4f}"
        self.work.moved(done)
        self._say_where()

    def epoch(self, record: dict[str, Any]) -> None:
        """Take in the record of an epoch."""
        self.records.append(record)
        self.work.facts = {
            name: f"{record[key]:.4f}"
            for key, name in (("loss", "loss"), ("metric", METRIC))
            if key in record
        }
        self.work.moved(record["epoch"])
        words = _sentence(record, self.work.unit)
        say(f"{self.work.name}: {words}", logging.DEBUG, quiet=self.quiet)
        if not is_verbose():
            self._say_where()

    def _say_where(self) -> None:
        """Say where it is, where nothing is drawn: every tenth, but not too often."""
        now, part, known = time.monotonic(), self._part(), self.work.is_drawn or self.quiet
        if not known and self.part < part < PARTS and now >= self.said + EVERY:
            self.part, self.said = part, now
            say(f"{self.work.name}: {self.work.words()}")

    def _part(self) -> int:
        return int(PARTS * self.work.done / max(1, self.work.total))

    def summary(self) -> str:
        """Return how it went."""
        last, count = self.records[-1], len(self.records)
        took = f"{time.monotonic() - self.work.began:.1f} s"
        unit = self.work.unit if count == 1 else f"{self.work.unit}s"
        best = max(self.records, key=lambda record: record.get("metric", -math.inf))
        found = f"loss {last['loss']:.4f}"
        if "metric" in best:
            found += f", best {METRIC} {best['metric']:.4f} ({self.work.unit} {best['epoch']})"
        return f"{self.work.name}: {count} {unit} in {took}, {found}"


def bar(part: float, width: int, words: str, *, ascii: bool = False) -> Any:
    """Return a bar that is filled in part, with words after it."""
    return _coloured(_bar(part, min(2 * BAR, width - len(words)), ascii=ascii) + words)


def clock(seconds: float) -> str:
    """Format a time as minutes and seconds, or with hours."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


# inside ------------------------------------------------------------------------------------------


def _bar(part: float, width: int, *, ascii: bool = False) -> str:
    full, empty = ("#", "-") if ascii else ("━", "─")
    filled = min(width, int(width * part))
    return full * filled + empty * (width - filled)


def _coloured(line: str) -> Any:
    from rich.text import Text  # takes a while

    text = Text(line, no_wrap=True, overflow="crop")
    text.highlight_regex("[━#]{2,}", "green")
    text.highlight_regex("─+", "dim")
    return text


def _sentence(record: dict[str, Any], unit: str) -> str:
    """Format an epoch record."""
    words = {
        "epoch": f"{unit} {{}}",
        "loss": "loss {:.4f}",
        "metric": f"{METRIC} {{:.4f}}",
        "kl": "KL of the proposal {:.2f}",
        "ess": "effective draws {:.0%}",
        "hits": "hits {:.2%}",
        "seconds": "{:.1f} s in all",
    }
    return ", ".join(words[n].format(v) for n, v in record.items() if n in words)
