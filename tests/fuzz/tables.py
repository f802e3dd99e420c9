"""Tables: files and tables in memory, written in many ways, damaged or not, through `sdx.read`.

An input that is only written in another way must be read as the rows that went in. A damaged one
may be refused; what is read of it must hold together.
"""

from __future__ import annotations

import bz2
import csv
import datetime as dt
import gzip
import io
import json
import lzma
import string
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import softdex as sdx

EPOCH = 1_262_304_000  # 2010
NAMES = {
    "user": ["user", "user_id", "userId", "uid", "Session ID", "reviewerID"],
    "item": ["item", "item_id", "movieId", "asin", "SKU", "track"],
    "time": ["time", "timestamp", "ts", "date", "when", "occurred_at", "t_dat"],
    "weight": ["weight", "plays", "count", "confidence"],
    "note": ["note", "comment"],
}
HOSTILE = ["", "\0", "\n", '"', "'", ",", "::", "\t", "\ufeff", "nan", "1e999", "-", "\xff", "007"]
HOSTILE += ["99999999999999999999", "null", "0x1F", "\\N", "{", "[", "\r", "2020-01-01", "1,5", "é"]
ENCODINGS = ["utf-16", "utf-7", "idna", "cp037", "unicode_escape", "hz", "punycode", "undefined"]


@dataclass
class Truth:
    """The rows of a log, as text, and what they mean."""

    cells: dict[str, list[str]]
    rows: list[tuple[Any, ...]]


def truth(random: Random, *, plain: bool = False) -> Truth:
    """Draw a log; `plain` draws no separators, quotes or line breaks."""
    size = random.choice([1, 2, 3, 5, 20, 200])
    cells = {"user": ids(random, size, plain), "item": ids(random, size, plain)}
    values: list[Any] = [keys(cells["user"]), keys(cells["item"])]
    if random.random() < 0.7:
        cells["time"], times = moments(random, size)
        values.append(times)
    if random.random() < 0.5:
        weights = [random.choice([0.5, 1.0, 2.25, 7.0, 1e-3]) for _ in range(size)]
        cells["weight"] = [repr(w) for w in weights]
        values.append([float(np.float32(w)) for w in weights])
    if random.random() < 0.5:
        cells["note"] = words(random, size, plain)
    return Truth(cells, list(zip(*values, strict=True)))


def ids(random: Random, size: int, plain: bool) -> list[str]:
    kind = random.choice(["small", "wide", "padded", "words"])
    if kind == "words":
        return words(random, size, plain)
    top = 9 if kind == "small" else 2**62
    found = [random.randint(-top if kind == "wide" else 0, top) for _ in range(size)]
    return [f"{n:05}" if kind == "padded" else str(n) for n in found]


def words(random: Random, size: int, plain: bool) -> list[str]:
    letters = string.ascii_letters + "éßж日" + ("" if plain else ",;|\t:'\" \n")
    return ["w" + "".join(random.choices(letters, k=random.randint(1, 6))) for _ in range(size)]


def keys(cells: list[str]) -> list[Any]:
    """Ids are integers if every one of them is written as Python would write it."""
    try:
        return [int(c) for c in cells] if all(str(int(c)) == c for c in cells) else cells
    except ValueError:
        return cells


def moments(random: Random, size: int) -> tuple[list[str], list[Any]]:
    seconds = [EPOCH + random.randint(0, 10**8) for _ in range(size)]
    dates = [dt.datetime.fromtimestamp(s, dt.UTC) for s in seconds]
    kind = random.choice(["s", "ms", "iso", "blank", "dotted", "zone"])
    if kind in ("s", "ms"):
        found = [s * (1 if kind == "s" else 1000) for s in seconds]
        return [str(s) for s in found], found
    form = {
        "iso": "%Y-%m-%dT%H:%M:%S",
        "blank": "%Y-%m-%d %H:%M:%S",
        "dotted": "%d.%m.%Y %H:%M:%S",
        "zone": "%Y-%m-%dT%H:%M:%SZ",
    }[kind]
    return [d.strftime(form) for d in dates], [s * 1_000_000 for s in seconds]


def read(source: Any, **options: Any) -> sdx.Interactions | None:
    """Read and use a log; None if it is refused."""
    try:
        log = sdx.read(source, quiet=True, **options)
    except sdx.SoftdexError:
        return None
    return used(log)


def used(log: sdx.Interactions) -> sdx.Interactions:
    """Use a log in every way; what was read must read the same again."""
    assert len(log)
    assert len(log.user) == len(log.item)
    assert log.weight is None or (log.weight > 0).all()
    again = sdx.read(log.to_arrow(), quiet=True, **{r: r for r in ("user", "item")})
    assert rows(again) == rows(log)
    str(log.describe())
    assert log.csr().shape == (log.num_users, log.num_items)
    assert len(log.histories.ids) == len(log)
    for split in (sdx.split.per_user, sdx.split.leave_last):
        try:
            split(log)
        except sdx.SoftdexError:
            continue
    return log


def rows(log: sdx.Interactions) -> list[tuple[Any, ...]]:
    names = ("user", "item", "time", "weight")
    table = log.to_arrow()
    return list(zip(*(table[n].to_pylist() for n in names if n in table.column_names), strict=True))


def outcome(log: sdx.Interactions | None) -> str:
    return "refused" if log is None else "done"


def must_read(source: Any, wanted: Truth, **options: Any) -> str:
    """Read a source that is whole: all of its rows, in their order."""
    log = used(sdx.read(source, quiet=True, **options))
    found = rows(log)
    assert found == wanted.rows, (found[:3], wanted.rows[:3])
    return "done"


# writing -----------------------------------------------------------------------------------------


def named(random: Random, cells: dict[str, list[str]]) -> dict[str, list[str]]:
    """The columns in another order and under other names."""
    order = random.sample(list(cells), len(cells))
    return {random.choice(NAMES[name]): cells[name] for name in order}


def as_text(random: Random, cells: dict[str, list[str]], separator: str) -> str:
    """Delimited text with a header."""
    end = random.choice(["\n", "\n", "\r\n", "\r"])
    lines = [list(cells), *map(list, zip(*cells.values(), strict=True))]
    if len(separator) > 1:
        text = end.join(separator.join(line) for line in lines) + end
    else:
        out = io.StringIO()
        quoting = random.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC])
        if end == "\r" and any("\n" in cell for line in lines for cell in line):
            quoting = csv.QUOTE_ALL  # QUOTE_MINIMAL would leave a bare line feed
        csv.writer(out, delimiter=separator, lineterminator=end, quoting=quoting).writerows(lines)
        text = out.getvalue()
    return text if random.random() < 0.7 else text.removesuffix(end)


def packed(random: Random, raw: bytes, folder: Path, name: str) -> Path:
    """Write bytes, compressed or not."""
    kind = random.choice(["plain", "plain", "gz", "zst", "bz2", "xz", "zip"])
    path = folder / (name if kind == "plain" else f"{name}.{kind}")
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("README", "hello")
            archive.writestr(f"in/{name}", raw)
    elif kind == "zst":
        with pa.CompressedOutputStream(str(path), "zstd") as file:
            file.write(raw)
    else:
        pack: dict[str, Callable[[bytes], bytes]] = {
            "plain": bytes,
            "gz": gzip.compress,
            "bz2": bz2.compress,
            "xz": lzma.compress,
        }
        path.write_bytes(pack[kind](raw))
    return path


def damaged(random: Random, raw: bytes) -> bytes:
    """Change some of the bytes, or cut, double or move a part."""
    found = bytearray(raw)
    for _ in range(random.choice([1, 1, 2, 5, 30])):
        at = random.randrange(len(found) + 1)
        length = random.choice([1, 1, 4, 8, 50])
        kind = random.randrange(7)
        if kind == 0 and at < len(found):
            found[at] ^= 1 << random.randrange(8)
        elif kind == 1:
            found[at : at + length] = random.randbytes(length)
        elif kind == 2:
            found[at : at + length] = b""
        elif kind == 3:
            found[at:at] = found[at : at + length * 4]
        elif kind == 4:
            found[at:at] = random.choice(HOSTILE).encode("latin-1", "replace")
        elif kind == 5 and random.random() < 0.3:
            del found[at:]
        elif kind == 6:
            extreme = random.choice([-1, 0, 2**31 - 1, -(2**31), 2**20])
            found[at : at + 4] = extreme.to_bytes(4, "little", signed=True)
    return bytes(found)


# attempts ----------------------------------------------------------------------------------------


def rewritten_text(seed: int, folder: Path) -> str:
    """The same log in other text: separators, quotes, line ends, order, encoding, compression."""
    random = Random(seed)
    separator = random.choice([",", "\t", ";", "|", "::", ", "])
    wanted = truth(random, plain=len(separator) > 1 or random.random() < 0.5)
    cells = named(random, wanted.cells)
    if separator in ";|\t" and random.random() < 0.3:
        cells = {
            name: [c.replace(".", ",") for c in column] if name in NAMES["weight"] else column
            for name, column in cells.items()
        }
    encoding = random.choice(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-32", "gb18030"])
    raw = as_text(random, cells, separator).encode(encoding)
    options = {} if random.random() < 0.5 else {"separator": separator}
    path = packed(random, raw, folder, random.choice(["log.csv", "log.dat", "log.txt"]))
    return must_read(path, wanted, encoding=encoding, **options)


def inter(seed: int, folder: Path) -> str:
    """RecBole's .inter files."""
    random = Random(seed)
    wanted = truth(random, plain=True)
    cells = {
        f"{n}:{'float' if n in ('time', 'weight') else 'token'}": c for n, c in wanted.cells.items()
    }
    path = packed(random, as_text(random, cells, "\t").encode(), folder, "log.inter")
    return must_read(path, wanted)


def damaged_text(seed: int, folder: Path) -> str:
    """Text with bytes changed, read with both rules for bad rows."""
    random = Random(seed)
    log = truth(random)
    raw = as_text(random, named(random, log.cells), random.choice([",", "\t", ";", "::"])).encode()
    path = packed(random, damaged(random, raw), folder, random.choice(["log.csv", "log.tsv"]))
    if random.random() < 0.3:
        path.write_bytes(damaged(random, path.read_bytes()))
    strict = read(path)
    loose = read(path, bad_rows="drop")
    if strict is not None:
        assert loose is not None
        assert rows(loose) == rows(strict)
    return outcome(loose)


def json_lines(seed: int, folder: Path) -> str:
    """The same log as objects, one per line or in a list; then damaged."""
    random = Random(seed)
    wanted = truth(random)
    cells: dict[str, list[Any]] = dict(wanted.cells)
    for place, name in enumerate(n for n in cells if n != "note"):
        if name in ("user", "item", "weight"):
            cells[name] = [row[place] for row in wanted.rows]
    columns = named(random, cells)
    found = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if random.random() < 0.3:
        text = json.dumps(found, indent=random.choice([None, 1]))
    else:
        escaped = random.random() < 0.5
        text = "\n".join(json.dumps(row, ensure_ascii=escaped) for row in found)
    name = random.choice(["log.json", "log.jsonl", "log.ndjson"])
    whole = must_read(packed(random, text.encode(), folder, name), wanted)
    if random.random() < 0.3:
        return whole
    (folder / "damaged").mkdir()
    path = packed(random, damaged(random, text.encode()), folder / "damaged", name)
    return outcome(read(path, bad_rows=random.choice(["error", "drop"])))


def in_memory(random: Random, wanted: Truth) -> pa.Table:
    """The same log in Arrow columns of some type."""
    columns: dict[str, pa.Array] = {}
    for place, name in enumerate(n for n in wanted.cells if n != "note"):
        column = pa.array([row[place] for row in wanted.rows])
        if pa.types.is_string(column.type):
            kinds = [pa.string(), pa.large_string(), pa.string_view()]
            column = column.cast(random.choice(kinds))
        if random.random() < 0.2 and not pa.types.is_string_view(column.type):
            column = column.dictionary_encode()
        columns[random.choice(NAMES[name])] = column
    if random.random() < 0.3:
        columns["note"] = pa.array([[1, None]] * len(wanted.rows))
    table = pa.table(columns)
    return table.select(random.sample(table.column_names, table.num_columns))


def parquet(seed: int, folder: Path) -> str:
    """Parquet files, whole and damaged."""
    random = Random(seed)
    wanted = truth(random)
    path = folder / "log.parquet"
    table = in_memory(random, wanted)
    plain = pa.table(
        {
            n: c.cast("string") if pa.types.is_string_view(c.type) else c
            for n, c in zip(table.column_names, table.columns, strict=True)
        }
    )
    compression = random.choice(["none", "snappy", "zstd", "gzip"])
    version = random.choice(["1.0", "2.0"])
    pq.write_table(
        plain, path, compression=compression, data_page_version=version,
        use_dictionary=random.random() < 0.5, row_group_size=random.choice([1, 7, 10_000]),
    )  # fmt: skip
    if random.random() < 0.2:
        return must_read(path, wanted)
    path.write_bytes(damaged(random, path.read_bytes()))
    return outcome(read(path, bad_rows=random.choice(["error", "drop"])))


def ipc(seed: int, folder: Path) -> str:
    """Arrow files and streams, whole and damaged."""
    random = Random(seed)
    wanted = truth(random)
    path = folder / "log.arrow"
    table = in_memory(random, wanted)
    make = random.choice([pa.ipc.new_file, pa.ipc.new_stream])
    codec = random.choice([None, None, "zstd", "lz4"])
    with make(path, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
        out.write_table(table)
    if random.random() < 0.2:
        return must_read(path, wanted)
    path.write_bytes(damaged(random, path.read_bytes()))
    return outcome(read(path, bad_rows=random.choice(["error", "drop"])))


def lying(random: Random, column: pa.Array) -> pa.Array:
    """The same array with bytes of its buffers changed."""
    if pa.types.is_dictionary(column.type):
        indices, values = column.indices, column.dictionary
        if random.random() < 0.5:
            indices = lying(random, indices)
        else:
            values = lying(random, values)
        return pa.DictionaryArray.from_arrays(indices, values, safe=False)
    found = [
        None if b is None else pa.py_buffer(damaged_in_place(random, b)) for b in column.buffers()
    ]
    kept = random.randrange(len(found))
    buffers = [
        new if i == kept else old
        for i, (new, old) in enumerate(zip(found, column.buffers(), strict=True))
    ]
    return pa.Array.from_buffers(column.type, len(column), buffers)


def damaged_in_place(random: Random, buffer: pa.Buffer) -> bytes:
    found = bytearray(buffer.to_pybytes())
    for _ in range(random.choice([1, 2, 9])):
        if found:
            at = random.randrange(len(found)) // 4 * 4
            extreme = random.choice([-1, 0, 1, 7, 2**31 - 1, -(2**31), 2**20])
            found[at : at + 4] = extreme.to_bytes(4, "little", signed=True)[: len(found) - at]
    return bytes(found)


def memory(seed: int, folder: Path) -> str:
    """Tables in memory: of several libraries, or with buffers that lie."""
    random = Random(seed)
    wanted = truth(random)
    table = in_memory(random, wanted)
    if random.random() < 0.3:
        as_rows = table.to_pylist()
        make: list[Callable[[], Any]] = [
            lambda: table, lambda: pl.from_arrow(table), lambda: pl.from_arrow(table).lazy(),
            lambda: as_rows, lambda: table.to_pydict(), lambda: table.to_batches()[0],
            lambda: pd.DataFrame(table.to_pydict()), lambda: table.to_reader(),
        ]  # fmt: skip
        return must_read(random.choice(make)(), wanted)
    columns = {n: table[n].chunk(0) for n in table.column_names if n not in NAMES["note"]}
    for name in random.sample(list(columns), random.randint(1, len(columns))):
        try:
            columns[name] = lying(random, columns[name])
        except pa.ArrowException:
            continue  # Arrow itself refuses to make it
    return outcome(read(pa.table(columns), bad_rows=random.choice(["error", "drop"])))


def options(seed: int, folder: Path) -> str:
    """A whole file under hostile options, with an item table that may not fit."""
    random = Random(seed)
    wanted = truth(random)
    path = folder / random.choice(["log.csv", "log.jsonl"])
    if path.suffix == ".csv":
        path.write_text(as_text(random, named(random, wanted.cells), ","), newline="")
    else:
        path.write_text("\n".join(json.dumps(r) for r in pa.table(wanted.cells).to_pylist()))
    (folder / "items.csv").write_text("item,price\n" + "".join(f"{i},{i}\n" for i in range(9)))
    words = [*wanted.cells, *HOSTILE, 0, 1, 99, -1, False, True, None, 1.5]
    given: dict[str, Any] = {
        "user": random.choice(words), "item": random.choice(words), "time": random.choice(words),
        "rating": random.choice(words), "weight": random.choice(words),
        "keep": random.sample([w for w in words if isinstance(w, str)], 2),
        "items": random.choice([folder / "items.csv", folder, {"item": ["1"]}, {}, None]),
        "item_columns": random.choice([["a", "b"], ["item"], [], "ab", HOSTILE[:2]]),
        "encoding": random.choice([*ENCODINGS, *HOSTILE]),
        "separator": random.choice([*HOSTILE, " ", "|", "é", "::"]),
        "duplicates": random.choice(["last", "sum", "keep"]),
        "bad_rows": random.choice(["error", "drop"]),
    }  # fmt: skip
    chosen = random.sample(list(given), random.choice([1, 1, 2, 4]))
    return outcome(read(path, **{name: given[name] for name in chosen}))


def partitions(seed: int, folder: Path) -> str:
    """A log cut by one of its columns into folders called column=value."""
    random = Random(seed)
    wanted = truth(random, plain=True)
    wanted.rows = wanted.rows[:9]
    cells = {name: column[:9] for name, column in wanted.cells.items() if name != "note"}
    by = random.choice(list(cells))
    cut: dict[str, list[int]] = {}
    for place, cell in enumerate(cells[by]):
        cut.setdefault(cell, []).append(place)
    suffix = random.choice(["csv", "parquet"])
    for value, places in cut.items():
        inside = folder / "log" / f"{by}={value}"
        inside.mkdir(parents=True)
        part = {name: [column[p] for p in places] for name, column in cells.items() if name != by}
        if suffix == "csv":
            (inside / "a.csv").write_text(as_text(random, part, ","), newline="")
        else:
            pq.write_table(pa.table(part), inside / "a.parquet")
    log = sdx.read(folder / "log", quiet=True)
    text = lambda found: sorted(tuple(map(str, row)) for row in found)  # noqa: E731
    assert text(rows(log)) == text(wanted.rows)
    return "done"


KINDS: dict[str, Callable[[int, Path], str]] = {
    "rewritten_text": rewritten_text,
    "inter": inter,
    "damaged_text": damaged_text,
    "json_lines": json_lines,
    "parquet": parquet,
    "ipc": ipc,
    "memory": memory,
    "options": options,
    "partitions": partitions,
}
