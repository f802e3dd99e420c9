"""Compare: fit and evaluate one by one, in one table; nothing that has finished is lost."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softdex as sdx

module = importlib.import_module("softdex.compare")
NAMES = ["popular", "item_cf"]


@pytest.fixture
def found(parts: sdx.Split) -> sdx.Comparison:
    return sdx.compare(parts, NAMES, k=(5, 20))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is trained."""
    monkeypatch.setattr(module, "fit", lambda *_, **__: pytest.fail("it trained"))


def break_fit(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let the training of one recipe raise an error."""
    fit = module.fit

    def broken(recipe: str, *given: Any, **options: Any) -> sdx.Retriever:
        if recipe == name:
            raise error
        return fit(recipe, *given, **options)

    monkeypatch.setattr(module, "fit", broken)


# what it finds -----------------------------------------------------------------------------------


def test_figures_are_those_of_fit_and_evaluate_one_by_one(parts: sdx.Split) -> None:
    options: dict[str, dict[str, Any]] = {
        "rg2": {"dim": 8, "epochs": 2},
        "item_cf": {},
        "ssm": {"dim": 8, "negatives": 20, "epochs": 2, "device": "cpu"},
    }
    found = sdx.compare(parts, options, k=(5, 20), index="both", empty="zero")
    assert list(found.results) == list(options) == list(found.seconds)
    for name, given in options.items():
        model = sdx.fit(name, parts.train, valid=parts.valid, **given)
        result = model.evaluate(parts.test, (5, 20), index="both", empty="zero")
        assert dict(found.results[name]) == dict(result)
        assert found.results[name].conventions == result.conventions
        history = (model.card.training or {}).get("history")
        assert found.training.get(name) == history
    assert found.training.keys() == {"rg2", "ssm"}
    assert not found.failed
    assert not found.skipped
    assert found.stopped is None


def test_options_are_per_recipe(parts: sdx.Split, found: sdx.Comparison) -> None:
    narrow = sdx.compare(parts, {"popular": {}, "item_cf": {"neighbours": 3}}, k=(5, 20))
    assert dict(narrow.results["popular"]) == dict(found.results["popular"])
    assert dict(narrow.results["item_cf"]) != dict(found.results["item_cf"])
    assert narrow.options == {"popular": {}, "item_cf": {"neighbours": 3}}


def test_none_compares_every_method(parts: sdx.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softdex.recipes.methods", lambda: NAMES)
    assert list(sdx.compare(parts, k=5).results) == NAMES


def test_a_log_is_split_by_what_it_has(log: sdx.Interactions) -> None:
    timeless = replace(log, time=None)
    column = replace(log, extra={"test": np.arange(len(log)) % 5 == 0})
    expected = {
        "leave_last": (log, sdx.split.leave_last(log)),
        "per_user": (timeless, sdx.split.per_user(timeless)),
        "given": (column, sdx.split.given(column)),
    }
    for name, (given, split) in expected.items():
        found = sdx.compare(given, ["popular"], k=5)
        assert found.split.card.name == name
        assert found.split.card.sha256 == split.card.sha256
        assert dict(found.results["popular"]) == dict(
            sdx.compare(split, ["popular"], k=5).results["popular"]
        )


def test_the_leaderboard_has_a_row_per_recipe_in_the_order_of_training(
    found: sdx.Comparison,
) -> None:
    rows = found.leaderboard
    assert [row[""] for row in rows] == NAMES
    assert list(rows[0]) == ["", "recall@5", "ndcg@5", "recall@20", "ndcg@20", "fit s"]
    for row in rows:
        assert row["ndcg@20"] == found.results[row[""]].shown("ndcg@20")
    assert str(found).startswith(str(rows))


def test_differences_are_the_paired_bootstrap_of_the_best_against_the_others(
    parts: sdx.Split, found: sdx.Comparison
) -> None:
    (row,) = found.differences
    bootstrap = found.results["item_cf"].compare(found.results["popular"])
    wanted = next(r for r in bootstrap if r["metric"] == "ndcg@20")
    assert row == {"against": "popular", **wanted, "real": True}
    assert f"item_cf is above popular by {row['difference']:.4f} ndcg@20" in str(found)
    twins = sdx.compare(parts, {"ssm": {"epochs": 1, "dim": 4}, "popular": {}}, k=20)
    twins.results["ssm"] = twins.results["popular"]
    assert [row["real"] for row in twins.differences] == [False]


def test_extra_columns_come_from_the_trained_models(parts: sdx.Split, tmp_path: Path) -> None:
    def extra(model: sdx.Retriever, result: sdx.Result) -> Mapping[str, Any]:
        model.save(tmp_path / f"{model.recipe}.sdx")
        return {"half": f"{result['recall@5'] / 2:.4f}"}

    found = sdx.compare(parts, NAMES, k=5, extra=extra)
    for row in found.leaderboard:
        assert row["half"] == f"{found.results[row['']]['recall@5'] / 2:.4f}"
        again = sdx.load(tmp_path / f"{row['']}.sdx").evaluate(parts.test, 5)
        assert dict(again) == dict(found.results[row[""]])


def test_the_report_shows_data_options_results_and_differences(
    log: sdx.Interactions, tmp_path: Path
) -> None:
    found = sdx.compare(log, {"popular": {}, "item_cf": {"neighbours": 77}}, k=(5, 20))
    found.report(tmp_path / "r.html", title="Two recipes", lead="on a world")
    page = (tmp_path / "r.html").read_text()
    for words in ("Two recipes", "on a world", "neighbours 77", "Is the difference real?"):
        assert words in page
    for name in NAMES:
        assert f"{found.results[name]['recall@20']:.4f}" in page
    assert f"<td>{len(log):,}</td>" in page
    assert found.split.card.sha256 in page
    assert "Without a result" not in page


# a budget, errors and Ctrl-C ---------------------------------------------------------------------


def test_once_the_budget_is_spent_no_recipe_starts_and_the_rest_is_named(
    parts: sdx.Split, tmp_path: Path, capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    found = sdx.compare(parts, ["popular", "item_cf", "rg2"], k=5, budget=1e-9)
    assert list(found.results) == ["popular"]
    assert found.skipped == ["item_cf", "rg2"]
    assert found.stopped == "budget"
    assert "item_cf: not trained (the budget was spent)" in str(found)
    assert "rg2: not trained (the budget was spent)" in capsys.readouterr().err
    found.report(tmp_path / "r.html")
    assert "Without a result" in (tmp_path / "r.html").read_text()


def test_a_budget_that_lasts_trains_all(parts: sdx.Split) -> None:
    found = sdx.compare(parts, NAMES, k=5, budget="1h")
    assert list(found.results) == NAMES
    assert found.stopped is None


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [(90, 90), (0.5, 0.5), ("90", 90), ("90s", 90), ("10m", 600), ("1.5 h", 5400),
     ("1h30m", 5400), (" 1h 0m 5s ", 3605)],
)  # fmt: skip
def test_budgets_are_seconds_or_times(budget: float | str, seconds: float) -> None:
    assert module.parse_seconds(budget) == seconds


def test_a_recipe_that_fails_does_not_stop_the_others(parts: sdx.Split) -> None:
    found = sdx.compare(parts, {"bpr": {"features": ["colour"]}, "popular": {}}, k=5)
    assert list(found.results) == ["popular"]
    assert isinstance(found.failed["bpr"], sdx.SoftdexError)
    assert not found.skipped
    assert f"bpr: failed ({found.failed['bpr']})" in str(found)


def test_an_error_of_ours_is_kept_with_its_type(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_fit(monkeypatch, "item_cf", ZeroDivisionError("by 0"))
    found = sdx.compare(parts, NAMES, k=5)
    assert found.missing == {"item_cf": "failed (ZeroDivisionError: by 0)"}


def test_an_error_that_is_kept_holds_no_memory_of_its_recipe(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[np.ndarray]] = []
    fit = module.fit

    def broken(name: str, *given: Any, **options: Any) -> sdx.Retriever:
        if name == "popular":
            return fit(name, *given, **options)
        table = np.zeros(10)
        held.append(weakref.ref(table))
        raise MemoryError

    monkeypatch.setattr(module, "fit", broken)
    found = sdx.compare(parts, ["rg2", "popular"], k=5)
    assert isinstance(found.failed["rg2"], MemoryError)
    assert held[0]() is None


def test_if_every_recipe_fails_the_first_error_is_raised(parts: sdx.Split) -> None:
    bad = {"bpr": {"features": ["colour"]}, "ssm": {"features": ["taste"]}}
    with pytest.raises(sdx.SoftdexError, match="unknown column 'colour'"):
        sdx.compare(parts, bad, k=5)


def test_ctrl_c_keeps_what_has_finished(parts: sdx.Split, monkeypatch: pytest.MonkeyPatch) -> None:
    break_fit(monkeypatch, "rg2", KeyboardInterrupt())
    found = sdx.compare(parts, ["popular", "rg2", "item_cf"], k=5)
    assert list(found.results) == ["popular"]
    assert found.stopped == "interrupt"
    assert found.missing == dict.fromkeys(["rg2", "item_cf"], "not trained (interrupted)")
    with pytest.raises(KeyboardInterrupt):
        sdx.compare(parts, ["rg2", "popular"], k=5)


# mistakes ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recipes": ["popluar"]}, "compare: unknown recipe 'popluar'. Did you mean 'popular'?"),
        ({"recipes": "popular"}, "compare: expected recipes as a list of names or as"),
        ({"recipes": []}, "compare: expected recipes as a list of names or as"),
        ({"recipes": {}}, "compare: expected recipes as a list of names or as"),
        ({"recipes": [3]}, "compare: expected recipes as a list of names or as"),
        ({"recipes": {"rg2": 64}}, "compare: expected options of rg2 as a dict, got 64"),
        ({"recipes": {"rg2": {"dmi": 64}}}, "rg2: unknown option 'dmi'. Did you mean 'dim'?"),
        ({"recipes": {"rg2": {"dim": -1}}}, "rg2: expected dim > 0, got -1"),
        ({"k": 0}, r"evaluate: expected cut-offs k of at least 1, got \[0\]"),
        ({"k": []}, "evaluate: expected cut-offs k of at least 1"),
        ({"k": "ten"}, "evaluate: expected k as a whole number or a list"),
        ({"k": 10**6}, "evaluate: expected k of at most 1,000, got 1,000,000"),
        ({"index": "servd"}, "evaluate: unknown value of index 'servd'. Did you mean 'served'?"),
        ({"empty": "none"}, "evaluate: unknown value of empty 'none'"),
        ({"max_memory": "lots"}, "max_memory: expected a size such as '2GB', got 'lots'"),
        ({"budget": 0}, "compare: expected budget as a positive number of seconds or a time"),
        ({"budget": -5}, "compare: expected budget as"),
        ({"budget": float("inf")}, "compare: expected budget as"),
        ({"budget": float("nan")}, "compare: expected budget as"),
        ({"budget": True}, "compare: expected budget as"),
        ({"budget": "soon"}, "compare: expected budget as .*, got 'soon'"),
        ({"budget": ""}, "compare: expected budget as .*, got ''"),
        ({"budget": "0m"}, "compare: expected budget as .*, got '0m'"),
        ({"budget": "5m1h"}, "compare: expected budget as .*, got '5m1h'"),
    ],
)
def test_a_mistake_is_one_clear_error_before_any_training(
    parts: sdx.Split, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(sdx.SoftdexError, match=f"^{words}"):
        sdx.compare(parts, **({"recipes": ["popular"]} | given))


@pytest.mark.usefixtures("untrained")
def test_what_is_neither_a_log_nor_a_split_is_refused(
    parts: sdx.Split, log: sdx.Interactions
) -> None:
    for given in (tuple(parts), "clicks.csv", None, parts.test):
        with pytest.raises(sdx.DataError, match=r"^compare: expected a log or a split, got"):
            sdx.compare(given, ["popular"])  # type: ignore[arg-type]
    with pytest.raises(sdx.DataError, match="compare: the training log is empty"):
        sdx.compare(log.select(np.zeros(len(log), bool)), ["popular"])


def test_a_report_that_cannot_be_written_leaves_the_comparison_as_it_was(
    found: sdx.Comparison, tmp_path: Path
) -> None:
    with pytest.raises(sdx.SoftdexError, match="cannot write"):
        found.report(tmp_path)
    assert list(found.results) == NAMES
