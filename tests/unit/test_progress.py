"""Progress: one line drawn anew on a terminal or in a notebook, a few plain lines elsewhere."""

from __future__ import annotations

import io
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

import softdex as sdx
from softdex import progress, screen
from softdex.messages import LOGGER, say, volume
from softdex.progress import Meter, Work, training

SMALL = {"dim": 4, "epochs": 2, "patience": 0, "negatives": 5, "device": "cpu"}
HIDDEN, SHOWN, ERASED = "\x1b[?25l", "\x1b[?25h", "\x1b[2K"


class Terminal(io.StringIO):
    """Standard error as a terminal: keeps what is written, and can tell what is left to see."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    def seen(self) -> list[str]:
        """The lines that remain, as a terminal shows them."""
        lines, at = [""], 0
        for part in re.findall(r"\x1b\[[\d;?]*[a-zA-Z]|\n|\r|[^\x1b\n\r]+", self.getvalue()):
            if part == "\n":
                at += 1
                lines += [""] * (at + 1 - len(lines))
            elif part == ERASED:
                lines[at] = ""
            elif part.endswith("A"):
                at -= int(part[2:-1])
            elif not part.startswith("\x1b") and part != "\r":
                lines[at] = part if lines[at] == "" else lines[at] + part
        return [line.rstrip() for line in lines if line.strip()]


@pytest.fixture
def open_terminal(loud: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Make standard error a terminal; in the test, since pytest sets it before each."""

    def opened() -> Terminal:
        made = Terminal()
        monkeypatch.setattr(sys, "stderr", made)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("COLUMNS", "80")
        return made

    return opened


@pytest.fixture
def open_file(loud: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[], io.StringIO]:
    """Make standard error a file."""

    def opened() -> io.StringIO:
        made = io.StringIO()
        monkeypatch.setattr(sys, "stderr", made)
        return made

    return opened


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Time stands still; what is returned lets it pass."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])

    def wait(seconds: float) -> None:
        now[0] += seconds

    return wait


def run(meter: Meter, epochs: int, wait: Callable[[float], None], seconds: float) -> None:
    """Report a training of ten steps per epoch."""
    for epoch in range(epochs):
        for step in range(1, 11):
            wait(seconds / 10)
            if meter.is_due():
                meter.at(epoch + step / 10, 9 - epoch)
        meter.epoch({"epoch": epoch + 1, "loss": 8.5 - epoch, "metric": 0.1 * (epoch % 7)})


# a line ------------------------------------------------------------------------------------------


def made() -> Work:
    work = Work("ssm", "epoch", 20, done=6.5)
    work.facts = {"loss": "5.0213", "ndcg@20": "0.1234"}
    return work


def test_a_line_shows_what_fits_and_the_name_place_and_time_left_to_the_last(
    clock: Callable[[float], None],
) -> None:
    work = made()
    work.first = 100.0, 4.5
    clock(6)
    bar = "━" * 6 + "─" * 14
    whole = f"ssm  epoch 7/20  {bar}  loss 5.0213  ndcg@20 0.1234  3.0 s/epoch  0:41 left"
    assert work.line(len(whole)) == whole
    assert work.line(len(whole) - 1) == whole.replace("  3.0 s/epoch", "")
    assert work.line(60) == "ssm  epoch 7/20  loss 5.0213  ndcg@20 0.1234  0:41 left"
    assert work.line(50) == "ssm  epoch 7/20  ndcg@20 0.1234  0:41 left"
    assert work.line(30) == "ssm  epoch 7/20  0:41 left"
    assert work.line(20) == "ssm  epoch 7/20"
    assert work.line(3) == "ssm"
    assert "######--------------" in work.line(100, ascii=True)


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in range(1, 120):
        out = io.StringIO()
        Console(file=out, width=width).print(made())
        (line,) = out.getvalue().splitlines()
        assert len(line) <= width


def test_the_pace_leaves_out_what_comes_before_the_first_step(
    clock: Callable[[float], None],
) -> None:
    meter = Meter(Work("ssm", "epoch", 10), quiet=True)
    clock(60)  # compiles
    assert not meter.work.left
    run(meter, 2, clock, 4.0)
    assert meter.work.rate == "3.8 s/epoch"  # nor is the first of ten steps in it
    assert meter.work.left == "0:31 left"


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "0:01"), (61, "1:01"), (3600, "1:00:00"), (90_061, "25:01:01")]
)
def test_times_are_minutes_and_seconds(seconds: float, words: str) -> None:
    assert progress.clock(seconds) == words


# plain lines -------------------------------------------------------------------------------------


@pytest.mark.parametrize("epochs", [2, 7, 50, 500])
def test_where_nothing_is_drawn_a_long_training_has_at_most_nine_lines_and_a_last_one(
    epochs: int, open_file: Callable[[], io.StringIO], clock: Callable[[float], None]
) -> None:
    plain = open_file()
    with training("ssm", "epoch", epochs) as meter:
        run(meter, epochs, clock, 600.0 / epochs)
    *lines, last = plain.getvalue().splitlines()
    assert 8 <= len(lines) <= 9
    assert all(line.startswith("ssm: epoch ") and "left" in line for line in lines)
    assert last.startswith(f"ssm: {epochs} epochs in 600.0 s, loss ")


def test_a_short_training_has_its_last_line_alone(
    open_file: Callable[[], io.StringIO], clock: Callable[[float], None]
) -> None:
    plain = open_file()
    with training("rg2", "sweep", 20) as meter:
        run(meter, 16, clock, 0.5)
    best = "best ndcg@20 0.6000 (sweep 7)"
    assert plain.getvalue() == f"rg2: 16 sweeps in 8.0 s, loss -6.5000, {best}\n"


def test_verbose_has_a_line_per_epoch_and_others_only_inside_long_ones(
    open_file: Callable[[], io.StringIO], clock: Callable[[float], None]
) -> None:
    plain = open_file()
    with volume(verbose=True), training("ssm", "epoch", 30) as meter:
        run(meter, 30, clock, 2.0)
    numbers = [int(n) for n in re.findall(r"^ssm: epoch (\d+), loss", plain.getvalue(), re.M)]
    assert numbers == list(range(1, 31))
    with volume(verbose=True), training("dtr", "epoch", 2) as meter:
        run(meter, 2, clock, 1000.0)
    assert len(re.findall(r"^dtr: epoch \d/2, loss", plain.getvalue(), re.M)) >= 6


def test_work_inside_other_work_leaves_the_summary_to_it(
    open_file: Callable[[], io.StringIO], clock: Callable[[float], None]
) -> None:
    plain = open_file()
    with progress.shown(Work("comparing")), training("ssm", "epoch", 2) as meter:
        run(meter, 2, clock, 0.1)
    assert plain.getvalue() == ""


def test_a_training_that_fails_has_no_summary(
    open_file: Callable[[], io.StringIO], clock: Callable[[float], None]
) -> None:
    plain = open_file()
    with suppress(KeyboardInterrupt), training("ssm", "epoch", 2) as meter:
        run(meter, 1, clock, 0.1)
        raise KeyboardInterrupt
    assert plain.getvalue() == ""


def test_closed_forms_count_sweeps(parts: sdx.Split, open_file: Callable[[], io.StringIO]) -> None:
    plain = open_file()
    sdx.fit("rg2", parts.train, dim=4, epochs=3, patience=0)
    assert "rg2: 3 sweeps in " in plain.getvalue()


def test_the_loss_is_looked_at_only_when_it_is_shown(
    parts: sdx.Split, open_file: Callable[[], io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_file()
    from softdex.solve.gradient.trainer import Trainer

    monkeypatch.setattr(Trainer, "so_far", lambda *_: pytest.fail("it waited for the device"))
    sdx.fit("ssm", parts.train, **SMALL)


# a terminal --------------------------------------------------------------------------------------


def test_a_training_leaves_its_summary_and_messages_on_a_terminal(
    parts: sdx.Split, open_terminal: Callable[[], Terminal]
) -> None:
    terminal = open_terminal()
    sdx.fit("ssm", parts.train, parts.valid, **SMALL)
    first, second = terminal.seen()
    assert first.startswith("training on cpu")
    assert second.startswith("ssm: 2 epochs in ")
    assert "ssm  epoch 1/2" in terminal.getvalue()
    assert terminal.getvalue().rindex(SHOWN) > terminal.getvalue().rindex(HIDDEN)


def test_inside_an_epoch_the_line_shows_where_it_is_and_its_loss(
    parts: sdx.Split, open_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_terminal()
    monkeypatch.setattr(progress, "LOOK", 0.0)
    seen: list[tuple[float, str]] = []
    at = Meter.at

    def looking(meter: Meter, done: float, loss: float | None) -> None:
        at(meter, done, loss)
        seen.append((meter.work.done, meter.work.facts["loss"]))

    monkeypatch.setattr(Meter, "at", looking)
    sdx.fit("ssm", parts.train, **SMALL | {"batch_size": 1000})
    assert [round(done, 2) for done, _ in seen] == [0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2]
    history = sdx.fit("ssm", parts.train, **SMALL | {"batch_size": 1000}).card.training["history"]
    assert [seen[3][1], seen[7][1]] == [f"{record['loss']:.4f}" for record in history]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_leaves_no_line_and_a_visible_cursor(
    error: type[BaseException], parts: sdx.Split, open_terminal: Callable[[], Terminal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    terminal = open_terminal()
    monkeypatch.setattr(Meter, "epoch", lambda *_: (_ for _ in ()).throw(error))
    with pytest.raises(error):
        sdx.fit("ssm", parts.train, **SMALL)
    assert [line[:11] for line in terminal.seen()] == ["training on"]
    assert terminal.getvalue().rindex(SHOWN) > terminal.getvalue().rindex(HIDDEN)
    assert sys.stderr is terminal


def test_a_list_that_fails_half_way_leaves_the_terminal_at_once(
    open_terminal: Callable[[], Terminal],
) -> None:
    terminal = open_terminal()

    def write() -> None:
        with progress.progress([1, 2, 3], "writing") as shown:
            for step in shown:
                if step == 2:
                    raise ValueError("full")

    with pytest.raises(ValueError, match="full"):
        write()
    assert terminal.seen() == []
    assert sys.stderr is terminal


def test_messages_go_above_the_line(open_terminal: Callable[[], Terminal]) -> None:
    terminal = open_terminal()
    with progress.shown(Work("ssm", "epoch", 3)):
        say("a message")
        print("of the caller", file=sys.stderr)
    assert terminal.seen() == ["a message", "of the caller"]


def test_records_of_a_log_handler_do_not_share_the_line(
    open_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = open_terminal()
    monkeypatch.setattr(LOGGER, "hasHandlers", lambda: True)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(LOGGER, "handlers", [handler])
    monkeypatch.setattr(LOGGER, "isEnabledFor", lambda level: True)
    with progress.shown(Work("ssm", "epoch", 3)):
        say("a record")
        say("another")
    assert terminal.seen() == ["a record", "another"]


def test_what_is_printed_into_a_file_goes_there_meanwhile(
    open_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_terminal()
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    with progress.shown(Work("ssm", "epoch", 3)):
        print("a result")
    assert out.getvalue() == "a result\n"


def test_quiet_and_dumb_terminals_have_no_line(
    open_terminal: Callable[[], Terminal], monkeypatch: pytest.MonkeyPatch, parts: sdx.Split
) -> None:
    terminal = open_terminal()
    sdx.fit("ssm", parts.train, **SMALL, quiet=True)
    assert terminal.getvalue() == ""
    monkeypatch.setenv("TERM", "dumb")
    sdx.fit("ssm", parts.train, **SMALL)
    assert "\x1b" not in terminal.getvalue()
    assert len(terminal.seen()) == 2


def test_a_process_has_one_line_and_other_threads_are_plain(
    open_terminal: Callable[[], Terminal],
) -> None:
    open_terminal()
    found: list[bool] = []

    def other() -> None:
        with progress.shown(work := Work("rg2", "sweep", 3)):
            found.append(work.is_drawn)

    with progress.shown(work := Work("ssm", "epoch", 3)):
        found.append(work.is_drawn)
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with progress.shown(inner := Work("evaluating")):
            found.append(inner.is_drawn)
            assert work.line(80).endswith("  evaluating")
    assert found == [True, False, True]


# a notebook --------------------------------------------------------------------------------------


@pytest.fixture
def notebook(loud: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[str]]]:
    """The texts that each output of a cell has had."""
    outputs: list[list[str]] = []

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert (raw, display_id) == (True, True)
        outputs.append([data["text/plain"]])
        at = len(outputs) - 1
        return SimpleNamespace(update=lambda data, raw: outputs[at].append(data["text/plain"]))

    shell = SimpleNamespace(kernel=object())
    there = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", there)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=display))
    monkeypatch.setattr(screen, "PER_SECOND", 1e9)
    return outputs


def test_a_notebook_has_one_output_per_training_that_is_empty_at_the_end(
    parts: sdx.Split, notebook: list[list[str]], open_file: Callable[[], io.StringIO]
) -> None:
    plain = open_file()
    sdx.fit("rg2", parts.train, parts.valid, dim=4, epochs=3, patience=0)
    line, listed = notebook[0], notebook[1]
    assert line[0].startswith("rg2  sweep 1/3")
    assert any("sweep 3/3" in text and "ndcg@20" in text for text in line)
    assert (line[-1], listed[-1]) == ("", "")
    assert "rg2: 3 sweeps in " in plain.getvalue()
