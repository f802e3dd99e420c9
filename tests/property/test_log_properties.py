"""Logs equal naive loops, and survive round trips through every format.

The oracles are written the slow and obvious way; none of them shares a line with the library.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import softdex as sdx
from softdex.data.delimited import NULLS
from softdex.data.keys import factorize
from softdex.data.ragged import Ragged, concatenate, group, offsets
from softdex.errors import DataError

words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
words = words.filter(lambda word: word not in NULLS)
whole = st.integers(-(2**63), 2**63 - 1)
small = st.integers(0, 4)
spellings = st.text("0123456789-+x. ", min_size=1, max_size=20).filter(str.strip)


def logs(ids: st.SearchStrategy[Any] = small) -> st.SearchStrategy[list[tuple[Any, Any, int]]]:
    return st.lists(st.tuples(ids, ids, st.integers(-5, 5)), min_size=1, max_size=30)


def read(events: list[Any], **options: Any) -> sdx.Interactions:
    return sdx.read(events, quiet=True, **options)


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    return list(zip(*log.to_arrow().to_pydict().values(), strict=True))


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "log.csv"


# round trips -------------------------------------------------------------------------------------


@given(st.one_of(logs(words), logs(whole), logs(st.uuids()), logs(st.booleans())))
def test_a_log_keeps_every_event_through_arrow_and_parquet(events: list[Any]) -> None:
    log = read(events)
    assert rows(log) == events
    table = log.to_arrow()
    assert sdx.read(table, quiet=True).sha256 == log.sha256
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(table, Path(folder) / "log.parquet", row_group_size=7)
        assert rows(sdx.read(folder, quiet=True)) == events


@given(st.one_of(logs(words), logs(whole)))
def test_a_log_keeps_every_event_through_frames(events: list[Any]) -> None:
    table = read(events).to_arrow()
    for frame in (table.to_pandas(), pl.from_arrow(table), pd.DataFrame(table.to_pydict())):
        assert rows(sdx.read(frame, quiet=True)) == events


@given(
    events=st.one_of(logs(words), logs(whole), logs(spellings)),
    separator=st.sampled_from([",", "\t", ";", "|"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    zipped=st.booleans(),
)
@example([("a\r\nb", '"', 1), ("a", "\n", 2)], ",", "utf-8", False)
@example([("007", " 7", 1), ("7", "+7", 2)], ",", "utf-8", False)
@example([(-(2**63), 2**63 - 1, 1)], ",", "utf-8", False)
def test_a_log_keeps_every_event_through_text(
    path: Path, events: list[Any], separator: str, encoding: str, zipped: bool
) -> None:
    """Ids keep their spelling; they are integers if each is spelt as Python spells integers."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL)
    writer.writerows([("user", "item", "time"), *events])
    content = text.getvalue().encode(encoding)
    path.write_bytes(gzip.compress(content, 1) if zipped else content)
    log = sdx.read(path, quiet=True, encoding=encoding)
    assert [(str(u), str(i), t) for u, i, t in rows(log)] == [
        (str(u), str(i), t) for u, i, t in events
    ]
    for keys, spelt in zip((log.users, log.items), zip(*events, strict=True), strict=False):
        assert pa.types.is_integer(keys.type) == all(_is_plain_integer(str(s)) for s in spelt)


def _is_plain_integer(word: str) -> bool:
    try:
        return str(int(word)) == word and -(2**63) <= int(word) < 2**63
    except ValueError:
        return False


@given(logs(words))
def test_a_log_keeps_every_event_through_the_csv_of_arrow(path: Path, events: list[Any]) -> None:
    pacsv.write_csv(read(events).to_arrow(), path)
    assert [(str(u), str(i), t) for u, i, t in rows(sdx.read(path, quiet=True))] == events


# bad input ---------------------------------------------------------------------------------------

LINES = {
    "1,2,3": "",
    "4,5,6": "",
    "x,y,7": "",
    '"a,b","c",8': "",
    "1,2": "got 2",
    "1": "got 1",
    "1,2,3,4": "got 4",
    ",2,3": "'user'",
    "1,NA,3": "'item'",
    "1,2,": "no value in column 'time'",
    "1,2,soon": "'time' is not a number",
    '1,2,"3"x': "badly quoted",
    '1,"2",inf': "'time' is not a number",
}


@given(st.lists(st.sampled_from(list(LINES)), min_size=1, max_size=5))
def test_exactly_the_bad_lines_are_named_and_dropped(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(["user,item,time", *lines]))
    good = [line for line in lines if not LINES[line]]
    bad = {number: LINES[line] for number, line in enumerate(lines, 2) if LINES[line]}
    if bad:
        with pytest.raises(DataError) as caught:
            sdx.read(path, quiet=True)
        message = str(caught.value)
        assert all(problem in message for problem in bad.values())
        named = " ".join(re.findall(r"lines? \(?([\d, ]+)", message))
        assert sorted(map(int, re.findall(r"\d+", named))) == sorted(bad)
    if good:
        log = sdx.read(path, quiet=True, bad_rows="drop")
        found = [(str(user), str(item), float(time)) for user, item, time in rows(log)]
        assert found == [(user, item, float(time)) for user, item, time in csv.reader(good)]


def refusal(source: Any, **options: Any) -> str | sdx.Interactions:
    """Return the log, or the text of its DataError; any other exception fails the test."""
    try:
        return sdx.read(source, quiet=True, **options)
    except DataError as error:
        return str(error)


@given(st.one_of(st.binary(max_size=200), st.text('ab1,"\n\r;\t: é', max_size=80)))
@example(b'user,item\n1,"2')
@example(b'user,item\n"')
@example(b"user,item\n\xff,1\n")
@example(b"\x1f\x8b")
def test_any_bytes_are_a_log_or_one_clear_error(path: Path, content: str | bytes) -> None:
    body = content if isinstance(content, bytes) else content.encode()
    for head in (b"", b"user,item,time\n"):
        path.write_bytes(head + body)
        for rule in ("error", "drop"):
            found = refusal(path, bad_rows=rule)
            if isinstance(found, str):
                assert found.startswith("read: ")
            else:
                assert 0 < len(found) <= len(body)


@given(st.lists(st.lists(st.one_of(small, words, st.none(), st.floats()), max_size=5), max_size=5))
def test_any_rows_are_a_log_or_one_clear_error(events: list[Any]) -> None:
    found = refusal(events, bad_rows="drop")
    if isinstance(found, str):
        assert found.startswith("read: ")
    else:
        assert 0 < len(found) <= len(events)
        for column in (found.time, found.weight):
            assert column is None or np.isfinite(column).all()


# keys --------------------------------------------------------------------------------------------


@given(
    st.one_of(
        [
            st.lists(kind, min_size=1)
            for kind in (words, whole, st.uuids(), st.binary(), st.integers(0, 300), st.booleans())
        ]
    ),
    st.integers(1, 3),
)
def test_lookup_is_the_inverse_of_encoding(cells: list[Any], chunks: int) -> None:
    kind = pa.array(cells).type
    parts = [pa.array(cells[at::chunks], kind) for at in range(chunks)]
    shuffled = [cell for at in range(chunks) for cell in cells[at::chunks]]
    keys, found = factorize(pa.chunked_array(parts, kind))
    assert keys.all().to_pylist() == sorted(set(cells))
    assert keys.take(found).to_pylist() == shuffled
    assert keys.lookup(shuffled).tolist() == found.tolist()
    assert keys.lookup(shuffled * 65).tolist() == found.tolist() * 65


# logs --------------------------------------------------------------------------------------------


def naive_core(events: list[Any], users: int, items: int) -> list[Any]:
    while True:
        by_user, by_item = Counter(e[0] for e in events), Counter(e[1] for e in events)
        kept = [e for e in events if by_user[e[0]] >= users and by_item[e[1]] >= items]
        if kept == events:
            return kept
        events = kept


def naive_merge(events: list[Any]) -> dict[int, float]:
    """Return the place of the latest event per pair (of equals the last), and the summed weight."""
    latest: dict[Any, int] = {}
    total: Counter[Any] = Counter()
    for place, (user, item, time, weight) in enumerate(events):
        before = latest.get((user, item))
        if before is None or events[before][2] <= time:
            latest[user, item] = place
        total[user, item] += weight
    return {place: total[pair] for pair, place in sorted(latest.items(), key=lambda e: e[1])}


@given(logs(), small, small)
def test_the_core_is_what_a_loop_leaves(events: list[Any], users: int, items: int) -> None:
    core = read(events).k_core(users, items)
    wanted = naive_core(events, users, items)
    assert rows(core) == wanted
    assert core.users.all().to_pylist() == sorted({user for user, _, _ in wanted})
    assert core.items.all().to_pylist() == sorted({item for _, item, _ in wanted})


@given(st.lists(st.tuples(small, small, st.integers(-3, 3), st.integers(1, 9)), min_size=1))
def test_repeats_merge_as_a_loop_merges_them(events: list[Any]) -> None:
    wanted = naive_merge(events)
    assert rows(read(events, duplicates="last")) == [events[place] for place in wanted]
    summed = read(events, duplicates="sum")
    assert rows(summed) == [(*events[place][:3], total) for place, total in wanted.items()]
    assert read(events).repeats() == len(events) - len(wanted)
    assert summed.csr().sum() == pytest.approx(sum(e[3] for e in events))


@given(logs())
def test_histories_and_matrix_are_what_a_loop_makes(events: list[Any]) -> None:
    log = read(events)
    for row, user in enumerate(log.users.all().to_pylist()):
        mine = sorted((e for e in events if e[0] == user), key=lambda e: e[2])
        assert log.items.take(log.histories[row]).to_pylist() == [item for _, item, _ in mine]
    counts = Counter((user, item) for user, item, _ in events)
    matrix = log.csr().tocoo()
    cells = zip(log.users.take(matrix.row), log.items.take(matrix.col), matrix.data, strict=True)
    assert {(u.as_py(), i.as_py()): n for u, i, n in cells} == counts
    assert np.array_equal(log.csr(binary=True).toarray(), log.csr().toarray() > 0)


@given(logs(), st.randoms(use_true_random=False))
def test_the_order_of_the_file_moves_no_row_number(events: list[Any], draw: Any) -> None:
    mixed = draw.sample(events, len(events))
    log, other = read(events), read(mixed)
    assert (log.users, log.items) == (other.users, other.items)
    assert (log.csr() != other.csr()).nnz == 0
    assert log.sha256 == other.sha256


# ragged ------------------------------------------------------------------------------------------

lists_of_ids = st.lists(st.lists(small, max_size=5), min_size=1, max_size=8)


def ragged(lists: list[list[int]]) -> Ragged:
    ids = np.array([i for row in lists for i in row], np.int32)
    return Ragged(offsets(np.array([len(row) for row in lists])), ids)


def lists_of(found: Ragged) -> list[list[int]]:
    return [row.tolist() for row in found]


@given(lists_of_ids, st.data())
def test_ragged_rows_do_what_lists_do(lists: list[list[int]], data: st.DataObject) -> None:
    found = ragged(lists)
    assert lists_of(found) == lists
    n = data.draw(st.integers(0, 6))
    assert lists_of(found.last(n)) == [row[len(row) - min(n, len(row)) :] for row in lists]
    picked = data.draw(st.lists(st.integers(-len(lists), len(lists) - 1)))
    assert lists_of(found.take(np.array(picked, np.int64))) == [lists[row] for row in picked]
    assert lists_of(found.where(found.ids % 2 == 0)) == [
        [i for i in row if i % 2 == 0] for row in lists
    ]
    assert lists_of(group(found.row_of, found.ids, len(lists))) == lists
    assert lists_of(group(found.row_of, found.ids, len(lists), by=found.ids)) == [
        sorted(row) for row in lists
    ]
    assert found.csr(5).toarray().tolist() == [[row.count(i) for i in range(5)] for row in lists]
    assert found.cells(5).tolist() == [r * 5 + i for r, row in enumerate(lists) for i in row]
    assert lists_of(concatenate([found, found.last(1)])) == [row + row[-1:] for row in lists]
