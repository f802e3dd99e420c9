"""Given values are held against the annotations of the function that takes them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import softdex as sdx
from softdex import machine, recipes
from softdex.data import split as splits
from softdex.errors import SoftdexError
from softdex.options import check, fits, kinds, words
from softdex.plan import read_config, to_toml


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (int, [0, -3, 10**18, np.int64(2)], [True, 1.0, "1", None, [1], float("nan"), 2**63]),
        (float, [0, 1.5, np.float32(2)], [True, "1", None, float("nan"), float("inf"), 10**400]),
        (str, ["", "x", Path("x")], [b"x", 1, None]),
        (bool, [True, False, np.True_], [0, 1, "true", None]),
        (float | None, [None, 2], ["x", [2]]),
        (Sequence[float], [[], [1, 2.5], (1,)], ["ab", 1, ["a"], {1: 2}]),
        (int | Sequence[int], [5, [5, 6]], ["56", [5.5], None]),
        (Literal[False] | str, [False, "x"], [True, 0]),
        (dict, [{}], [[], None]),
        (Any, [None, 1, object()], []),
    ],
)
def test_a_value_fits_its_kind_or_does_not(kind: Any, good: list[Any], bad: list[Any]) -> None:
    assert [fits(value, kind) for value in good] == [True] * len(good)
    assert [fits(value, kind) for value in bad] == [False] * len(bad)


@pytest.mark.parametrize(
    ("kind", "given", "found"),
    [
        (float, 1, 1.0),
        (float | None, np.float32(0.5), 0.5),
        (float, Fraction(1, 4), 0.25),
        (int | None, np.int32(5), 5),
        (str | None, Path("a") / "b", "a/b"),
        (float | None, None, None),
        (list[str] | str | None, ("a", Path("b")), ["a", "b"]),
        (str, np.str_("x"), "x"),
        (bool, np.True_, True),
    ],
)
def test_a_value_becomes_the_plain_kind_it_is_annotated_as(
    kind: Any, given: Any, found: Any
) -> None:
    value = check("x", {"it": kind}, {"it": given})["it"]
    assert value == found
    assert type(value) is type(found)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (int, "a whole number"),
        (float | None, "a number or nothing"),
        (Sequence[str], "a list, each text"),
        (Literal[False] | bool, "False or true or false"),
    ],
)
def test_a_kind_is_said_in_words(kind: Any, said: str) -> None:
    assert words(kind) == said


def test_a_wrong_name_and_a_wrong_value_are_errors_that_help() -> None:
    with pytest.raises(SoftdexError, match=r"^x: unknown option 'hight'. Did you mean 'height'\?"):
        check("x", {"height": int}, {"hight": 3})
    with pytest.raises(SoftdexError, match=r"^x: expected height as a whole number, got 'high'.$"):
        check("x", {"height": int}, {"height": "high"})
    with pytest.raises(SoftdexError, match=r"got \[0, 0, .*\.\.\.\.$"):
        check("x", {"height": int}, {"height": [0] * 1000})


@pytest.mark.parametrize("name", recipes.names())
def test_every_recipe_declares_its_options_and_its_defaults_fit(name: str) -> None:
    known = recipes.kinds(name)
    for option, default in recipes.options(name).items():
        assert known[option] is not Any, f"{name}: {option} has no annotation"
        assert fits(default, known[option]), f"{name}: {option}={default!r}"


@pytest.mark.parametrize("name", splits.SPLITS)
def test_every_split_declares_its_arguments(name: str) -> None:
    assert Any not in kinds(splits.SPLITS[name]).values()


def test_a_plan_as_toml_reads_as_the_same_plan(tmp_path: Any) -> None:
    plan = {
        "recipe": "popular",
        "out": 'odd "name" \\ 😀 \x7f é \t',
        "data": {"source": ["a.csv", "b.csv"], "time": False, "min_rating": 1e-05, "k_core": 5},
        "split": {"name": "per_user", "ratios": [0.8, 0.2]},
        "options": {"half_life": 1.5},
        "evaluate": {"k": [10, 20], "empty": "zero"},
    }
    (tmp_path / "c.toml").write_text(to_toml(plan), encoding="utf-8")
    assert read_config(tmp_path / "c.toml") == plan


# upper limits ------------------------------------------------------------------------------------

ABSURD = 4611686018427387904
QUICK = {"epochs": 1, "device": "cpu"}


@pytest.mark.parametrize("name", recipes.names())
def test_every_option_that_counts_something_has_an_upper_limit(name: str) -> None:
    small = ("seed", "patience", "anneal", "warm_up", "max_instances", "block", "positions")
    refused = set()
    for option, kind in recipes.kinds(name).items():
        if fits(ABSURD, kind) and not fits("x", kind) and option in recipes.choices(name):
            if option in (*small, "half_life", "sampled"):
                continue
            with pytest.raises(SoftdexError, match=rf"^{name}: expected {option} .*, got {ABSURD}"):
                recipes.check_options(name, {option: ABSURD})
            refused.add(option)
    assert refused or name == "popular"


@pytest.mark.parametrize(
    ("recipe", "given", "words"),
    [
        ("rg2", {"dim": ABSURD}, f"rg2: expected dim > 0 and at most 65,536, got {ABSURD}."),
        ("mult_vae", {"hidden": 10**6}, "mult_vae: expected hidden > 0 and at most 65,536, got"),
        ("ssm", {"negatives": 2**40}, "ssm: expected negatives > 0 and at most 16,777,216, got"),
        ("ssm", {"batch_size": 2**40}, "ssm: expected batch_size > 0 and at most 16,777,216, got"),
        ("ssm", {"lr": 1e300}, "ssm: expected lr > 0 and at most 1,000, got 1e+300."),
        ("ssm", {"temperature": 1e-9}, "ssm: expected temperature from 0.0001 to 10,000, got"),
        ("rg2", {"steps": ABSURD}, f"rg2: expected steps from 0 to 10000, got {ABSURD}."),
    ],
)
def test_an_absurd_value_is_refused_before_anything_is_made_of_it(
    log: sdx.Interactions, recipe: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(SoftdexError) as refused:
        sdx.fit(recipe, log, **given)
    assert str(refused.value).startswith(words)


@pytest.mark.parametrize(
    ("recipe", "given"),
    [
        ("ials", {"alpha": 1e9, "lam": 0.0, "steps": 4}),
        ("rg2", {"alpha": 1e9, "steps": 0}),
        ("ssm", {"lr": 1e3}),
        ("mult_vae", {"lr": 1e3, "beta": 1e6}),
    ],
)
def test_extreme_training_ends_in_a_finite_model_or_in_a_sentence(
    log: sdx.Interactions, recipe: str, given: dict[str, Any]
) -> None:
    try:
        model = sdx.fit(recipe, log, dim=4, **QUICK, **given)
    except SoftdexError as error:
        assert "options" in str(error)  # noqa: PT017
        return
    found = model.recommend(model.users.all(), 3)
    assert np.isfinite(np.asarray(found["score"])).all()


@pytest.mark.parametrize("recipe", ["ials", "rg2"])
def test_weights_beyond_all_bounds_end_in_a_sentence(log: sdx.Interactions, recipe: str) -> None:
    heavy = dataclasses.replace(log, weight=np.full(len(log), 1e30, np.float32))
    with pytest.raises(SoftdexError, match=r"^least squares: .* less extreme options\.$"):
        sdx.fit(recipe, heavy, dim=4, **QUICK)


def test_what_the_machine_cannot_hold_is_refused(
    log: sdx.Interactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softdex.model.learn.memory_of", lambda device: 2**20)
    words = r"^fit: the training needs about .* GB, the memory of this cpu is 0.00 GB. Lower dim"
    with pytest.raises(SoftdexError, match=words):
        sdx.fit("ssm", log, dim=2000, **QUICK)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 17 bytes"),
        RuntimeError("Storage size calculation overflowed with sizes=[1, 2]"),
        RuntimeError("CUDA out of memory. Tried to allocate 20 GiB"),
    ],
)
def test_an_allocation_that_fails_is_one_sentence(log: sdx.Interactions, error: Exception) -> None:
    def greedy(train: sdx.Interactions) -> Any:
        raise error

    with pytest.raises(SoftdexError, match=r"^fit: this machine has too little memory for these"):
        sdx.fit(greedy, log)
    with pytest.raises(RuntimeError, match="something else"), machine.within_memory("fit"):
        raise RuntimeError("something else")


def test_lists_settings_and_threads_have_upper_limits(model: sdx.Retriever) -> None:
    with pytest.raises(SoftdexError, match=r"^search: expected k of at most 1,000, got 4,611,686"):
        model.search(np.zeros(1, np.int64), model.seen.take(np.zeros(1, int)), ABSURD)
    with pytest.raises(SoftdexError, match=r"^threads: expected at most 1,024, got 4,611,686"):
        sdx.set_threads(ABSURD)
    assert len(model.recommend(model.users.all()[:1], ABSURD)) < len(model.items)


def test_a_search_of_absurdly_many_settings_is_refused(parts: sdx.Split) -> None:
    assert parts.valid is not None
    with pytest.raises(SoftdexError, match=r"^tune: expected at most 65,536 settings, got 4,611,"):
        sdx.tune("rg2", parts.train, parts.valid, settings=ABSURD, space={"dim": [2]})
