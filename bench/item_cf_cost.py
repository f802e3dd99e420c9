"""Seconds and peak memory of `item_cf` on ml-10m-implicit, beside implicit's cosine recommender."""

from __future__ import annotations

import warnings
from argparse import Namespace

import softdex as sdx
from _data import need
from _harness import peak_of, report
from _options import parser, run
from softdex.solve.closed.neighbours import cosine_neighbours

PARSER = parser(__file__, __doc__)


def main(given: Namespace) -> None:
    from implicit.nearest_neighbours import CosineRecommender

    train, _, test = sdx.split.per_user(sdx.read(need("ml-10m-implicit.parquet"), quiet=True))
    matrix = train.csr()
    cosine_neighbours(matrix[:100], 5)  # compiles

    def ours() -> int:
        return cosine_neighbours(matrix, 200).nnz

    def theirs() -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rival = CosineRecommender(K=200)
            rival.fit(matrix, show_progress=False)
        return rival.similarity.nnz

    def whole() -> dict[str, float]:
        return dict(sdx.fit("item_cf", train).evaluate(test, 20))

    works = {"softdex neighbours": ours, "implicit neighbours": theirs}
    figures = {name: peak_of(work)[1] for name, work in works.items()}
    result, figures["item_cf fit + evaluate"] = peak_of(whole)
    report(
        "item_cf_cost",
        "ml-10m-implicit, per_user 80/10/10 seed 0, 200 neighbours, plain cosine for the rivals; "
        "compiled beforehand; the peak of the process holds the libraries and the data too",
        rows=len(train),
        users=train.num_users,
        items=train.num_items,
        figures=figures,
        dense_similarity_gb=round(train.num_items**2 * 4 / 1e9, 3),
        recall_at_20=round(result["recall@20"], 4),
        ndcg_at_20=round(result["ndcg@20"], 4),
    )


if __name__ == "__main__":
    run(PARSER, main)
