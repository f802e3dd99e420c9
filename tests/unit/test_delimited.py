"""Text files as found in practice: what is read, what is refused, and what the errors say."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import softdex as sdx
from softdex.data.layout import guess_layout
from softdex.errors import DataError

HEAD = "user,item,time\n"
GOOD = HEAD + "1,2,3\n4,5,6\n"
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    return list(zip(*log.to_arrow().to_pydict().values(), strict=True))


def refused(path: Any, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        sdx.read(path, **options)
    message = str(caught.value)
    assert message.startswith("read: ")
    assert message.endswith((".", "?"))
    assert "Traceback" not in message
    return message


# layouts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace(",", "\t"),
        GOOD.replace(",", ";"),
        GOOD.replace(",", "|"),
        GOOD.replace(",", " "),
        GOOD.replace(",", "::"),
        GOOD.replace(",", ", "),
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("\n", "\r"),
        GOOD.rstrip("\n"),
        GOOD + "\n\n",
        "\n\n" + GOOD,
        GOOD.replace("\n", "\n\n"),
        GOOD.replace("user,item,time", '"user","item","time"'),
        '"user","item","time"\n"1","2","3"\n"4","5","6"\n',
        ",user,item,time\n0,1,2,3\n1,4,5,6\n",
        "user_id:token,item_id:token,timestamp:float\n1,2,3\n4,5,6\n",
        "time,note,item,user\n3,x,2,1\n6,y,5,4\n",
    ],
)
def test_every_usual_layout_reads_as_the_same_log(write: Write, text: str) -> None:
    assert rows(sdx.read(write(text))) == [(1, 2, 3), (4, 5, 6)]


@pytest.mark.parametrize("name", ["log.csv.gz", "log.csv", "LOG.CSV.GZ"])
def test_gzip_is_known_by_its_content(write: Write, name: str) -> None:
    assert rows(sdx.read(write(gzip.compress(GOOD.encode()), name))) == [(1, 2, 3), (4, 5, 6)]


def test_a_gzip_of_several_members_is_read_whole(write: Write) -> None:
    members = [HEAD, "1,2,3\n", "4,5,6\n"]
    path = write(b"".join(gzip.compress(m.encode()) for m in members), "log.csv.gz")
    assert rows(sdx.read(path)) == [(1, 2, 3), (4, 5, 6)]


@pytest.mark.parametrize(
    ("encoding", "given"),
    [
        ("utf-8", "utf-8"),
        ("utf-8-sig", "utf-8"),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", "utf-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-32", "utf_32"),
        ("latin-1", "latin-1"),
        ("cp1252", "cp1252"),
    ],
)
@pytest.mark.parametrize("separator", [",", "::"])
def test_encodings_are_read_when_named(
    write: Write, encoding: str, given: str, separator: str
) -> None:
    text = "user,item\ncafé,ü\nx,ü\n".replace(",", separator)
    log = sdx.read(write(text.encode(encoding)), encoding=given)
    assert rows(log) == [("café", "ü"), ("x", "ü")]


def test_a_byte_order_mark_is_no_part_of_the_first_id(write: Write) -> None:
    bom = b"\xef\xbb\xbf"
    assert rows(sdx.read(write(bom + b"1,2\n3,4\n"))) == [(1, 2), (3, 4)]
    assert rows(sdx.read(write(bom + b"1,2\n3\n"), bad_rows="drop")) == [(1, 2)]


@pytest.mark.parametrize(
    ("text", "separator"),
    [("user||item\n1||2\n", "||"), ("user§item\n1§2\n", "§"), ("user~item\n1~2\n", "~")],
)
def test_any_separator_can_be_named(write: Write, text: str, separator: str) -> None:
    assert rows(sdx.read(write(text), separator=separator)) == [(1, 2)]


def test_the_separator_is_the_one_that_cuts_all_lines_alike(write: Write) -> None:
    path = write("1;2;3,5\n1;3;4\n2;3;5,5\n")
    assert guess_layout(path, None, "utf-8").separator == ";"
    assert rows(sdx.read(path, user=0, item=1)) == [(1, 2), (1, 3), (2, 3)]


def test_a_comma_and_a_blank_cut_before_a_blank_does(write: Write) -> None:
    """Both cut these lines into as many cells as the header; a blank leaves commas in the ids."""
    path = write("Session ID, when, track\n5, 24.03.2011 22:28:52, 7\n6, 25.03.2011 22:28:52, 8\n")
    assert rows(sdx.read(path)) == [(5, 7, 1301005732000000), (6, 8, 1301092132000000)]


def test_line_breaks_in_quotes_do_not_change_what_is_guessed(write: Write) -> None:
    path = write('"note","Session ID","when","track"\n"a\nb c","5","1277607743","7"\n')
    assert rows(sdx.read(path)) == [(5, 7, 1277607743)]


def test_long_separators_know_no_quotes(write: Write) -> None:
    path = write('1::"A" Film::978300760\n2::"B::978300761\n', "movies.dat")
    log = sdx.read(path)
    assert rows(log) == [(1, '"A" Film', 978300760), (2, '"B', 978300761)]


@pytest.mark.parametrize("separator", ["", "\n", '"'])
def test_a_separator_that_cannot_be_is_refused(write: Write, separator: str) -> None:
    assert repr(separator) in refused(write(GOOD), separator=separator)


def test_quotes_guard_separators_quotes_and_line_breaks(write: Write) -> None:
    text = 'user,item,note\n"a,b","c ""d""","two\nlines"\ne,f,"x"\n'
    assert rows(sdx.read(write(text), keep=["note"])) == [
        ("a,b", 'c "d"', "two\nlines"),
        ("e", "f", "x"),
    ]


def test_a_quoted_line_break_may_fall_anywhere_in_a_long_file(write: Write) -> None:
    """The fast parser cuts files into blocks of 4 MiB; a quoted line break must not end one."""
    note = "x" * 50 + "\n" + "y" * 50
    lines = "".join(f'{i},{i % 7},"{note}"\n' for i in range(60_000))
    log = sdx.read(write("user,item,note\n" + lines))
    assert len(log) == log.num_users == 60_000


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_field_may_be_longer_than_a_block(write: Write, quote: str) -> None:
    path = write(f"user,item,note\n1,2,{quote}{'x' * 5_000_000}{quote}\n3,4,y\n")
    assert rows(sdx.read(path)) == [(1, 2), (3, 4)]


def test_a_quote_inside_a_field_is_a_character(write: Write) -> None:
    text = 'user,item,note\n1,2,5" pipe\n3,4,6" pipe\n'
    assert rows(sdx.read(write(text), keep="note")) == [(1, 2, '5" pipe'), (3, 4, '6" pipe')]


# headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names", "wanted"),
    [
        ("1,2\n3,4\n", ["user", "item"], [(1, 2), (3, 4)]),
        ("1,2,5\n3,4,1\n", ["user", "item", "rating"], [(1, 2, 5.0), (3, 4, 1.0)]),
        ("1,2,978300760\n", ["user", "item", "time"], [(1, 2, 978300760)]),
        ("1,2,5,978300760\n", ["user", "item", "time", "rating"], [(1, 2, 978300760, 5.0)]),
    ],
)
def test_columns_without_a_header_are_guessed_by_place(
    write: Write, text: str, names: list[str], wanted: list[Any]
) -> None:
    log = sdx.read(write(text))
    assert log.to_arrow().column_names == names
    assert rows(log) == wanted


def test_numbers_name_columns_without_a_header(write: Write) -> None:
    log = sdx.read(write("1,2,3,4,5\n6,7,8,9,10\n"), user=0, item=4, time=2)
    assert rows(log) == [(1, 5, 3), (6, 10, 8)]


def test_a_first_line_of_words_is_data_when_columns_are_numbered(write: Write) -> None:
    words = write("ann,tea\nbob,jam\n")
    assert rows(sdx.read(words, user=0, item=1)) == [("ann", "tea"), ("bob", "jam")]
    message = refused(words)
    assert "no user column and no item column among ann, tea" in message
    assert "user=0" in message


@pytest.mark.parametrize("text", ["user,thing\nann,tea\n", "foo,bar\n1,2\n"])
def test_a_first_line_that_is_clearly_a_header_is_none_of_the_data(write: Write, text: str) -> None:
    assert len(sdx.read(write(text), user=0, item=1)) == 1


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("1,2,3,4,5\n", {}, ["0, 1, 2, 3, 4", "no header", "user=0"]),
        ("1,2\n", {"user": 9, "item": 0}, ["user=9", "columns 0 to 1"]),
        ("1,2,3\n", {"user": 1}, ["no item column"]),
        (GOOD, {"user": "usr"}, ["'usr'", "Did you mean 'user'?"]),
        (GOOD, {"user": "item", "item": "item"}, ["'item' has two roles"]),
        (GOOD, {"keep": ["tme"]}, ["'tme' to keep", "'time'"]),
        (GOOD, {"user": 1.5}, ["user=1.5", "column name"]),
        ("user_id,userId,item\n1,2,3\n", {}, ["user_id, userId", "could each be the user"]),
        ("user,item,item\n1,2,3\n", {}, ["duplicate headers (item)", "Rename"]),
        ("item,price\n1,2\n", {}, ["no user column", "an item table", "items=path", "user='...'"]),
        ("user,age\n1,2\n", {}, ["no item column", "a user table", "users=path", "item='...'"]),
    ],
)
def test_columns_that_cannot_be_found_are_one_error(
    write: Write, text: str, options: dict[str, Any], words: list[str]
) -> None:
    message = refused(write(text), **options)
    assert all(word in message for word in words), message


# files that are no tables ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"\n\n  \n", "is empty"),
        (gzip.compress(b"", mtime=0), "is empty"),
        (HEAD.encode(), "has columns user, item, time and no rows"),
        (b"user,item", "has columns user, item and no rows"),
        (b"user\n1\n2\n", "has one column ('user')"),
        (b"1\n2\n", "has one column ('1')"),
        (bytes(range(256)) * 9, "not a text table (it holds zero bytes)"),
        (b"\x89PNG,\xff\xfe\n\xfa,\xfb\n", "first line is not utf-8"),
        (GOOD.encode("utf-16"), "pass encoding='utf-16'"),
        (GOOD.encode("utf-16-le"), "not a text table"),
    ],
)
def test_what_is_no_table_is_refused_in_one_line(write: Write, content: bytes, words: str) -> None:
    path = write(content)
    message = refused(path)
    assert words in message
    assert str(path) in message


@pytest.mark.parametrize("damage", ["cut", "cut early", "checksum", "bytes", "tail"])
def test_a_damaged_gzip_is_refused(write: Write, damage: str) -> None:
    lines = "".join(f"{i % 7},{os.urandom(4).hex()},{i}\n" for i in range(20_000))
    whole = gzip.compress((HEAD + lines).encode())
    content = {
        "cut": whole[:-100],
        "cut early": whole[:200],
        "checksum": whole[:-8] + b"abcdefgh",
        "bytes": whole[:5000] + bytes(50) + whole[5050:],
        "tail": whole + b"garbage",
    }[damage]
    path = write(content, "log.csv.gz")
    assert f"cannot read {path}" in refused(path)


@pytest.mark.parametrize("encoding", ["klingon", "rot13"])
def test_an_unknown_encoding_is_named(write: Write, encoding: str) -> None:
    assert f"unknown encoding {encoding!r}" in refused(write(GOOD), encoding=encoding)


@pytest.mark.parametrize(
    ("content", "encoding", "words"),
    [
        ("user,item\na,1\ncafé,2\n".encode("latin-1"), "utf-8", "not valid UTF-8"),
        ("user,item\na,1\ncafé,2\n".encode(), "ascii", "line 3 is not valid ascii"),
        ("user,item\na,1\nb,2\n".encode("utf-16")[:-1], "utf-16", "line 3 is not valid utf-16"),
    ],
)
def test_the_wrong_encoding_is_an_error_with_a_line(
    write: Write, content: bytes, encoding: str, words: str
) -> None:
    message = refused(write(content), encoding=encoding)
    assert words in message
    assert "line 3" in message
    assert "encoding='latin-1'" in message


def test_bytes_that_are_not_text_matter_only_in_a_column_that_is_used(write: Write) -> None:
    text = "user,item,title\na,1,café\nb,2,tea\n".encode("latin-1")
    assert rows(sdx.read(write(text))) == [("a", 1), ("b", 2)]
    assert rows(sdx.read(write(text + b"c\n"), bad_rows="drop")) == [("a", 1), ("b", 2)]
    assert "not valid UTF-8" in refused(write(text), keep=["title"])


# bad lines ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "problems", "left"),
    [
        (
            "1,2\n1,2,3\n1,2,3,4\n\n4,5,6\n",
            ["expected 3 columns, got 2: line 2", "expected 3 columns, got 4: line 4"],
            [(1, 2, 3), (4, 5, 6)],
        ),
        (
            "1,,3\n,2,3\n1,2,\nNA,null,3\n9,9,9\n",
            [
                "no value in column 'user': 2 lines (3, 5)",
                "no value in column 'item': 2 lines (2, 5)",
                "no value in column 'time': line 4",
            ],
            [(9, 9, 9)],
        ),
        ("1,2,soon\n1,3,5\n", ["'time' is not a number or a date", "'soon'): line 2"], [(1, 3, 5)]),
        ("1,2,inf\n1,3,5\n", ["(e.g. 'inf'): line 2"], [(1, 3, 5.0)]),
        ("1,2,nan\n1,3,5\n", ["no value in column 'time': line 2"], [(1, 3, 5)]),
        ("1,2,2020-01-01\n1,3,5\n1,4,6\n", ["(e.g. '2020-01-01'): line 2"], [(1, 3, 5), (1, 4, 6)]),
        ("1,2,5\n\n\n\n1,3\n", ["expected 3 columns, got 2: line 6"], [(1, 2, 5)]),
        (
            '1,2,"3\n4,5,6\n7,8,9\n',
            ["badly quoted (unexpected end of data): line 2"],
            [(4, 5, 6), (7, 8, 9)],
        ),
        ('1,"2\n4,"5,6\n7,8,9\n', ["badly quoted", "line 2", "line 3"], [(7, 8, 9)]),
        ("x" * 200_000 + ",1\n1,2,3\n", ["expected 3 columns, got 2: line 2"], [(1, 2, 3)]),
    ],
)
def test_bad_lines_are_named_and_only_they_are_dropped(
    write: Write, body: str, problems: list[str], left: list[Any]
) -> None:
    path = write(HEAD + body)
    message = refused(path)
    assert all(problem in message for problem in problems), message
    assert str(path) in message
    assert "bad_rows='drop'" in message
    assert rows(sdx.read(path, bad_rows="drop")) == left


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("separator", [",", "\t", "::"])
def test_line_numbers_hold_for_every_separator_and_line_end(
    write: Write, separator: str, end: str
) -> None:
    lines = ["", "user,item,time", "1,2,3", "", "4,5", "7,8,9", "1,,3"]
    path = write(end.join(lines).replace(",", separator))
    message = refused(path)
    assert "expected 3 columns, got 2: line 5" in message
    assert "no value in column 'item': line 7" in message
    assert rows(sdx.read(path, bad_rows="drop")) == [(1, 2, 3), (7, 8, 9)]


def test_lines_are_counted_through_quoted_breaks(write: Write) -> None:
    path = write('user,item,note\n1,2,"two\nlines"\n3,4\n5,6,x\n')
    assert "got 2: line 4" in refused(path)


@pytest.mark.parametrize("note", ['"oops', 'fine,"oops'])
def test_an_open_quote_swallows_no_lines_in_silence(write: Write, note: str) -> None:
    """Arrow reads the rest of the file as one field, here in an unused column."""
    lines = [f"{i},{i},ok" for i in range(9)] + ['9,9,"open'] + [f"{i},{i},ok" for i in range(9)]
    path = write("user,item,note\n" + "\n".join(lines))
    assert "badly quoted (unexpected end of data): line 11" in refused(path)
    assert len(sdx.read(path, bad_rows="drop")) == 18


def test_what_was_dropped_is_said(
    write: Write, capsys: pytest.CaptureFixture[str], loud: None
) -> None:
    sdx.read(write(HEAD + "1,2,3\n1\n,2,3\n"), bad_rows="drop")
    said = capsys.readouterr().err
    assert "dropped 2 bad lines" in said
    assert "expected 3 columns, got 1: line 3" in said
    assert "no value in column 'user': line 4" in said
    assert "-> 1 row, 1 user, 1 item" in said


def test_when_no_good_line_is_left_nothing_is_read(write: Write) -> None:
    path = write(HEAD + "1,2,soon\n3,4,later\n")
    for rule in ("error", "drop"):
        message = refused(path, bad_rows=rule)
        assert "2 lines (2, 3)" in message
        assert "No good row is left" in message
    assert rows(sdx.read(path, time=False)) == [(1, 2), (3, 4)]


def test_many_bad_lines_are_counted_and_five_are_shown(write: Write) -> None:
    path = write(HEAD + "1,2,3\n" + "1,2\n" * 1234)
    assert "1,234 lines (3, 4, 5, 6, 7, ...)" in refused(path)


def test_a_null_in_an_unused_column_is_fine(write: Write) -> None:
    assert rows(sdx.read(write("user,item,note\n1,2,\n3,4,x\n"))) == [(1, 2), (3, 4)]


def test_a_type_that_changes_below_the_first_block_is_followed(write: Write) -> None:
    """The fast parser infers types from its first block of 4 MiB."""
    head = "user,item,time,flag\n" + "1,2,3,100000000000000000000\n" * 180_000
    log = sdx.read(write(head + "ann,007,4.5,x\n"))
    assert (len(log), log.num_users, log.num_items) == (180_001, 2, 2)
    assert log.users.all().to_pylist() == ["1", "ann"]
    assert log.items.all().to_pylist() == ["007", "2"]
    assert log.time is not None
    assert (log.time[0], log.time[-1]) == (3.0, 4.5)


# ids and times -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cells", "keys"),
    [
        (["2", "1", "10"], [1, 2, 10]),
        (["-1", "5", "-12"], [-12, -1, 5]),
        (["9223372036854775807", "-9223372036854775807"], [-(2**63) + 1, 2**63 - 1]),
        (["007", "7"], ["007", "7"]),
        (["-0", "0"], ["-0", "0"]),
        (["+7", "7"], ["+7", "7"]),
        (["0x1F", "31"], ["0x1F", "31"]),
        (["1.0", "1"], ["1", "1.0"]),
        (["1e3", "1000"], ["1000", "1e3"]),
        (["1", "a"], ["1", "a"]),
        (["9223372036854775808", "9223372036854775809"], None),
        (["true", "false"], ["false", "true"]),
        (["2020-01-01", "2020-01-02"], None),
        (["10:30", "10:31"], None),
        (["a ", "a"], ["a", "a "]),
    ],
)
def test_ids_keep_their_spelling(write: Write, cells: list[str], keys: list[Any] | None) -> None:
    """Ids become integers only if that loses nothing; two spellings are two ids."""
    log = sdx.read(write("user,item\n" + "".join(f"{c},x\n" for c in cells)))
    assert log.users.all().to_pylist() == (keys or cells)


def test_a_leading_zero_far_down_is_seen(write: Write) -> None:
    body = "".join(f"{i},5\n" for i in range(1, 3000))
    log = sdx.read(write(f"user,item\n{body}007,5\n"))
    assert log.num_users == 3000
    assert log.users.lookup(["7", "007"]).min() >= 0


@pytest.mark.parametrize(
    ("cells", "times"),
    [
        (["3", "5"], [3, 5]),
        (["3", "5.5"], [3.0, 5.5]),
        (
            ["1600000000000000001", "1600000000000000002"],
            [1600000000000000001, 1600000000000000002],
        ),
        (["1e9", "2e9"], [1e9, 2e9]),
        (["1970-01-01", "1970-01-02"], [0, 86_400_000_000]),
        (["1970-01-01", "1970-01-01 00:00:01"], [0, 1_000_000]),
        (["1970-01-01T00:00:00Z", "1970-01-01T01:00:00+02:00"], [0, -3_600_000_000]),
        (["1970-01-01 00:00:00.000001999", "1970-01-01"], [1, 0]),
        (["1970-01-01T00:00:01Z", "1970-01-01 00:00:02"], [1_000_000, 2_000_000]),
    ],
)
def test_times_are_numbers_or_dates(write: Write, cells: list[str], times: list[Any]) -> None:
    log = sdx.read(write(HEAD + "".join(f"1,{i},{c}\n" for i, c in enumerate(cells))))
    assert log.time is not None
    assert log.time.tolist() == times


@pytest.mark.parametrize("cell", ["true", "10:30:00"])
def test_a_time_of_no_use_is_refused_with_its_type(write: Write, cell: str) -> None:
    message = refused(write(f"{HEAD}1,2,{cell}\n"))
    assert "the time column 'time' has the Arrow type" in message
    assert "Expected numbers or dates" in message


def test_dropping_a_bad_line_leaves_large_times_exact(write: Write) -> None:
    path = write(HEAD + "1,2,1600000000000000001\n1,3,\n1,4,soon\n")
    assert rows(sdx.read(path, bad_rows="drop")) == [(1, 2, 1600000000000000001)]


def test_flags_keep_their_type_when_lines_are_dropped(write: Write) -> None:
    log = sdx.read(write("user,item,test\n1,2,True\n1\n1,4,False\n"), bad_rows="drop")
    assert log.extra["test"].tolist() == [True, False]


# several files -----------------------------------------------------------------------------------


def test_files_of_one_log_may_order_their_columns_differently(write: Write) -> None:
    paths = [write(HEAD + "1,2,3\n", "a.csv"), write("item;time;user\n5;6;4\n", "b.csv")]
    assert rows(sdx.read(paths)) == [(1, 2, 3), (4, 5, 6)]


def test_ids_that_are_numbers_in_one_file_and_words_in_another_are_words(write: Write) -> None:
    paths = [write(HEAD + "1,2,3\n", "a.csv"), write(HEAD + "ann,2,3\n", "b.csv")]
    assert rows(sdx.read(paths)) == [("1", 2, 3), ("ann", 2, 3)]


def test_a_file_with_only_a_header_adds_nothing(write: Write) -> None:
    paths = [write(GOOD, "a.csv"), write(HEAD, "b.csv"), write("user,item,time", "c.csv")]
    assert rows(sdx.read(paths)) == [(1, 2, 3), (4, 5, 6)]


def test_files_with_other_columns_are_refused(write: Write) -> None:
    paths = [write(GOOD, "a.csv"), write("user,item\n1,2\n", "b.csv")]
    message = refused(paths)
    assert "b.csv has columns user, item; " in message
    assert "a.csv has user, item, time" in message


def test_bad_lines_are_told_by_file(write: Write) -> None:
    paths = [write(GOOD, "a.csv"), write(HEAD + "1\n", "b.csv"), write(HEAD + "1,2,x\n", "c.csv")]
    message = refused(paths)
    assert "b.csv: expected 3 columns, got 1: line 2" in message
    assert "c.csv: column 'time' is not a number or a date" in message
    assert "a.csv:" not in message
    assert rows(sdx.read(paths, bad_rows="drop")) == [(1, 2, 3), (4, 5, 6)]
