"""Real data: every file reads, with published counts; recipes reach their known quality."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest

import softdex as sdx
from softdex.evaluate.evaluate import evaluate

pytestmark = pytest.mark.real

COUNTS = {
    "amazon-beauty-large": (353_962, 40_226, 54_542),
    "amazon-beauty": (198_502, 22_363, 12_101),
    "amazon-book-kgat": (846_434, 70_679, 24_915),
    "amazon-book-ngcf-testpart": (603_378, 52_639, 82_629),
    "diginetica-sessions": (982_961, 202_633, 43_097),
    "gowalla": (1_027_370, 29_858, 40_981),
    "gowalla-fastvae": (1_027_464, 29_858, 40_988),
    "lastfm-hetrec-tags": (186_479, 1_892, 12_523),
    "lastfm-hetrec": (92_834, 1_892, 17_632),
    "ml-100k": (100_000, 943, 1_682),
    "ml-10m-implicit": (2_105_971, 60_655, 8_641),
    "ml-10m-tags": (95_580, 4_009, 7_601),
    "ml-1m": (1_000_209, 6_040, 3_706),
    "ml-latest-small": (100_004, 671, 9_066),
    "nowplaying-sessions": (1_057_684, 142_556, 60_416),
}
SPANS = {
    "lastfm-hetrec-tags": "1956-05-31 .. 2011-05-09",
    "ml-100k": "1997-09-20 .. 1998-04-22",
    "ml-10m-tags": "2005-12-23 .. 2009-01-05",
    "ml-latest-small": "1995-01-09 .. 2016-10-16",
}
ITEM_TABLES = [
    "amazon-beauty",
    "amazon-book-kgat",
    "lastfm-hetrec",
    "ml-100k",
    "ml-1m",
    "ml-latest-small",
]


@pytest.mark.parametrize("name", COUNTS)
def test_every_log_reads_without_options_and_describes_itself_as_published(
    data: Path, name: str
) -> None:
    facts = sdx.read(data / f"{name}.parquet").describe()
    assert (facts["rows"], facts["users"], facts["items"]) == COUNTS[name]
    if name in SPANS:
        assert facts["time"] == SPANS[name]


@pytest.mark.parametrize("name", ITEM_TABLES)
def test_every_item_table_reads_with_the_option_its_error_names(data: Path, name: str) -> None:
    table = data / f"{name}.items.parquet"
    with pytest.raises(sdx.DataError, match="items="):
        sdx.read(table)
    log = sdx.read(data / f"{name}.parquet", items=table)
    assert log.item_table is not None
    assert log.item_table.num_rows == log.num_items


def test_half_null_ratings_do_not_stop_ml_1m(
    data: Path, loud: None, capsys: pytest.CaptureFixture[str]
) -> None:
    log = sdx.read(data / "ml-1m.parquet")
    assert "time=position" in capsys.readouterr().err
    assert log.rating is None
    with pytest.raises(sdx.DataError, match="512,559"):
        sdx.read(data / "ml-1m.parquet", rating="rating")


def test_the_ten_core_of_ml_10m_implicit_is_the_published_one(data: Path) -> None:
    core = sdx.read(data / "ml-10m-implicit.parquet").k_core(10)
    assert (len(core), core.num_users, core.num_items) == (2_001_164, 47_292, 5_942)


def test_the_lightgcn_split_of_gowalla_has_the_published_counts(data: Path) -> None:
    card = sdx.split.lightgcn(sdx.read(data / "gowalla.parquet")).card
    assert card.counts["train events"] == 810_128
    assert card.counts["test targets"] == 217_242


def test_the_next_items_of_diginetica_are_as_many_as_published(data: Path) -> None:
    log = sdx.read(data / "diginetica-sessions.parquet")
    counts = sdx.split.next_item(log, (0.9, 0.1), column="test").card.counts
    assert counts["test targets"] == 60_858
    assert counts["train events"] - counts["train users"] == 719_470


@pytest.mark.slow
def test_item_cf_on_gowalla_is_above_the_bars_board(data: Path) -> None:
    """Measured .1695 / .1351; ItemCF of the BARS board has .1570 / .1214."""
    train, _, test = sdx.split.lightgcn(sdx.read(data / "gowalla.parquet"))
    result = sdx.fit("item_cf", train).evaluate(test, 20)
    assert result["recall@20"] > 0.1685
    assert result["ndcg@20"] > 0.1341


def test_rg2_ranks_ml_100k_better_than_counting_does(data: Path) -> None:
    train, _, test = sdx.split.rg(sdx.read(data / "ml-100k.parquet", quiet=True), seed=0)
    found = {
        name: sdx.fit(name, train).evaluate(test, 20)["ndcg@20"] for name in ("rg2", "item_cf")
    }
    assert found["rg2"] > found["item_cf"] + 0.02


@pytest.mark.slow
def test_plain_cosine_on_ml_1m_equals_implicit(data: Path) -> None:
    nearest_neighbours = pytest.importorskip("implicit.nearest_neighbours")
    train, _, test = sdx.split.rg(sdx.read(data / "ml-1m.parquet"))
    test = test.take(np.arange(0, len(test), 4))
    rival = nearest_neighbours.CosineRecommender(K=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rival.fit(train.csr().astype(np.float64), show_progress=False)
    lists = rival.similarity.tocsr()
    lists.setdiag(0)

    def search(part: sdx.Holdout, k: int, exact: bool) -> np.ndarray:
        scores = (part.history.csr(train.num_items) @ lists).toarray()
        scores[part.masked.row_of, part.masked.ids] = -1
        return np.argsort(-scores, axis=1, kind="stable")[:, :k]

    theirs = evaluate(search, test, item_counts=train.item_counts, k=20)
    model = sdx.fit("item_cf", train, neighbours=199, user_power=0, asymmetry=0.5)
    ours = model.evaluate(test, 20)
    assert ours["recall@20"] == pytest.approx(theirs["recall@20"], abs=5e-4)
    assert ours["ndcg@20"] == pytest.approx(theirs["ndcg@20"], abs=5e-4)
