"""What the box finds: keys by their start, text anywhere, the most popular first."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

import softdex as sdx
from softdex.serve import finder
from softdex.serve.finder import Finder

TITLES = [
    "The Quiet Lighthouse", "Quiet, The (1999)", "LIGHT house", "a\nb", None, "été à Paris",
    "the the the", "Lighthouse, The Quiet", "", "x" * 50, "b", "ab", "İstanbul", "100 % light",
]  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Finder:
    draw = np.random.default_rng(0)
    n = len(TITLES)
    seen = enumerate([*range(n), *draw.integers(0, n, 200)])
    log = sdx.read(
        [(f"u{user}", f"k{item:02d}") for user, item in seen],
        items=pa.table(
            {
                "item": [f"k{item:02d}" for item in range(n)],
                "maker": ["light" if item % 5 == 0 else "dark" for item in range(n)],
                "title": TITLES,
            }
        ),
        quiet=True,
    )  # fmt: skip
    return Finder(sdx.fit("popular", log, quiet=True), "title")


def brute(found: Finder, text: str) -> list[int]:
    """Keys that start with the text, then by popularity: titles with the text, titles with its
    words, makers."""
    model, low = found.model, text.lower().strip()
    order = np.argsort(-model.item_counts, kind="stable").tolist()
    keys = model.items.all().to_pylist()
    hits = [i for i, key in enumerate(keys) if key.startswith(text)]
    if not low:
        return hits
    assert model.item_table is not None
    for name in ("title", "maker"):
        cells = [(cell or "").lower() for cell in model.item_table[name].to_pylist()]
        hits += [i for i in order if low in cells[i]]
        words = low.split()
        if len(words) > 1:
            hits += [i for i in order if all(word in cells[i] for word in words)]
    return list(dict.fromkeys(hits))


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize(
    "text",
    ["light", "LIGHT", "quiet light", "house the", "the", "k0", "k07", "é", "ab", "a\nb", "b", "%",
     "xxx", "x" * 51, "nothing", " ", "", "i", "dark", "light dark"],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 7, 2**18])
def test_items_are_found_as_by_looking_at_each(
    text: str, limit: int, step: int, found: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "STEP", step)
    wanted = brute(found, text.replace("\n", " "))[:limit]
    if not text:
        wanted = list(range(len(TITLES)))[:limit]
    if text == "a\nb":  # a line break is a space in what is typed
        wanted = brute(found, "a b")[:limit]
    assert found.items(text, limit).tolist() == wanted


def test_keys_that_are_numbers_are_found_by_their_digits() -> None:
    log = sdx.read([(user, item) for user in (7, 71, 17) for item in (5, 50, 500, 6)], quiet=True)
    finds = Finder(sdx.fit("popular", log, quiet=True))
    assert finds.users.rows("7", 9).tolist() == [0, 2]
    assert finds.items("5", 2).tolist() == [0, 2]
