"""Weights: finite and above 0 in every log; an event of weight 0 counts for nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import softdex as sdx
from softdex.errors import DataError

PLAYS = {"user": ["ann", "ann", "bob"], "item": ["jam", "tea", "cup"], "plays": [2, 3, 0]}


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    return list(zip(*log.to_arrow().to_pydict().values(), strict=True))


@pytest.mark.parametrize("zero", [0, -0.0, 1e-60])
def test_an_event_of_weight_0_is_left_out_with_its_keys_and_counted(
    zero: float, capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    log = sdx.read(PLAYS | {"plays": [2.0, 3.0, zero]})
    assert rows(log) == [("ann", "jam", 2.0), ("ann", "tea", 3.0)]
    assert log.users.all().to_pylist() == ["ann"]
    assert capsys.readouterr().err == (
        "read a table: user=user item=item weight=plays (1 row of weight 0 left out) "
        "-> 2 rows, 1 user, 2 items\n"
    )


def test_a_table_and_a_matrix_agree_on_what_0_means() -> None:
    cells = pd.DataFrame({"user": [0, 0, 1], "item": [0, 1, 1], "count": [2.0, 0.0, 1.0]})
    matrix = sp.csr_matrix((cells["count"], (cells["user"], cells["item"])))
    assert rows(sdx.read(cells)) == rows(sdx.read(matrix)) == [(0, 0, 2.0), (1, 1, 1.0)]


def test_an_item_that_was_shown_but_never_played_trains_without_harm() -> None:
    """The kernel of item_cf wrote beyond its buffer for such an item."""
    plays = [(u, i, 0, float(i > 3) * (u % 4 != i % 4)) for u in range(30) for i in range(12)]
    log = sdx.read(plays)
    assert log.items.all().to_pylist() == list(range(4, 12))
    scores = sdx.fit("item_cf", log).recommend([3], k=2).table["score"].to_pylist()
    assert len(scores) == 2
    assert np.isfinite(scores).all()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            [0, 0, 0],
            "read: every row of a table has weight 0 in column 'plays'. weight=False counts each "
            "row as 1.",
        ),
        (
            [3e38, 3e38, 1],
            "Interactions: the weights sum to 6e+38, more than a float32 holds. Scale them down, "
            "or pass weight=False to read.",
        ),
    ],
)
def test_weights_that_no_training_could_use_are_refused(column: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        sdx.read(PLAYS | {"plays": column})
    assert str(caught.value) == message
    assert len(sdx.read(PLAYS | {"plays": column}, weight=False)) == 3


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf])
def test_a_log_built_in_memory_holds_to_the_same_rule(bad: float) -> None:
    log = sdx.read(PLAYS, weight=False)
    weight = np.array([1, bad, 2], np.float32)
    with pytest.raises(DataError) as caught:
        replace(log, weight=weight)
    assert str(caught.value) == (
        f"Interactions: expected finite weights above 0, got {weight[1]} at row 1. An event of "
        "weight 0 counts for nothing: leave it out."
    )
