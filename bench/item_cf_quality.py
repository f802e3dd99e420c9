"""Quality of `item_cf`: Gowalla beside the BARS board's ItemCF, ml-1m beside implicit's cosine."""

from __future__ import annotations

import warnings
from argparse import Namespace

import numpy as np

import softdex as sdx
from _data import need
from _harness import report
from _options import parser, run
from softdex.evaluate.evaluate import evaluate

PARSER = parser(__file__, __doc__)


def rounded(result: sdx.Result) -> dict[str, float]:
    return {name: round(result[name], 4) for name in ("recall@20", "ndcg@20")}


def implicit_cosine(train: sdx.Interactions, test: sdx.Holdout, neighbours: int) -> sdx.Result:
    from implicit.nearest_neighbours import CosineRecommender

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rival = CosineRecommender(K=neighbours)
        rival.fit(train.csr(), show_progress=False)
    matrix, masked = train.csr(), test.csr()

    def search(part: sdx.Holdout, k: int, exact: bool) -> np.ndarray:
        seen = part.masked.csr(train.num_items)
        ids, _ = rival.recommend(
            part.users, matrix[part.users], N=k + int(part.masked.lengths.max()),
            filter_already_liked_items=False,
        )  # fmt: skip
        lists = np.full((len(ids), k), -1)
        for row, found in enumerate(ids):
            banned = set(seen[row].indices)
            free = [i for i in found if i not in banned][:k]
            lists[row, : len(free)] = free
        return lists

    assert masked.shape == matrix.shape
    return evaluate(search, test, item_counts=train.item_counts, k=20)


def main(given: Namespace) -> None:
    train, _, test = sdx.split.lightgcn(sdx.read(need("gowalla.parquet"), quiet=True))
    gowalla = {
        "item_cf": rounded(sdx.fit("item_cf", train).evaluate(test, 20)),
        "item_cf, 1000 neighbours": rounded(
            sdx.fit("item_cf", train, neighbours=1000).evaluate(test, 20)
        ),
        "BARS ItemCF (published)": {"recall@20": 0.1570, "ndcg@20": 0.1214},
    }
    report(
        "item_cf_quality gowalla",
        "Gowalla, LightGCN split, train masked, all test users; deterministic, no seed",
        card=test.card.sha256,
        results=gowalla,
    )
    train, _, test = sdx.split.rg(sdx.read(need("ml-1m.parquet"), quiet=True), seed=0)
    movies = {
        "item_cf": rounded(sdx.fit("item_cf", train).evaluate(test, 20)),
        "item_cf, plain cosine": rounded(
            sdx.fit("item_cf", train, user_power=0, asymmetry=0.5).evaluate(test, 20)
        ),
        "implicit cosine": rounded(implicit_cosine(train, test, 200)),
    }
    report(
        "item_cf_quality ml-1m",
        "ml-1m, 80/10/10 per user, split seed 0, train and validation masked, 200 neighbours each",
        card=test.card.sha256,
        results=movies,
    )


if __name__ == "__main__":
    run(PARSER, main)
