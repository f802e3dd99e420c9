"""Milliseconds per key stroke in the search box of the page, by way of searching.

Titles of four words, whose frequencies are Zipf's; typed are the first letters of titles and of
single words, rare ones and frequent ones. `http` is what the page asks for: users and items.

python bench/page_search.py [ITEMS]
"""

from __future__ import annotations

import sqlite3
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import softdex as sdx
from _data import log_of
from _harness import peak_of, report, seconds, sized
from _options import parser, run
from softdex.serve.finder import Finder

ITEMS, USERS, EVENTS, WORDS, TITLES = sized(
    (1_000_000, 200_000, 3_000_000, 60_000, 25), (500, 50, 2000, 90, 3)
)
LIMIT = 8
FTS = "create virtual table found using fts5(title, content='', columnsize=0, {})"
Find = Callable[[str], Any]

PARSER = parser(__file__, __doc__)
PARSER.add_argument("items", nargs="?", type=float, default=ITEMS, help="Items.")


def titles(items: int) -> pa.Array:
    """Titles of four words."""
    draw = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwygpbvk"))
    words = ["".join(draw.choice(letters, draw.integers(3, 11))) for _ in range(WORDS)]
    weight = np.arange(1, WORDS + 1) ** -0.9
    chosen = draw.choice(WORDS, (4, items), p=weight / weight.sum())
    parts = [pa.array(words).take(pa.array(row)) for row in chosen]
    return pc.utf8_title(pc.binary_join_element_wise(*parts, " "))


def typed(column: pa.Array) -> Iterator[str]:
    """Yield what is in the box after each key stroke."""
    draw = np.random.default_rng(1)
    for row in draw.integers(len(column), size=TITLES):
        title = column[int(row)].as_py()
        yield from (title[:n] for n in range(1, len(title) + 1))
        word = title.split()[int(draw.integers(4))]
        yield from (word[:n].lower() for n in range(1, len(word) + 1))
    yield from ("zzz", "qqqq", "x", "!")


def sqlite(column: pa.Array, how: str, match: Callable[[str], str]) -> Find:
    """Full-text search of SQLite."""
    base = sqlite3.connect(":memory:")
    base.execute(FTS.format(how))
    base.executemany("insert into found(rowid, title) values (?, ?)", enumerate(column.to_pylist()))
    sentence = f"select rowid from found where found match ? limit {LIMIT}"
    return lambda text: base.execute(sentence, (match(text),)).fetchall()


def main(given: Namespace) -> None:
    items = int(given.items)
    column = titles(items)
    draw = np.random.default_rng(2)
    item = (items * draw.random(EVENTS) ** 3).astype(np.int64)
    log = log_of(draw.integers(0, USERS, EVENTS), item, USERS, items)
    log = sdx.Interactions(
        log.users, log.items, log.user, log.item, item_table=pa.table({"title": column})
    )
    model = sdx.fit("popular", log, quiet=True)
    lower, strokes = pc.utf8_lower(column), list(typed(column))

    def scanned() -> Find:
        finder = Finder(model, "title")
        finder.items("the first builds it", LIMIT)
        return lambda text: finder.items(text, LIMIT)

    def arrow() -> Find:
        return lambda text: np.flatnonzero(pc.match_substring(lower, text.lower()))[:LIMIT]

    def words(text: str) -> str:
        return " ".join(f'"{word}"*' for word in text.replace('"', "").split())

    ways: dict[str, Callable[[], Find]] = {
        "scan by popularity": scanned,
        "arrow match_substring": arrow,
        "sqlite fts5 prefix": lambda: sqlite(column, "detail=none, prefix='1 2 3'", words),
        "sqlite fts5 trigram": lambda: sqlite(
            column, "tokenize='trigram'", lambda text: '"{}"'.format(text.replace('"', ""))
        ),
    }
    for name, build in ways.items():
        began = time.perf_counter()
        find, memory = peak_of(build)
        built = time.perf_counter() - began
        show(name, items, strokes, find, build_s=round(built, 2), **memory)
    with sdx.serve({"model": model}, port=0, max_wait=60) as serving:

        def ask(text: str) -> None:
            for what in ("users", "items"):
                with urlopen(f"{serving.url}/v1/{what}?q={quote(text)}&limit={LIMIT}") as answer:
                    answer.read()

        first = seconds(lambda: ask("the first builds it"))
        show("http", items, strokes, ask, first_s=round(first, 2))


def show(way: str, items: int, strokes: list[str], find: Find, **more: Any) -> None:
    """Print the milliseconds per key stroke of a way of searching."""
    times = 1e3 * np.array([seconds(lambda text=text: find(text)) for text in strokes])
    figures = {"median": np.median(times), "p95": np.quantile(times, 0.95), "most": times.max()}
    report(
        "page_search",
        f"{items:,} titles of four words, {len(strokes)} key strokes, first {LIMIT} hits",
        way=way,
        milliseconds={name: round(float(value), 2) for name, value in figures.items()},
        **more,
    )


if __name__ == "__main__":
    run(PARSER, main)
