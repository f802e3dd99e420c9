"""Messages: printed on standard error, or logged where logging is set up; less or more of them."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable

import pytest

import softdex as sdx
from softdex.messages import LOGGER, say, volume

SMALL = {"dim": 4, "epochs": 2, "patience": 0, "negatives": 5, "device": "cpu"}


@pytest.fixture
def said(loud: None, capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """The lines on standard error since the last call; nothing may be on standard output."""

    def lines() -> list[str]:
        out, err = capsys.readouterr()
        assert out == ""
        return err.splitlines()

    return lines


def test_fit_prints_lines_quiet_prints_none_and_verbose_prints_epochs_too(
    parts: sdx.Split, said: Callable[[], list[str]]
) -> None:
    sdx.fit("ssm", parts.train, **SMALL)
    started, ended = said()
    assert started.startswith("training on cpu")
    assert ended.startswith("ssm: 2 epochs in ")
    sdx.fit("ssm", parts.train, **SMALL, quiet=True)
    assert said() == []
    sdx.fit("ssm", parts.train, **SMALL, verbose=True)
    epochs = [line.split(", loss")[0] for line in said() if "loss" in line][:-1]
    assert epochs == ["ssm: epoch 1", "ssm: epoch 2"]


def test_tune_and_compare_are_quiet_when_asked(
    parts: sdx.Split, said: Callable[[], list[str]]
) -> None:
    given = {"space": {"dim": [2, 4]}, "settings": 2, "epochs": 2, "device": "cpu"}
    sdx.tune("rg2", parts.train, parts.valid, **given)
    assert any(line.startswith("tuning: ") for line in said())
    sdx.tune("rg2", parts.train, parts.valid, **given, quiet=True)
    sdx.compare(parts, ["popular"], quiet=True)
    assert said() == []
    sdx.compare(parts, ["popular"])
    assert any(line.startswith("popular: trained in ") for line in said())


def test_where_logging_is_set_up_messages_are_records_of_one_logger(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.delenv("SOFTDEX_QUIET")
    with caplog.at_level(logging.INFO):
        sdx.fit("ssm", parts.train, **SMALL)
    assert {record.name for record in caplog.records} == {"softdex"}
    assert not any("epoch 1" in line for line in caplog.messages)
    caplog.clear()
    with caplog.at_level(logging.DEBUG, logger="softdex"):
        sdx.fit("ssm", parts.train, **SMALL)
    found = {r.levelname for r in caplog.records if r.message.startswith("ssm: epoch")}
    assert found == {"DEBUG"}
    caplog.clear()
    with caplog.at_level(logging.DEBUG):
        sdx.fit("ssm", parts.train, **SMALL, quiet=True)
    assert caplog.records == []
    assert capsys.readouterr() == ("", "")


def test_quiet_leaves_warnings_and_ends_with_its_context(said: Callable[[], list[str]]) -> None:
    with volume(quiet=True):
        say("a message")
        say("a warning", logging.WARNING)
        with volume():
            say("inside, as around it")
    say("after it")
    assert said() == ["a warning", "after it"]


def test_verbose_records_epochs_where_logging_shows_messages(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("SOFTDEX_QUIET")
    with caplog.at_level(logging.INFO):
        sdx.fit("ssm", parts.train, **SMALL, verbose=True)
    assert any(line.startswith("ssm: epoch 1") for line in caplog.messages)


def test_the_level_of_the_logger_holds_where_logging_is_not_set_up(
    said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("softdex"), "level", logging.WARNING)
    say("a message")
    say("a warning", logging.WARNING)
    assert said() == ["a warning"]


def test_a_process_without_standard_error_says_nothing(
    parts: sdx.Split, loud: None, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "stderr", None)
    sdx.fit("ssm", parts.train, **SMALL)
    assert capsys.readouterr().out == ""


def test_quiet_and_verbose_together_are_refused(log: sdx.Interactions) -> None:
    with pytest.raises(sdx.SoftdexError, match=r"^expected quiet or verbose, not both\.$"):
        sdx.fit("popular", log, quiet=True, verbose=True)


def test_the_logger_is_left_to_the_application() -> None:
    assert (LOGGER.handlers, LOGGER.level) == ([], logging.NOTSET)
