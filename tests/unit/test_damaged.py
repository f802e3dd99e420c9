"""Damaged Arrow data and encodings that are none: one sentence before anything is touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import softdex as sdx
from softdex.errors import DataError, SoftdexError

ONES = pa.array([1, 1, 1])


def strings(offsets: list[int], text: bytes, kind: Any = pa.string) -> pa.Array:
    """Strings whose offsets may lie outside of their text."""
    place = pa.array(offsets, pa.int32()).buffers()[1]
    return pa.Array.from_buffers(kind(), len(offsets) - 1, [None, place, pa.py_buffer(text)])


DAMAGED = {
    "beyond": strings([0, 1, 1 << 30, 3], b"abc"),
    "backwards": strings([0, 3, 1, 3], b"abc"),
    "negative": strings([0, 1, -5, 3], b"abc"),
    "not utf-8": strings([0, 1, 2, 3], b"a\xffc"),
    "index": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 99], pa.int32()), pa.array(["a", "b"]), safe=False
    ),
    "list": pa.Array.from_buffers(
        pa.list_(pa.int64()),
        3,
        [None, pa.array([0, 1, 1 << 20, 3], pa.int32()).buffers()[1]],
        children=[pa.array([1, 2, 3])],
    ),
}


@pytest.mark.parametrize("where", ["user", "item", "time", "kept"])
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_table_whose_offsets_lie_outside_is_refused(damage: str, where: str) -> None:
    source = pa.table({"user": ONES, "item": ONES} | {where: DAMAGED[damage]})
    with pytest.raises(DataError, match=r"^read: a table is damaged \(.*Write it again"):
        sdx.read(source, keep=[where])


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_item_table_is_refused(damage: str) -> None:
    items = pa.table({"item": [1, 2, 3], "title": DAMAGED[damage]})
    with pytest.raises(DataError, match=r"^read: a table is damaged"):
        sdx.read([(1, 1), (1, 2)], items=items)


@pytest.mark.parametrize("damage", ["beyond", "backwards", "negative", "index"])
def test_damaged_keys_are_refused(damage: str) -> None:
    model = sdx.fit("popular", sdx.read([("a", "x"), ("b", "y")]))
    with pytest.raises(SoftdexError, match="expected users as a list of keys"):
        model.recommend(DAMAGED[damage])


@pytest.mark.parametrize("damage", ["beyond", "backwards", "negative", "index"])
@pytest.mark.parametrize(
    ("what", "ask"),
    [
        ("items in deny", lambda keys: {"users": ["a"], "deny": keys}),
        ("items in deny", lambda keys: {"users": ["a"], "deny": {"a": keys}}),
        ("items in allow", lambda keys: {"users": ["a"], "allow": [keys]}),
        ("items in allow", lambda keys: {"users": ["a"], "allow": pa.chunked_array([keys])}),
        ("items in history", lambda keys: {"history": [keys]}),
        ("items in history", lambda keys: {"history": keys}),
        ("where kind", lambda keys: {"users": ["a"], "where": {"kind": keys}}),
    ],
)
def test_damaged_keys_in_rules_and_histories_are_refused(
    damage: str, what: str, ask: Callable[[pa.Array], dict[str, Any]]
) -> None:
    items = pa.table({"item": ["x", "y"], "kind": ["new", "old"]})
    model = sdx.fit("item_cf", sdx.read([("a", "x"), ("b", "y"), ("b", "x")], items=items))
    with pytest.raises(SoftdexError, match=f"recommend: expected {what} as a list of keys"):
        model.recommend(**ask(DAMAGED[damage]))


def test_an_arrow_file_with_other_offsets_ends_no_process(tmp_path: Path) -> None:
    path = tmp_path / "log.arrow"
    table = pa.table({"user": ["alpha", "beta", "gamma"], "item": [1, 2, 3]})
    with pa.ipc.new_file(path, table.schema) as out:
        out.write(table)
    raw = path.read_bytes()
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 5, 9, 14))
    assert raw.count(offsets) == 1
    path.write_bytes(raw.replace(offsets, offsets[:-4] + (1 << 29).to_bytes(4, "little")))
    code = (
        "import sys, softdex as sdx\n"
        "try: sdx.read(sys.argv[1])\n"
        "except sdx.DataError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(f"read: {path} is damaged (")


@pytest.mark.parametrize(
    "encoding",
    ["idna", "undefined", "punycode", "rot13", "hex", "base64", "klingon", "", "utf-8\0", None, 5],
)
@pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "missing.csv"])
def test_an_encoding_that_is_none_of_text_is_one_sentence(
    tmp_path: Path, name: str, encoding: Any
) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,2\n")
    (tmp_path / "log.jsonl").write_text('{"user": 1, "item": 2}\n')
    with pytest.raises(DataError) as caught:
        sdx.read(tmp_path / name, encoding=encoding)
    assert str(caught.value) == (
        f"read: unknown encoding {str(encoding)!r}. Expected one of text, e.g. 'utf-8' or "
        "'latin-1'."
    )


@pytest.mark.parametrize("encoding", ["unicode_escape", "raw_unicode_escape"])
def test_escapes_that_make_no_text_are_refused(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "log.csv").write_text("user,item\n\\ud800,2\n")
    with pytest.raises(DataError, match=f"is not valid {encoding}"):
        sdx.read(tmp_path / "log.csv", encoding=encoding)


@pytest.mark.parametrize("separator", ["", "\n", '"', "\0", "\ud800", 5])
def test_a_separator_that_cannot_be_is_one_sentence(tmp_path: Path, separator: Any) -> None:
    (tmp_path / "log.csv").write_text("user,item\n1,2\n")
    with pytest.raises(DataError, match="Expected one or more characters"):
        sdx.read(tmp_path / "log.csv", separator=separator)
