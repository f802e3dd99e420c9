"""Kinds of files beyond CSV and Parquet: the same log from each, and what is refused."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import json
import lzma
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import softdex as sdx
from softdex.cli import app as cli
from softdex.errors import DataError

WANTED = [("ann", 7, 1), ("bob", 9, 2)]
TABLE = pa.table({"user": ["ann", "bob"], "item": [7, 9], "time": [1, 2]})
LINES = "".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()).encode()
CSV = b"user,item,time\nann,7,1\nbob,9,2\n"


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    return list(zip(*log.to_arrow().to_pydict().values(), strict=True))


def refused(path: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        sdx.read(path, **options)
    message = str(caught.value)
    assert message.startswith("read: ")
    assert message.endswith((".", "?"))
    assert "\n" not in message
    return message


def zstd(raw: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as file:
        file.write(raw)
    return out.getvalue().to_pybytes()


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            archive.writestr(name, raw)
    return path


# compression -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstd, bz2.compress, lzma.compress])
@pytest.mark.parametrize(("name", "raw"), [("log.csv", CSV), ("log.jsonl", LINES)])
def test_text_is_read_under_every_compression(
    tmp_path: Path, pack: Callable[[bytes], bytes], name: str, raw: bytes
) -> None:
    for path in (tmp_path / name, tmp_path / "export"):
        path.write_bytes(pack(raw))
        assert rows(sdx.read(path)) == WANTED


@pytest.mark.parametrize("pack", [zstd, bz2.compress, lzma.compress])
def test_what_is_cut_short_is_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(pack(CSV * 5000)[:-9])
    assert f"cannot read {path}" in refused(path)


def test_a_zip_with_one_table_is_that_table(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "log.zip", {"readme": b"hello", "__MACOSX/log.csv": b"x", "ml/log.csv": CSV}
    )
    assert rows(sdx.read(path)) == WANTED
    assert rows(sdx.read(str(path) + "/ml/log.csv")) == WANTED


def test_of_several_tables_in_a_zip_one_is_named(tmp_path: Path) -> None:
    path = zipped(
        tmp_path / "ml.zip", {"ml/ratings.csv": CSV, "ml/movies.csv": b"item,title\n7,x\n"}
    )
    assert refused(path) == (
        f"read: {path} holds 2 tables (ml/ratings.csv, ml/movies.csv). Name one: "
        f"read('{path}/ml/ratings.csv')."
    )
    log = sdx.read(path / "ml/ratings.csv", items=path / "ml/movies.csv")
    assert log.item_table is not None
    assert log.item_table.to_pydict() == {"title": ["x", None]}
    assert "has no member 'ml/rating.csv'. Did you mean 'ml/ratings.csv'?" in refused(
        path / "ml/rating.csv"
    )


@pytest.mark.parametrize("damage", [slice(0, 60), slice(0, -30)])
def test_a_damaged_zip_is_refused(tmp_path: Path, damage: slice) -> None:
    path = zipped(tmp_path / "log.zip", {"log.csv": CSV * 9})
    path.write_bytes(path.read_bytes()[damage])
    assert f"cannot read {path}" in refused(path)


@pytest.mark.parametrize("pack", [gzip.compress, zstd, bz2.compress, lzma.compress])
def test_what_is_compressed_in_a_zip_is_read(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    path = zipped(tmp_path / "log.zip", {"log.jsonl.gz": pack(LINES)})
    assert rows(sdx.read(path)) == WANTED


def test_a_zip_without_members_holds_no_table(tmp_path: Path) -> None:
    path = zipped(tmp_path / "log.zip", {})
    assert refused(path) == f"read: {path} holds no table. It has no files."


def test_a_zip_may_have_a_member_without_a_name(tmp_path: Path) -> None:
    path = zipped(tmp_path / "log.zip", {"log.csv": CSV})
    path.write_bytes(path.read_bytes().replace(b"log.csv", b"\0og.csv"))
    assert f"{path} holds no table. It has " in refused(path)


def test_parquet_is_read_from_a_zip_too(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "log.parquet")
    path = zipped(tmp_path / "log.zip", {"log.parquet": (tmp_path / "log.parquet").read_bytes()})
    assert rows(sdx.read(path)) == WANTED


# JSON --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        LINES.decode(),
        "\ufeff" + LINES.decode(),
        LINES.decode().replace("\n", "\r\n\r\n"),
        json.dumps(TABLE.to_pylist()),
        json.dumps(TABLE.to_pylist(), indent=2),
        "\n \n" + json.dumps(TABLE.to_pylist()),
        '{"note": {"a": 1}, "item": 7, "user": "ann", "time": 1}\n'
        '{"user": "bob", "time": 2, "item": 9}',
    ],
)
def test_json_objects_are_rows(tmp_path: Path, text: str) -> None:
    for path in (tmp_path / "log.json", tmp_path / "export"):
        path.write_text(text)
        assert rows(sdx.read(path)) == WANTED


def test_bad_lines_of_json_are_named_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    bad = b'{"user": "x"\n[1]\n\n{"user": null, "item": 1, "time": 3}\n{"user": "\xff"}\n'
    path.write_bytes(LINES + bad)
    message = refused(path)
    assert "not a JSON object: 3 lines (3, 4, 7)" in message
    assert "no value in column 'user': line 6" in message
    assert rows(sdx.read(path, bad_rows="drop")) == WANTED


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no JSON object"),
        ("5\n6\n", "holds no JSON object"),
        ('{"user": 1, "item": 2}\n{"user": "a", "item": 2}\n', "column 'user' mixes int, str"),
        ('{"user": {"0": 1}, "item": {"0": 1}}', "can be compared"),
        ('{"user": 99999999999999999999, "item": 2}\n', "more than 64 bits"),
        ('{"user": "\\ud800", "item": 2}\n', "not valid Unicode"),
        ("[" * 100_000, "holds no JSON object"),
    ],
)
def test_json_that_is_no_log_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "log.json"
    path.write_text(text)
    assert words in refused(path)


def test_json_keys_stay_what_they_are(tmp_path: Path) -> None:
    """Arrow's own reader would make a date of the first and a float of the second."""
    path = tmp_path / "log.jsonl"
    path.write_text('{"user": "2020-01-01", "item": 9007199254740993}\n')
    assert rows(sdx.read(path)) == [("2020-01-01", 9007199254740993)]


# Arrow -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [pa.ipc.new_file, pa.ipc.new_stream])
def test_arrow_files_and_streams_are_read(tmp_path: Path, make: Any) -> None:
    path = tmp_path / "log.arrow"
    with make(path, TABLE.schema) as out:
        out.write(TABLE)
    assert rows(sdx.read(path)) == WANTED
    path.write_bytes(path.read_bytes()[:-100])
    assert str(path) in refused(path)


# partitions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_the_folders_of_a_partition_are_columns(tmp_path: Path, suffix: str) -> None:
    for day, kind, user in (("2020-01-02", "a%2Fb", 1), ("2020-01-01", "web", 2)):
        folder = tmp_path / f"log/day={day}/kind={kind}"
        folder.mkdir(parents=True)
        table = pa.table({"user": [user, user], "item": [7, 8]})
        path = folder / f"part-0.{suffix}"
        if suffix == "parquet":
            pq.write_table(table, path)
        elif suffix == "csv":
            path.write_text(f"user,item\n{user},7\n{user},8\n")
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    day = 1_577_836_800_000_000
    after = day + 86_400_000_000
    for source in ("log", "log/*/*/*", "log/d*", "**/part-*"):
        log = sdx.read(tmp_path / source, keep="kind")
        assert rows(log) == [
            (2, 7, day, "web"),
            (2, 8, day, "web"),
            (1, 7, after, "a/b"),
            (1, 8, after, "a/b"),
        ]


def test_a_partition_may_be_the_user_and_the_default_one_is_null(tmp_path: Path) -> None:
    for user in ("5", "12", "__HIVE_DEFAULT_PARTITION__"):
        folder = tmp_path / f"log/user={user}"
        folder.mkdir(parents=True)
        (folder / "a.csv").write_text("item\n7\n")
    assert "no value in column 'user': line 2" in refused(tmp_path / "log")
    assert rows(sdx.read(tmp_path / "log", bad_rows="drop")) == [(12, 7), (5, 7)]


def test_partitions_of_two_kinds_are_refused(tmp_path: Path) -> None:
    for name in ("day=1", "hour=1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_bytes(CSV)
    assert refused(tmp_path) == (
        f"read: folder {tmp_path} mixes the partitions day and hour. Read one of them."
    )


# addresses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["https://example.org/log.csv", "s3://bucket/log.parquet"])
def test_a_url_is_told_from_a_path(url: str) -> None:
    assert refused(url) == (
        f"read: {url!r} is a URL, and softdex reads local files. Download it first, e.g. with curl "
        "-LO, or read it with pandas or polars and pass the table."
    )


# dates and numbers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        (["22.09.1997 21:57", "22.09.1997 21:58:03"], [874_965_420, 874_965_483]),
        (["22.09.1997", "1.2.1998"], [874_886_400, 886_291_200]),
        (["1.12.1997 21:57", None], [881_013_420, None]),
        (["1.12.1997 9:57", "22.09.1997, 21:57"], [880_970_220, 874_965_420]),
    ],
)
def test_dates_with_dots_are_day_month_year(cells: list[str | None], seconds: list[Any]) -> None:
    source = pa.table({"user": [1, 2], "item": [1, 2], "date": cells})
    log = sdx.read(source, bad_rows="drop")
    assert log.time is not None
    assert log.time.tolist() == [s * 1_000_000 for s in seconds if s is not None]


@pytest.mark.parametrize(
    "cells", [["22/09/1997 21:57", "3/10/1997 9:00"], ["9/22/1997 21:57", "10/3/1997 9:00"]]
)
def test_dates_with_slashes_are_read_where_a_day_beyond_12_tells_the_order(
    cells: list[str],
) -> None:
    log = sdx.read({"user": [1, 2], "item": [1, 2], "when": cells})
    assert log.time is not None
    assert log.time.tolist() == [874_965_420_000_000, 875_869_200_000_000]


def test_a_day_that_may_be_a_month_is_refused_rather_than_the_time_left_out() -> None:
    source = {"user": [1, 2], "item": [1, 2], "when": ["03/04/1997", "05/06/1997"]}
    assert refused(source) == (
        "read: the time column 'when' has dates such as '03/04/1997', and no row tells whether "
        "the day or the month comes first. Write them as 1997-09-22."
    )
    assert sdx.read(source, time=False).time is None


@pytest.mark.parametrize("cell", ["31.02.2020", "22.13.1997", "22.9.97", "13/13/1997"])
def test_dates_that_are_none_are_refused(cell: str) -> None:
    source = {"user": [1, 2], "item": [1, 2], "date": ["01.01.2020", cell]}
    assert f"is not a number or a date like the rest (e.g. {cell!r}): row 1" in refused(source)


def test_decimal_commas_are_read_where_they_can_be_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user;item;time;rating\n1;2;5,5;3,5\n1;3;6;-4,125\n")
    assert rows(sdx.read(path)) == [(1, 2, 5.5, 3.5), (1, 3, 6.0, -4.125)]
    path.write_text("user;item;plays\n1;2;1,234\n1;3;5\n")
    assert "column 'plays' is not a finite number (e.g. '1,234'): line 2" in refused(path)


# MovieLens ---------------------------------------------------------------------------------------

U_ITEM = (
    "1|Toy Story (1995)|01-Jan-1995||http://x|0|0|0|1|1|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n"
    "2|Café (1995)|||x|1|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0\n"
)
MOVIES = "1::Toy Story (1995)::Animation|Children's|Comedy\n2::Café (1995)::unknown\n"


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8"])
@pytest.mark.parametrize(("name", "text"), [("u.item", U_ITEM), ("movies.dat", MOVIES)])
def test_the_item_tables_of_movielens_are_known(
    tmp_path: Path, name: str, text: str, encoding: str
) -> None:
    (tmp_path / name).write_text(text, encoding=encoding)
    table = sdx.read([(1, 2), (2, 1)], items=tmp_path / name).item_table
    assert table is not None
    assert table["title"].to_pylist() == ["Toy Story (1995)", "Café (1995)"]
    assert table["genres"].to_pylist() == [["Animation", "Children's", "Comedy"], ["unknown"]]
    assert table.num_columns == (5 if name == "u.item" else 2)


def test_the_columns_of_a_known_table_may_be_named_too(tmp_path: Path) -> None:
    (tmp_path / "movies.dat").write_text(MOVIES, encoding="latin-1")
    names = ["item", "name", "kinds"]
    log = sdx.read([(1, 2), (2, 1)], items=tmp_path / "movies.dat", item_columns=names)
    assert log.item_table is not None
    assert log.item_table["name"].to_pylist() == ["Toy Story (1995)", "Café (1995)"]


def test_the_columns_of_an_item_table_without_header_are_named(tmp_path: Path) -> None:
    path = tmp_path / "items.txt"
    path.write_text("tea|3\njam|2\n")
    log = [("ann", "tea"), ("bob", "jam")]
    table = sdx.read(log, items=path, item_columns=["id", "price"]).item_table
    assert table is not None
    assert table.to_pydict() == {"price": [2, 3]}
    assert refused(log, items=path, item_columns=["id"]) == (
        f"read: item_columns names 1 columns (id), and {path} has 2. Name each column once."
    )
    assert "names 1 columns (id,price)" in refused(log, items=path, item_columns="id,price")
    assert "text file without header. a table has" in refused(
        log, items={"id": ["tea"]}, item_columns=["id"]
    )
    assert "has no item table to name" in refused(log, item_columns=["id"])


def test_the_command_line_names_the_columns_of_an_item_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.csv").write_text("user,item,time\n1,tea,1\n1,jam,2\n1,cup,3\n")
    (tmp_path / "items.txt").write_text("tea|3\njam|2\n")
    words = "softdex fit log.csv -r popular --out run --items items.txt --item-columns id,price"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", words.split())
    with contextlib.suppress(SystemExit):
        cli.main()
    assert 'item_columns = ["id", "price"]' in Path("run/config.toml").read_text()
    assert sdx.load("run").recommend([1], exclude_seen=False).table.num_rows
