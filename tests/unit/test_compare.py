"""Compare: fit and evaluate one by one, choose on validation; nothing that has finished is lost."""

from __future__ import annotations

import fcntl
import importlib
import io
import json
import math
import os
import time
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import softdex as sdx
from softdex.compare.board import Board
from softdex.machine import parse_seconds
from softdex.progress import Work
from softdex.tables import Rows

module = importlib.import_module("softdex.compare.run")
NAMES = ["popular", "item_cf"]
LISTED = "compare: expected recipes as a list of names and functions, or as"
POPULAR = sdx.recipes.entry("popular").function


@pytest.fixture
def found(parts: sdx.Split) -> sdx.Comparison:
    return sdx.compare(parts, NAMES, k=(5, 20))


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if anything is trained."""
    monkeypatch.setattr(module, "train_once", lambda *_, **__: pytest.fail("it trained"))


def break_fit(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let the training of one recipe raise an error."""
    train = module.train_once

    def broken(recipe: str, *given: Any, **options: Any) -> sdx.Retriever:
        if recipe == name:
            raise error
        return train(recipe, *given, **options)

    monkeypatch.setattr(module, "train_once", broken)


# what it finds -----------------------------------------------------------------------------------


def test_figures_are_those_of_fit_and_evaluate_one_by_one(parts: sdx.Split) -> None:
    options: dict[str, dict[str, Any]] = {
        "rg2": {"dim": 8, "epochs": 2},
        "item_cf": {},
        "ssm": {"dim": 8, "negatives": 20, "epochs": 2, "device": "cpu"},
    }
    found = sdx.compare(parts, options, k=(5, 20), index="both", empty="zero")
    assert list(found.results) == list(options) == list(found.seconds) == list(found.valid)
    for name, given in options.items():
        model = sdx.fit(name, parts.train, valid=parts.valid, **given)
        result = model.evaluate(parts.test, (5, 20), index="both", empty="zero")
        assert dict(found.results[name]) == dict(result)
        assert found.valid[name] == model.card.metrics["valid"]["ndcg@20"]
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


def test_none_compares_eight_from_cheap_to_dear_and_reads_order_only_where_there_is_one(
    log: sdx.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[str] = []

    def train(name: str, options: Any, train: sdx.Interactions, *_: Any, **__: Any) -> Any:
        trained.append(name)
        return sdx.fit("popular", train)

    monkeypatch.setattr(module, "train_once", train)
    sdx.compare(log, k=5)
    assert trained == [*module.PORTFOLIO, "sasrec"]
    assert len(trained) == 8
    trained.clear()
    sdx.compare(replace(log, time=None), k=5)
    assert trained == list(module.PORTFOLIO)


def counted(train: sdx.Interactions, *, shift: int = 0) -> Any:
    """Score items by their counts, moved on by some places."""
    encoder, scorer = sdx.recipes.make("popular", train, {})
    scorer.weight = scorer.weight.roll(shift)
    return encoder, scorer


def test_functions_are_compared_beside_names(parts: sdx.Split) -> None:
    both = sdx.compare(parts, ["popular", counted], k=5)
    assert dict(both.results["counted"]) == dict(both.results["popular"])
    moved = sdx.compare(parts, {"popular": {}, counted: {"shift": 1}}, k=5)
    assert dict(moved.results["counted"]) != dict(moved.results["popular"])
    assert moved.model("counted").card.options == {"shift": 1}


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


def test_the_leaderboard_has_a_row_per_recipe_the_best_of_the_metric_first(
    found: sdx.Comparison,
) -> None:
    rows = found.leaderboard
    assert [row[""] for row in rows] == ["item_cf", "popular"] == found.ranking
    found.store.entries["popular"]["valid"] = 1.0  # which chooses, and does not rank
    assert found.best == "popular"
    assert [row[""] for row in found.leaderboard] == ["item_cf", "popular"]
    found.store.entries["popular"]["valid"] = 0.1
    rows = found.leaderboard
    metrics = ["recall@5", "ndcg@5", "recall@20", "ndcg@20"]
    assert list(rows[0]) == ["", "valid ndcg@20", *metrics, "fit s"]
    for row in rows:
        assert row["valid ndcg@20"] == f"{found.valid[row['']]:.4f}"
        assert row["ndcg@20"] == found.results[row[""]].shown("ndcg@20")
    kept = ["", "valid ndcg@20", "recall@20", "ndcg@20", "fit s"]
    shown = Rows("", [{name: row[name] for name in kept} for row in rows])
    assert str(found).startswith(str(shown))


def test_the_leaderboard_goes_by_the_metric_asked_for(parts: sdx.Split) -> None:
    by = {}
    for metric in ("recall@5", "mrr@20", None):
        found = sdx.compare(parts, ["item_cf", "popular", counted], k=(5, 20), metric=metric)
        found.results["counted"] = replace(
            found.results["popular"],
            means={n: v + (n == "recall@5") for n, v in found.results["popular"].items()},
            per_user={
                n: v + (n == "recall@5") for n, v in found.results["popular"].per_user.items()
            },
        )
        by[found.metric] = [row[""] for row in found.leaderboard]
        assert found.metric in found.leaderboard[0]
    assert by == {
        "recall@5": ["counted", "item_cf", "popular"],
        "mrr@20": ["item_cf", "popular", "counted"],
        "ndcg@20": ["item_cf", "popular", "counted"],
    }


def test_more_cut_offs_than_fit_are_left_out_of_what_is_printed_only(parts: sdx.Split) -> None:
    found = sdx.compare(parts, NAMES, k=(1, 2, 5, 20))
    assert len(found.leaderboard[0]) == 3 + 2 * 4
    assert str(found).split("\n")[0].split() == [
        "valid", "ndcg@20", "recall@20", "ndcg@20", "fit", "s",
    ]  # fmt: skip


def test_a_notebook_shows_the_leaderboard_and_what_it_means(found: sdx.Comparison) -> None:
    page = found._repr_html_()
    for row in found.leaderboard:
        for value in row.values():
            assert f">{value}</td>" in page
    assert page.index("item_cf") < page.index("popular")
    assert "item_cf is the best on validation.<br>On test it is above popular by" in page


def test_differences_are_the_paired_bootstrap_of_the_best_against_the_others(
    parts: sdx.Split, found: sdx.Comparison
) -> None:
    (row,) = found.differences
    bootstrap = found.results["item_cf"].compare(found.results["popular"])
    wanted = next(r for r in bootstrap if r["metric"] == "ndcg@20")
    assert (row["against"], row["metric"]) == ("popular", "ndcg@20")
    for name in ("difference", "low", "high"):
        assert row[name] == pytest.approx(wanted[name], abs=1e-3)
    assert row["real"]
    assert row["p"] == 0.001
    assert "item_cf is the best on validation." in str(found)
    assert f"On test it is above popular by {row['difference']:.4f} ndcg@20" in str(found)
    twins = sdx.compare(parts, {"ssm": {"epochs": 1, "dim": 4}, "popular": {}}, k=20)
    twins.results["ssm"] = twins.results["popular"]
    assert [row["real"] for row in twins.differences] == [False]
    assert "p 1.000, cannot be told apart" in str(twins)


def test_the_best_is_chosen_on_validation_whatever_the_test_part_says(
    parts: sdx.Split, found: sdx.Comparison
) -> None:
    found.store.entries["popular"]["valid"] = 1.0
    assert found.best == "popular"
    assert found.model().recipe == "popular"
    assert found.results["item_cf"]["ndcg@20"] > found.results["popular"]["ndcg@20"]
    (row,) = found.differences
    assert row["real"]
    assert f"On test it is below item_cf by {-row['difference']:.4f} ndcg@20" in str(found)


def test_without_a_validation_part_the_choice_falls_on_test_and_says_so(
    log: sdx.Interactions,
) -> None:
    found = sdx.compare(sdx.split.xir(log), NAMES, k=20)
    assert found.valid == {}
    assert found.ranking == ["item_cf", "popular"]
    assert "item_cf is the best on test (there is no validation part)." in str(found)


def test_the_test_part_is_asked_once_per_recipe_after_the_last_training(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    train, evaluate = module.train_once, sdx.Retriever.evaluate

    def training(name: str, *given: Any, **options: Any) -> sdx.Retriever:
        done.append(f"train {name}")
        return train(name, *given, **options)

    def evaluating(model: sdx.Retriever, holdout: Any, *given: Any, **rules: Any) -> sdx.Result:
        done.append(f"{'test' if holdout is parts.test else 'valid'} {model.recipe}")
        return evaluate(model, holdout, *given, **rules)

    monkeypatch.setattr(module, "train_once", training)
    monkeypatch.setattr(sdx.Retriever, "evaluate", evaluating)
    sdx.compare(parts, NAMES, k=5)
    assert done == [
        "train popular", "valid popular", "train item_cf", "valid item_cf",
        "test popular", "test item_cf",
    ]  # fmt: skip


def test_extra_columns_come_from_the_trained_models(parts: sdx.Split, tmp_path: Path) -> None:
    def extra(model: sdx.Retriever, result: sdx.Result) -> Mapping[str, Any]:
        model.save(tmp_path / f"{model.recipe}.sdx")
        return {"half": f"{result['recall@5'] / 2:.4f}"}

    found = sdx.compare(parts, NAMES, k=5, extra=extra)
    assert len(found.leaderboard) == len(NAMES)
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
    for words in ("Two recipes", "on a world", "neighbours 77", "Who beats whom"):
        assert words in page
    for name in NAMES:
        assert f"{found.results[name]['recall@20']:.4f}" in page
    assert f"<dt>rows</dt><dd><bdi>{len(log):,}</bdi></dd>" in page
    assert found.split.card.sha256 in page
    assert "0, of every recipe" not in page  # neither of them draws
    assert "class='notes'" not in page


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
    words = "</b>: not trained (the budget was spent)"
    assert (tmp_path / "r.html").read_text().count(words) == 2


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
    assert parse_seconds("budget", budget) == seconds


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
    train = module.train_once

    def broken(name: str, *given: Any, **options: Any) -> sdx.Retriever:
        if name == "popular":
            return train(name, *given, **options)
        table = np.zeros(10)
        held.append(weakref.ref(table))
        raise MemoryError

    monkeypatch.setattr(module, "train_once", broken)
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


def test_recipes_share_what_is_left_of_the_budget(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    shares: list[float] = []

    def train(name: str, options: Any, train: sdx.Interactions, *_: Any, **how: Any) -> Any:
        shares.append(how["until"] - time.monotonic())
        return sdx.fit("popular", train)

    monkeypatch.setattr(module, "train_once", train)
    sdx.compare(parts, ["popular", "item_cf", "rg2", "ssm"], k=5, budget=1000)
    assert shares == pytest.approx([250, 333, 500, 1000], rel=0.01)


def test_every_recipe_in_epochs_stops_early_by_default() -> None:
    patience = {
        n: o["patience"] for n in sdx.recipes.names() if "patience" in (o := sdx.recipes.options(n))
    }
    assert {
        "ssl_pop",
        "bir",
        "fastvae",
        "mult_vae",
        "ssm",
        "sasrec",
        "dtr",
        "ials",
    } < patience.keys()
    assert min(patience.values()) > 0


SLOW: dict[str, Any] = {"dim": 8, "negatives": 20, "epochs": 6, "patience": 0, "device": "cpu"}


def stop_after(monkeypatch: pytest.MonkeyPatch, epochs: int) -> None:
    """Let the time be over in the epoch after these."""
    loop = importlib.import_module("softdex.solve.loop")
    epoch = loop.Run._epoch

    def timed(run: Any, *given: Any) -> dict[str, Any]:
        if run.progress.epoch == epochs and run.until < math.inf:
            run.until = 0.0
        return epoch(run, *given)

    monkeypatch.setattr(loop.Run, "_epoch", timed)


def test_a_recipe_in_epochs_stops_when_its_time_is_over_with_its_best_epoch(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sdx.fit("ssm", parts.train, valid=parts.valid, **SLOW | {"lr": 0.3})
    metrics = [record["metric"] for record in whole.card.training["history"]]  # type: ignore[index]
    best = int(np.argmax(metrics[:4]))
    stop_after(monkeypatch, 4)
    found = sdx.compare(parts, {"ssm": SLOW | {"lr": 0.3}}, k=20, budget="1h")
    assert found.cut == {"ssm": 4}
    assert "ssm: stopped by the budget in epoch 5" in str(found)
    training = found.model("ssm").card.training
    assert training is not None
    assert training["cut"]
    assert training["best_epoch"] == best + 1
    assert [record["metric"] for record in training["history"]] == metrics[:4]
    assert found.valid["ssm"] == pytest.approx(metrics[best], abs=1e-6)


def test_max_seconds_stops_a_training_and_refuses_to_refit_less_than_an_epoch(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(monkeypatch, 0)
    model = sdx.fit("ssm", parts.train, valid=parts.valid, max_seconds="1h", **SLOW)
    assert model.card.training == {"best_epoch": 0, "history": [], "cut": True}
    assert len(model.recommend(parts.train.users.all()[0].as_py(), k=3)) == 3
    with pytest.raises(sdx.SoftdexError, match=r"needs one whole epoch\. Raise max_seconds"):
        sdx.fit("ssm", parts.train, valid=parts.valid, max_seconds=9, refit=True, **SLOW)
    with pytest.raises(sdx.SoftdexError, match=r"^fit: max_seconds: expected a positive"):
        sdx.fit("ssm", parts.train, max_seconds="soon")


# a folder ----------------------------------------------------------------------------------------


def test_what_is_in_the_folder_is_not_trained_again(
    parts: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sdx.compare(parts, NAMES, k=5, folder=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["compare.json", "item_cf", "popular"]
    kept = sdx.load(tmp_path / "item_cf")
    assert kept.card.metrics["test"] == dict(first.results["item_cf"])
    monkeypatch.setattr(module, "train_once", lambda *_, **__: pytest.fail("it trained"))
    again = sdx.compare(parts, NAMES, k=5, folder=tmp_path)
    assert str(again) == str(first)
    assert list(sdx.compare(parts, ["popular"], k=5, folder=tmp_path).results) == ["popular"]


@pytest.mark.usefixtures("untrained")
def test_a_folder_that_another_comparison_writes_into_is_refused(
    parts: sdx.Split, tmp_path: Path
) -> None:
    words = f"^compare: another run is writing into {tmp_path}. Wait until it ends, or choose"
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with pytest.raises(sdx.SoftdexError, match=words):
        sdx.compare(parts, NAMES, k=5, folder=tmp_path)
    os.close(handle)
    assert list(tmp_path.iterdir()) == []


def test_after_ctrl_c_the_same_call_trains_what_is_missing(
    parts: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["popular", "rg2", "item_cf"]
    with monkeypatch.context() as patched:
        break_fit(patched, "rg2", KeyboardInterrupt())
        stopped = sdx.compare(parts, names, k=5, folder=tmp_path)
    assert list(stopped.results) == ["popular"]
    break_fit(monkeypatch, "popular", AssertionError("trained again"))
    found = sdx.compare(parts, names, k=5, folder=tmp_path)
    assert list(found.results) == names
    assert not found.failed
    assert dict(found.results["popular"]) == dict(stopped.results["popular"])


def test_a_larger_budget_goes_on_with_what_the_smaller_one_stopped(
    parts: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = sdx.fit("ssm", parts.train, valid=parts.valid, **SLOW)

    def compare(budget: str) -> sdx.Comparison:
        return sdx.compare(parts, {"ssm": SLOW}, k=5, folder=tmp_path, budget=budget)

    with monkeypatch.context() as patched:
        stop_after(patched, 2)
        assert compare("1h").cut == {"ssm": 2}
    assert compare("1h").cut == {"ssm": 2}
    found = compare("2h")
    assert found.cut == {}
    assert found.model("ssm").card.training == whole.card.training
    users = parts.train.users.all().to_pylist()
    lists = [model.recommend(users, k=5).table for model in (whole, found.model("ssm"))]
    assert lists[0].equals(lists[1])
    assert not list(tmp_path.rglob("checkpoint*"))


@pytest.mark.usefixtures("untrained")
def test_other_data_options_and_foreign_models_are_refused_before_any_training(
    parts: sdx.Split, log: sdx.Interactions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = tmp_path / "compare.json"
    options = sdx.recipes.options("item_cf")
    entries = {"item_cf": {"options": options, "seconds": 1.0}}

    def refused(*, split: str, recipes: Any, given: Any = None) -> str:
        ledger.write_text(json.dumps({"split": split, "recipes": recipes}))
        with pytest.raises(sdx.SoftdexError) as error:
            sdx.compare(parts, given or NAMES, k=5, folder=tmp_path)
        return str(error.value)

    here = parts.card.sha256
    assert refused(split="f00d" * 16, recipes={}) == (
        f"compare: {tmp_path} holds a comparison on other data or another split (its split is "
        f"f00df00d, now it is {here[:8]}). Use those, or another folder."
    )
    assert refused(split=here, recipes=entries, given={"item_cf": {"neighbours": 7}}) == (
        f"compare: {tmp_path / 'item_cf'} was trained with other options (neighbours). Use the "
        "same ones, or another folder."
    )
    for broken in ("", "[]", '{"split": 1}', '{"split": "a", "recipes": {"popular": 3}}'):
        ledger.write_text(broken)
        with pytest.raises(sdx.SoftdexError, match=r"compare\.json is damaged"):
            sdx.compare(parts, NAMES, k=5, folder=tmp_path)
    ledger.unlink()
    (tmp_path / "popular").mkdir()
    (tmp_path / "popular" / "model.sdx").write_bytes(b"mine")
    with pytest.raises(sdx.SoftdexError, match="popular holds a model of another run"):
        sdx.compare(parts, NAMES, k=5, folder=tmp_path)
    assert (tmp_path / "popular" / "model.sdx").read_bytes() == b"mine"


# the board ---------------------------------------------------------------------------------------


def test_the_board_shows_the_best_first_then_training_then_waiting() -> None:
    board = Board(["popular", "rg2", "ssm", "sasrec"])
    board.done("popular", {"seconds": 0.5, "valid": 0.02, "cut": None}, before=True)
    board.done("rg2", {"seconds": 2.0, "valid": 0.05, "cut": 60.0})
    board.begin("ssm")
    board.work.below = Work("ssm", "epoch", 5, done=3)
    board.work.below.facts = {"ndcg@20": "0.0400"}

    def shown(width: int) -> list[list[str]]:
        return [[str(cell) for cell in column._cells] for column in board.table(width).columns]

    rows = shown(80)
    assert rows[0] == ["rg2", "popular", "ssm", "sasrec"]
    assert rows[1] == ["0.0500", "0.0200", "", ""]
    assert rows[2] == ["2.0", "0.5", "0.0", ""]
    assert rows[3] == [
        "stopped by the budget", "trained before", "epoch 4/5, ndcg@20 0.0400", "waiting",
    ]  # fmt: skip
    assert shown(45)[3] == ["stopped by th…", "trained before", "epoch 4/5, nd…", "waiting"]


def test_on_a_terminal_the_table_is_live_and_nothing_else_is_printed_meanwhile(
    parts: sdx.Split, monkeypatch: pytest.MonkeyPatch, loud: None
) -> None:
    screen, shown = io.StringIO(), []
    report = module._report_all

    def reporting(*given: Any) -> sdx.Comparison:
        shown.append(screen.getvalue())
        return report(*given)

    monkeypatch.setattr(module, "_report_all", reporting)
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    sdx.compare(parts, {"popular": {}, "ssm": SLOW | {"epochs": 2}}, k=5)
    assert "valid ndcg@20" in shown[0]
    assert "training on" not in shown[0]


def test_without_a_terminal_each_recipe_has_a_line(
    parts: sdx.Split, capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    found = sdx.compare(parts, NAMES, k=5)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == [f"{name}: trained" for name in NAMES]
    assert lines[1].endswith(f" s, ndcg@20 {found.valid['item_cf']:.4f} on validation")


# mistakes ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"recipes": ["popluar"]}, "compare: unknown recipe 'popluar'. Did you mean 'popular'?"),
        (
            {"recipes": "popular"},
            LISTED,
        ),
        ({"recipes": []}, LISTED),
        ({"recipes": {}}, LISTED),
        ({"recipes": ["popular", POPULAR]}, "compare: two recipes have the name 'popular'"),
        ({"recipes": [3]}, LISTED),
        ({"recipes": {"rg2": 64}}, "compare: expected options of rg2 as a dict, got 64"),
        ({"recipes": {"rg2": {"dmi": 64}}}, "rg2: unknown option 'dmi'. Did you mean 'dim'?"),
        ({"recipes": {"rg2": {"dim": -1}}}, "rg2: expected dim > 0 and at most 65,536, got -1"),
        ({"k": 0}, r"evaluate: expected cut-offs k of at least 1, got \[0\]"),
        ({"k": []}, "evaluate: expected cut-offs k of at least 1"),
        ({"k": "ten"}, "evaluate: expected k as a whole number or a list"),
        ({"k": 10**6}, "evaluate: expected k of at most 1,000, got 1,000,000"),
        ({"index": "servd"}, "evaluate: unknown value of index 'servd'. Did you mean 'served'?"),
        ({"empty": "none"}, "evaluate: unknown value of empty 'none'"),
        ({"metric": "ndgc@20"}, "compare: unknown metric 'ndgc@20'. Did you mean 'ndcg@20'?"),
        ({"metric": "ndcg@5"}, "compare: unknown metric 'ndcg@5'. Did you mean 'ndcg@50'?"),
        ({"metric": "coverage@20"}, "compare: unknown metric 'coverage@20'"),
        ({"max_memory": "lots"}, "max_memory: expected a size such as '2GB', got 'lots'"),
        ({"budget": 0}, "compare: budget: expected a positive number of seconds or a time"),
        ({"budget": -5}, "compare: budget: expected"),
        ({"budget": float("inf")}, "compare: budget: expected"),
        ({"budget": float("nan")}, "compare: budget: expected"),
        ({"budget": True}, "compare: budget: expected"),
        ({"budget": "soon"}, "compare: budget: expected .*, got 'soon'"),
        ({"budget": ""}, "compare: budget: expected .*, got ''"),
        ({"budget": "0m"}, "compare: budget: expected .*, got '0m'"),
        ({"budget": "5m1h"}, "compare: budget: expected .*, got '5m1h'"),
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
    with pytest.raises(sdx.SoftdexError, match=r"report: expected a file name ending in \.html"):
        found.report(tmp_path / "clicks.csv")
    with pytest.raises(sdx.SoftdexError, match="report: no item column 'colour'"):
        found.report(tmp_path / "r.html", columns=["colour"])
    other = {"popular": found.results["popular"]}
    with pytest.raises(sdx.SoftdexError, match="report: a recipe is called 'popular'"):
        found.report(tmp_path / "r.html", also=other)
    with pytest.raises(sdx.DataError, match=r"report: expected a result as also\['mine'\], got "):
        found.report(tmp_path / "r.html", also={"mine": [1]})  # type: ignore[dict-item]
    assert list(tmp_path.iterdir()) == []
    assert list(found.results) == NAMES


def test_a_report_has_results_that_come_from_elsewhere(
    parts: sdx.Split, found: sdx.Comparison, tmp_path: Path
) -> None:
    asked = parts.test.user_keys.take(parts.test.users)
    lists = found.model("item_cf").recommend(asked, k=20)
    mine = sdx.evaluate(lists, parts.test, k=(5, 20))
    found.report(tmp_path / "r.html", also={"mine": mine})
    page = (tmp_path / "r.html").read_text()
    assert f"{mine['ndcg@20']:.4f}" in page
    assert "Not trained here: <b class='name' title='mine'>" in page
    other = sdx.evaluate(lists, parts.valid, k=(5, 20))  # type: ignore[arg-type]
    with pytest.raises(sdx.SoftdexError, match="pairs: expected results of the same users"):
        found.report(tmp_path / "q.html", also={"other": other})
    assert not (tmp_path / "q.html").exists()


def test_memory_is_known_per_recipe_also_of_those_trained_before(
    parts: sdx.Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = module.train_once

    def greedy(name: str, *given: Any, **options: Any) -> sdx.Retriever:
        held = np.ones(2**25 if name == "item_cf" else 1)  # 256 MB
        return train(name, *given, **options) if held.any() else None

    monkeypatch.setattr(module, "train_once", greedy)
    for _ in range(2):
        found = sdx.compare(parts, ["item_cf", "popular"], k=20, folder=tmp_path)
        if "memory" not in found.store.entries["popular"]:
            pytest.skip("this kernel does not tell the memory of a process")
        much, little = (found.store.entries[name]["memory"] for name in ("item_cf", "popular"))
        assert much - little > 2e8
    found.store.entries["popular"]["gpu_memory"] = 123 * 10**6
    found.report(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert f"<td>{much / 1e6:,.0f}</td>" in page
    assert "<th scope='col'>GPU MB</th>" in page
    assert "<td>123</td>" in page


# parts put together by hand ----------------------------------------------------------------------


def test_parts_put_together_by_hand_are_compared_if_none_is_trained_on(
    parts: sdx.Split, log: sdx.Interactions, tmp_path: Path
) -> None:
    own = sdx.Split(parts.train, parts.valid, parts.test)
    assert own.card == parts.card
    assert sdx.compare(own, ["popular"], folder=tmp_path, k=5).best == "popular"
    other = sdx.split.per_user(log)
    for wrong, name in (
        (sdx.Split(log, parts.valid, parts.test), "valid"),
        (parts._replace(valid=None, train=other.train), "test"),
    ):
        with pytest.raises(sdx.DataError, match=rf"compare: .* Pass train and {name} of one"):
            sdx.compare(wrong, ["popular"])
    few = parts._replace(train=parts.train.select(np.arange(0, len(parts.train), 2)))
    with pytest.raises(sdx.SoftdexError, match="holds a comparison on other data or another split"):
        sdx.compare(few, ["popular"], folder=tmp_path)
