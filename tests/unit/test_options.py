"""Given values are held against the annotations of the function that takes them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from softdex import recipes
from softdex.cli.plan import read_config, to_toml
from softdex.data import split as splits
from softdex.errors import SoftdexError
from softdex.options import check, fits, kinds, words


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
