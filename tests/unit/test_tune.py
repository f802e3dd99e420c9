"""Tuning: it finds what is better, trains nothing twice, and can be stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import softdex as sdx
from softdex import recipes
from softdex.encode.counting import Unpersonalised
from softdex.errors import SoftdexError
from softdex.messages import METRIC
from softdex.score.counting import Constant
from softdex.solve import loop
from softdex.solve.closed import als
from softdex.tune import Tuned, _spread, tune

FIXED: dict[str, Any] = {"dim": 8, "epochs": 9, "patience": 0, "device": "cpu"}
SPACE: dict[str, Any] = {"lam": (0.01, 1.0), "alpha": [0.0, 0.03, 0.3]}


@pytest.fixture(scope="module")
def split() -> sdx.Split:
    world = sdx.synthetic.world(users=250, items=100, seed=6, events=15, strength=2.0)
    return sdx.split.leave_last(world.interactions())


def search(name: recipes.Recipe, split: sdx.Split, **more: Any) -> Tuned:
    assert split.valid is not None
    return tune(name, split.train, split.valid, **more)


@pytest.fixture(scope="module")
def found(split: sdx.Split) -> Tuned:
    return search("rg2", split, settings=9, space=SPACE, **FIXED)


# what it finds -----------------------------------------------------------------------------------


def test_a_bad_setting_is_left_behind(split: sdx.Split) -> None:
    """In a log as dense as this, all items must weigh more."""
    space, fixed = {"lam": (0.003, 0.3), "alpha": (0.03, 1.0)}, FIXED | {"epochs": 3}
    better = search("ials", split, settings=9, space=space, **fixed)
    bad = sdx.fit("ials", split.train, valid=split.valid, alpha=0.03, lam=0.005, **fixed)
    assert better.metric > 1.2 * bad.card.metrics["valid"][METRIC]
    here, there = (m.evaluate(split.test, 20)[METRIC] for m in (better.model, bad))
    assert here > 1.2 * there  # seen: .251 and .188


@pytest.mark.parametrize(("name", "space", "fixed"), [
    ("ials", {"lam": (0.001, 0.1)}, FIXED | {"epochs": 3}),
    ("rgx", {"beta": [0.5, 1.0]}, FIXED | {"epochs": 3}),
    ("item_cf", {"neighbours": [5, 20, 50]}, {}),
    ("ssm", {"lr": (0.01, 0.1)}, {"dim": 8, "epochs": 4, "negatives": 20, "device": "cpu"}),
])  # fmt: skip
def test_any_recipe_with_options_can_be_tuned(
    split: sdx.Split, name: str, space: dict[str, Any], fixed: dict[str, Any]
) -> None:
    result = search(name, split, settings=4, space=space, **fixed)
    scores = [row[METRIC] for row in result.settings]
    assert 1 < len(scores) <= 4
    assert result.metric == max(scores) == scores[0]
    assert result.model.recipe == name
    assert set(result.options) == set(space) | set(fixed)


def test_the_options_that_were_found_give_the_same_model(split: sdx.Split, found: Tuned) -> None:
    again = sdx.fit("rg2", split.train, valid=split.valid, **found.options)
    assert split.valid is not None
    assert found.metric == again.evaluate(split.valid, 20)[METRIC]
    assert again.card.metrics == found.model.card.metrics
    assert again.card.training == found.model.card.training
    mine, theirs = (m.recommend(["u000"], k=5).table for m in (again, found.model))
    assert mine == theirs


def test_it_is_the_best_epoch_of_the_best_setting_that_is_returned(
    split: sdx.Split, found: Tuned
) -> None:
    training = found.model.card.training
    marks = [record["metric"] for record in training["history"]]
    assert training["best_epoch"] == int(np.argmax(marks)) + 1
    assert found.metric == pytest.approx(max(marks), abs=1e-6)


def test_defaults_are_among_the_settings_and_what_is_fixed_stays(
    found: Tuned, split: sdx.Split
) -> None:
    default = recipes.options("rg2")
    tried = [{n: row[n] for n in SPACE} for row in found.settings]
    assert {n: default[n] for n in SPACE} in tried
    assert found.options == FIXED | {n: found.options[n] for n in SPACE}
    assert found.model.options == default | found.options
    low, high = SPACE["lam"]
    assert all(low <= setting["lam"] <= high for setting in tried)
    assert {setting["alpha"] for setting in tried} == set(SPACE["alpha"])
    alone = search("rg2", split, settings=2, space=SPACE, lam=0.07, **(FIXED | {"epochs": 1}))
    assert alone.options["lam"] == 0.07
    assert "lam" not in alone.settings[0]


def test_the_same_seed_finds_the_same_and_another_tries_others(
    split: sdx.Split, found: Tuned
) -> None:
    again = search("rg2", split, settings=9, space=SPACE, **FIXED)
    assert list(again.settings) == list(found.settings)
    assert again.options == found.options
    few: dict[str, Any] = {"settings": 4, "space": SPACE, **FIXED, "epochs": 1}
    first, other = (search("rg2", split, search_seed=s, **few) for s in (0, 1))
    assert {r["lam"] for r in first.settings} != {r["lam"] for r in other.settings}
    trained = search("rg2", split, seed=5, **few)
    assert trained.options["seed"] == 5 == trained.model.options["seed"]
    assert {r["lam"] for r in trained.settings} == {r["lam"] for r in first.settings}
    assert {r[METRIC] for r in trained.settings} != {r[METRIC] for r in first.settings}


def test_a_default_outside_the_space_is_not_tried(split: sdx.Split) -> None:
    few = FIXED | {"epochs": 1}
    result = search("rg2", split, settings=5, space={"lam": (0.2, 0.9)}, **few)
    assert len(result.settings) == 5
    assert all(0.2 <= row["lam"] <= 0.9 for row in result.settings)
    choices = search("rg2", split, settings=5, space={"alpha": [0.1, 0.3]}, **few)
    assert {row["alpha"] for row in choices.settings} == {0.1, 0.3}


def test_ranges_of_whole_numbers_give_whole_numbers(split: sdx.Split) -> None:
    space = {"dim": (2, 12), "sampled": (5, 50)}
    result = search("rg2", split, settings=6, space=space, epochs=1, device="cpu")
    for row in result.settings:
        assert isinstance(row["dim"], int)
        assert row["sampled"] is None or 5 <= row["sampled"] <= 50


def test_it_prints_as_a_table_best_first(found: Tuned) -> None:
    head, columns, *lines = str(found).splitlines()
    assert head.startswith("rg2: 9 settings in ")
    assert columns.split() == ["lam", "alpha", "epochs", METRIC]
    assert len(lines) == 9
    assert lines[0].split()[-2:] == ["9", f"{found.metric:.4f}"]
    assert repr(found) == str(found)


# what it costs -----------------------------------------------------------------------------------


def test_nothing_is_trained_twice_and_only_the_better_third_goes_on(
    split: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 settings to epoch 2, 3 to epoch 3, 1 to epoch 9; and no more sweeps than that."""
    sweeps: Counter[int] = Counter()
    plain, runs = als.Sweeps.run_epoch, []

    def counted(self: als.Sweeps, *more: Any) -> float:
        runs.append(self)  # or another might be counted under its number
        sweeps[id(self)] += 1
        return plain(self, *more)

    monkeypatch.setattr(als.Sweeps, "run_epoch", counted)
    result = search("rg2", split, settings=9, space=SPACE, **FIXED)
    assert sorted(sweeps.values()) == [2] * 6 + [3] * 2 + [9]
    assert sorted(row["epochs"] for row in result.settings) == [2] * 6 + [3] * 2 + [9]


def test_settings_that_come_twice_are_trained_once(split: sdx.Split) -> None:
    few = FIXED | {"epochs": 2}
    result = search("rg2", split, settings=20, space={"alpha": [0.03, 0.1]}, **few)
    assert sorted(row["alpha"] for row in result.settings) == [0.03, 0.1]


def test_one_setting_is_the_default_trained_to_the_end(split: sdx.Split) -> None:
    result = search("rg2", split, settings=1, **FIXED)
    assert [row["epochs"] for row in result.settings] == [9]
    assert result.options == FIXED | {n: recipes.options("rg2")[n] for n in ("alpha", "lam")}


def test_each_setting_gets_the_epochs_that_it_asks_for(split: sdx.Split) -> None:
    """More than the default too."""
    fixed = {n: v for n, v in FIXED.items() if n != "epochs"}
    result = search("rg2", split, settings=4, space={"epochs": [12]}, **fixed)
    assert [row["epochs"] for row in result.settings] == [12]
    assert result.options["epochs"] == 12 == len(result.model.card.training["history"])


def test_what_all_settings_hold_together_must_fit_into_memory(split: sdx.Split) -> None:
    few = FIXED | {"epochs": 1, "dim": 64}
    options: dict[str, Any] = {"space": {"lam": (0.01, 1.0)}, "max_memory": "1MiB", **few}
    assert len(search("rg2", split, settings=3, **options).settings) == 3
    with pytest.raises(SoftdexError, match=r"needs about .* GB, max_memory is 0\.00 GB"):
        search("rg2", split, settings=24, **options)


def test_a_setting_that_fails_is_out_and_the_others_go_on(
    split: sdx.Split, monkeypatch: pytest.MonkeyPatch, loud: None, capsys: Any
) -> None:
    plain = als.Sweeps.run_epoch

    def fails(self: als.Sweeps, *more: Any) -> float:
        return float("nan") if self.loss.lam > 0.05 else plain(self, *more)

    monkeypatch.setattr(als.Sweeps, "run_epoch", fails)
    result = search("rg2", split, settings=8, space={"lam": (0.01, 1.0)}, **FIXED)
    assert result.options["lam"] <= 0.05
    assert len(result.settings) < 8
    assert "tuning: a setting failed (training: the loss is not a number" in capsys.readouterr().err
    with pytest.raises(SoftdexError, match="the loss is not a number"):
        search("rg2", split, settings=4, space={"lam": (0.2, 1.0)}, **FIXED)


# stopping ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [1, 5, 12, 16])
def test_ctrl_c_keeps_the_best_so_far(
    split: sdx.Split, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """In the first round, in the second, and in the last: whole epochs count, the rest is left."""
    plain, calls = als.Sweeps.solve_items, 0

    def stopped(self: als.Sweeps) -> float:
        nonlocal calls
        calls += 1
        if calls > after:
            raise KeyboardInterrupt
        return plain(self)

    with monkeypatch.context() as patch:
        patch.setattr(als.Sweeps, "solve_items", stopped)
        result = search("rg2", split, settings=9, space=SPACE, **FIXED)
    assert sum(row["epochs"] for row in result.settings) == after
    assert result.metric == max(row[METRIC] for row in result.settings)
    assert split.valid is not None
    assert result.metric == result.model.evaluate(split.valid, 20)[METRIC]
    assert result.model.card.metrics["valid"][METRIC] == result.metric


def test_ctrl_c_before_anything_is_measured_ends_the_search(
    split: sdx.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: als.Sweeps) -> float:
        raise KeyboardInterrupt

    monkeypatch.setattr(als.Sweeps, "solve_items", stopped)
    with pytest.raises(KeyboardInterrupt):
        search("rg2", split, settings=3, space=SPACE, **FIXED)


def test_the_rounds_are_said(split: sdx.Split, loud: None, capsys: Any) -> None:
    search("rg2", split, settings=9, space=SPACE, **FIXED)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("tuning:")]
    assert [line.split(", best")[0] for line in said] == [
        "tuning: 9 settings to epoch 2",
        "tuning: 3 settings to epoch 3",
        "tuning: 1 settings to epoch 9",
    ]


# refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "words"), [
    ("popular", {}, "popular has nothing to tune. Pass space="),
    ("rg2", {"space": {}}, "rg2 has nothing to tune"),
    ("rg2", {"space": {"lam": [0.1]}, "lam": 0.2}, "rg2 has nothing to tune"),
    ("rg2", {"space": [("lam", [1])]}, "expected space={option"),
    ("rg2", {"space": {"lambda": [0.1]}}, "unknown option 'lambda'"),
    ("rg2", {"space": {"lam": []}}, "expected lam as a list of choices or a pair"),
    ("rg2", {"space": {"lam": (0.0, 1.0)}}, "0 < low < high, got"),
    ("rg2", {"space": {"lam": (1.0, 0.1)}}, "0 < low < high, got"),
    ("rg2", {"space": {"lam": ("a", "b")}}, "0 < low < high, got"),
    ("rg2", {"space": {"lam": (0.1, 1.0, 2.0)}}, "expected lam as a list of choices"),
    ("rg2", {"space": {"lam": 0.1}}, "expected lam as a list of choices"),
    ("rg2", {"space": {"lam": [0.1, "much"]}}, "expected lam as a number, got 'much'"),
    ("rg2", {"space": {"reg": (1, 2)}}, "expected reg as text"),
    ("ssm", {"space": {"objective": ["bpr"]}}, "objective= is fixed"),
    ("rg2", {"lamb": 0.1}, "unknown option 'lamb'"),
    ("rg3", {}, "unknown recipe 'rg3'"),
    ("rg2", {"settings": 0}, "expected a number of settings >= 1, got 0"),
    ("rg2", {"settings": True}, "expected a number of settings >= 1, got True"),
])  # fmt: skip
@pytest.mark.parametrize("settings", [1, 24])
def test_a_senseless_search_is_refused_before_any_training(
    split: sdx.Split,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    options: dict[str, Any],
    words: str,
    settings: int,
) -> None:
    def never(*arguments: Any, **more: Any) -> None:
        raise AssertionError("trained")

    monkeypatch.setattr(loop.Run, "__init__", never)
    with pytest.raises(SoftdexError, match=words):
        search(name, split, **({"settings": settings} | options))


def test_a_search_needs_a_log_and_targets_to_measure_on(split: sdx.Split) -> None:
    assert split.valid is not None
    with pytest.raises(SoftdexError, match="the training log is empty"):
        tune("rg2", split.train.select(np.zeros(0, int)), split.valid)
    with pytest.raises(SoftdexError, match="tune: expected a holdout as valid, got None"):
        tune("rg2", split.train, None)  # type: ignore[arg-type]
    empty = replace(split.valid, targets=split.valid.targets.where(split.valid.targets.ids < 0))
    with pytest.raises(SoftdexError, match="expected a validation part with targets"):
        tune("rg2", split.train, empty)


# options that others leave without an effect


def test_a_tree_is_tuned_without_naming_its_epochs(split: sdx.Split) -> None:
    fixed = {"leaves": "random", "beam": 10, "dim": 4, "max_instances": 200, "device": "cpu"}
    result = search("dtr", split, settings=2, space={"lr": [0.01, 0.02]}, **fixed)
    assert result.model.card.training["best_epoch"] <= 2


def test_what_only_some_settings_read_is_varied_there_and_nowhere_else(split: sdx.Split) -> None:
    fixed = {"dim": 4, "epochs": 2, "negatives": 20, "device": "cpu"}
    space = {"score": ["dot", "cosine"], "temperature": [0.05, 0.2]}
    result = search("ssm", split, settings=30, space=space, **fixed)
    tried = [(row["score"], row["temperature"]) for row in result.settings]
    assert len(tried) == len(set(tried))
    assert {t for s, t in tried if s == "cosine"} == {0.05, 0.2}
    assert sum(s == "dot" for s, _ in tried) == 1
    sdx.fit("ssm", split.train, **result.options)


def test_what_no_setting_reads_is_refused(split: sdx.Split) -> None:
    with pytest.raises(sdx.SoftdexError, match="mf: share= has no effect with encoder='user'"):
        search("mf", split, space={"share": [0.3, 0.6]})
    with pytest.raises(sdx.SoftdexError, match="unknown reg 'l3'"):
        search("ials", split, space={"reg": ["l3", "l2"]})


@pytest.mark.parametrize("search_seed", range(4))
def test_what_one_value_of_a_space_reads_may_be_varied(search_seed: int, split: sdx.Split) -> None:
    space = {"score": ["dot", "dot_bias", "cosine"], "temperature": (0.2, 0.3)}
    given = {"dim": 4, "epochs": 1, "negatives": 20, "device": "cpu", "search_seed": search_seed}
    assert len(search("mf", split, settings=2, space=space, **given).settings) == 2


def test_rules_that_chain_leave_no_two_settings_the_same() -> None:
    space = {"objective": ["ssl", "ssl_pop"], "popularity": ["count", "power"], "power": (0.1, 0.9)}
    tried = _spread("two_tower", recipes.options("two_tower"), space, 12, 0)
    assert sum(setting["objective"] == "ssl" for setting in tried) == 1


def test_epochs_of_a_tree_may_be_left_to_the_device(split: sdx.Split) -> None:
    fixed = {"leaves": "random", "beam": 10, "dim": 4, "max_instances": 100, "device": "cpu"}
    result = search("dtr", split, settings=4, space={"epochs": [None, 1]}, **fixed)
    assert {row["epochs"] for row in result.settings} == {1, 2}


def test_numbers_of_a_space_become_what_the_option_is(split: sdx.Split) -> None:
    space = {"temperature": [1, 2]}
    result = search("ssm", split, space=space, dim=4, epochs=1, negatives=20, device="cpu")
    assert type(result.options["temperature"]) is float


def test_a_function_can_be_tuned_like_a_recipe(split: sdx.Split) -> None:
    def liked(train: sdx.Interactions, *, power: float = 1.0) -> Any:
        """Rank items by a power of their number of events."""
        counts = torch.from_numpy(train.item_counts.astype(np.float32))
        return Unpersonalised(), Constant(counts**power)

    found = search(liked, split, settings=2, space={"power": [1.0, -1.0]})
    assert found.options == {"power": 1.0}
    assert found.model.recipe == "liked"
    with pytest.raises(sdx.SoftdexError, match="liked has nothing to tune"):
        search(liked, split, settings=2)
