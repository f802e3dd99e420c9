"""The screen: what is drawn anew while work goes on, on a terminal or in a notebook."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from typing import Any, Protocol, final

PER_SECOND = 8
WIDTH = 100  # of the text in a notebook
DUMB = ("dumb", "unknown")  # terminals that cannot go back to the start of a line

_taken = threading.Lock()  # a process has one screen
_now: Screen | None = None


class Screen(Protocol):
    """A place that holds one drawing, and is empty before and after."""

    def start(self) -> None:
        """Draw."""
        ...

    def changed(self) -> None:
        """Draw again, if it is time to."""
        ...

    def stop(self) -> None:
        """Erase."""
        ...


def kind() -> str | None:
    """What can be drawn on: a `terminal`, a `notebook`, or None."""
    if sys.stderr is not None and sys.stderr.isatty():
        return None if os.environ.get("TERM") in DUMB else "terminal"
    ipython: Any = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return None if getattr(shell, "kernel", None) is None else "notebook"


@contextmanager
def drawn(drawing: Any) -> Iterator[bool]:
    """Show what rich can print while the context lasts, if there is a screen and nobody has it;
    tell whether it is shown."""
    global _now
    found = kind()
    if found is None or not _taken.acquire(blocking=False):
        yield False
        return
    try:
        screen: Screen = _Terminal(drawing) if found == "terminal" else _Notebook(drawing)
        screen.start()
        _now = screen
        try:
            yield True
        finally:
            _now = None
            screen.stop()
    finally:
        _taken.release()


def changed() -> None:
    """What is drawn has changed."""
    if _now is not None:
        _now.changed()


@contextmanager
def cleared() -> Iterator[None]:
    """Take the drawing away for what is written past it, such as a record of a log handler."""
    screen = _now
    if screen is not None:
        screen.stop()
    try:
        yield
    finally:
        if screen is not None and screen is _now:
            screen.start()


# inside ------------------------------------------------------------------------------------------


@final
class _Terminal:
    """The last lines of a terminal; what is printed meanwhile goes above them."""

    def __init__(self, drawing: Any) -> None:
        self.drawing = drawing

    def start(self) -> None:
        from rich.console import Console  # takes a while
        from rich.live import Live

        self.live = Live(  # anew, so that it forgets how many lines it had
            get_renderable=lambda: self.drawing,
            console=Console(file=sys.stderr),
            refresh_per_second=PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )
        self.live.start(refresh=True)

    def changed(self) -> None:
        """A thread draws PER_SECOND times."""

    def stop(self) -> None:
        self.live.stop()


@final
class _Notebook:
    """One output of a cell."""

    def __init__(self, drawing: Any) -> None:
        self.drawing, self.handle, self.at = drawing, None, 0.0

    def start(self) -> None:
        self.at = 0.0
        self.changed()

    def changed(self) -> None:
        if time.monotonic() - self.at >= 4 / PER_SECOND:  # every drawing is a message
            self.at = time.monotonic()
            self._show(as_text(self.drawing))

    def stop(self) -> None:
        self._show("")

    def _show(self, text: str) -> None:
        from IPython.display import display

        data = {"text/plain": text}
        if self.handle is None:
            self.handle = display(data, raw=True, display_id=True)
        else:
            self.handle.update(data, raw=True)


def as_text(drawing: Any, width: int = WIDTH) -> str:
    """Return what rich can print as plain text."""
    from rich.console import Console  # takes a while

    out = StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(drawing)
    return "\n".join(line.rstrip() for line in out.getvalue().rstrip().splitlines())
