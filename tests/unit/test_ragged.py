"""Ragged rows against plain lists of lists."""

from __future__ import annotations

import numpy as np
import pytest

from softdex.data.ragged import Ragged, among, concatenate, empty, group, offsets

ROWS = [[3, 1], [], [2], [5, 4, 4]]


def ragged(rows: list[list[int]]) -> Ragged:
    ids = np.array([i for row in rows for i in row], np.int32)
    return Ragged(offsets(np.array([len(row) for row in rows], np.int64)), ids)


def lists(found: Ragged) -> list[list[int]]:
    return [row.tolist() for row in found]


def test_rows_are_read_by_number_from_either_end() -> None:
    found = ragged(ROWS)
    assert len(found) == 4
    assert lists(found) == ROWS
    assert found[-1].tolist() == [5, 4, 4]
    assert found[-4].tolist() == [3, 1]
    for row in (4, -5):
        with pytest.raises(IndexError):
            found[row]


def test_lengths_and_rows_of_ids() -> None:
    assert ragged(ROWS).lengths.tolist() == [2, 0, 1, 3]
    assert ragged(ROWS).row_of.tolist() == [0, 0, 2, 3, 3, 3]


@pytest.mark.parametrize("rows", [[3, 0, 0], [1], [3], [-1], [], [-1, 2]])
def test_take_gives_these_rows_in_this_order(rows: list[int]) -> None:
    assert lists(ragged(ROWS).take(np.array(rows, np.int64))) == [ROWS[r] for r in rows]


def test_take_takes_a_mask() -> None:
    assert lists(ragged(ROWS).take(np.array([True, True, False, False]))) == ROWS[:2]


@pytest.mark.parametrize("n", [0, 1, 2, 9])
def test_last_gives_the_end_of_each_row(n: int) -> None:
    assert lists(ragged(ROWS).last(n)) == [row[-n:] if n else [] for row in ROWS]


def test_where_keeps_rows_in_their_place() -> None:
    found = ragged(ROWS)
    assert lists(found.where(found.ids > 3)) == [[], [], [], [5, 4, 4]]
    assert lists(found.where(np.zeros(6, bool))) == [[]] * 4


def test_distinct_ids_ascend_within_their_rows() -> None:
    found = ragged(ROWS).distinct(6)
    assert lists(found) == [[1, 3], [], [2], [4, 5]]
    assert found.ids.dtype == np.int32


def test_the_matrix_counts_repeats() -> None:
    wanted = np.zeros((4, 6))
    for row, ids in enumerate(ROWS):
        for i in ids:
            wanted[row, i] += 1
    matrix = ragged(ROWS).csr(6)
    assert matrix.dtype == np.float32
    np.testing.assert_array_equal(matrix.toarray(), wanted)


def test_cells_number_pairs_without_overflow() -> None:
    assert ragged(ROWS).cells(10).tolist() == [3, 1, 22, 35, 34, 34]
    far = Ragged(np.array([0, 0, 1]), np.array([7], np.int32))
    assert far.cells(2**31).tolist() == [2**31 + 7]


def test_group_collects_in_the_given_order_and_keeps_ties_as_they_stand() -> None:
    row, ids = np.array([2, 0, 2, 0, 2]), np.array([10, 11, 12, 13, 14])
    assert lists(group(row, ids, 4)) == [[11, 13], [], [10, 12, 14], []]
    assert lists(group(row, ids, 3, by=np.array([5, 2, 1, 1, 5]))) == [[13, 11], [], [12, 10, 14]]


def test_concatenate_joins_row_by_row() -> None:
    assert lists(concatenate([ragged(ROWS), ragged([[9], [8], [], []])])) == [
        [3, 1, 9],
        [8],
        [2],
        [5, 4, 4],
    ]


def test_empty_rows_are_rows() -> None:
    assert lists(empty(3)) == [[], [], []]
    assert len(empty(0)) == 0
    assert empty(2).csr(5).shape == (2, 5)
    assert lists(empty(3).last(2)) == [[], [], []]


def test_equal_rows_are_equal() -> None:
    assert ragged(ROWS) == ragged(ROWS)
    assert ragged(ROWS) != ragged(ROWS[:3])
    assert ragged(ROWS) != ragged([[3], [1], [2], [5, 4, 4]])
    assert ragged(ROWS) != ROWS


def test_cells_among_others_are_found_as_numpy_finds_them() -> None:
    draw = np.random.default_rng(0)
    cells, others = draw.integers(100, size=200), draw.integers(100, size=30)
    assert among(cells, others).tolist() == np.isin(cells, others).tolist()
    assert among(cells, others[:0]).tolist() == [False] * 200
    assert among(cells[:0], others).tolist() == []
