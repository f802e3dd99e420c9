"""ndcg@20 of `ials` and `rg2` without options beside implicit's ALS with its defaults.

    python bench/als_beside.py [DATA ...]

Each user's last event where the order is known, else 80/10/10 per user; 8,000 users of gowalla.
All are trained on train alone and rank what the test part does not mask; three seeds. At the end
the users are solved for once more with the items fixed: by their events in train (`trained`), and
by the history that the test part shows (`history`). One JSON line per data set.
"""

from __future__ import annotations

import itertools
import warnings
from argparse import Namespace
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from threadpoolctl import threadpool_limits

import softdex as sdx
from _data import need
from _harness import report, sized
from _options import parser, run
from softdex.encode.table import Users
from softdex.model.learn import assemble
from softdex.score.product import Dot
from softdex.solve.loop import Progress

DATA = ["lastfm-hetrec", "ml-100k", "ml-1m", "amazon-beauty", "gowalla"]
USERS = 8000  # of gowalla
SEEDS = sized(3, 1)

PARSER = parser(__file__, __doc__)
PARSER.add_argument("data", nargs="*", default=sized(DATA, DATA[:1]), help="data sets")


def parts(name: str) -> sdx.Split:
    """The split of a data set, by the order of its events if that is known."""
    path = need(f"{name}.parquet")
    if name in ("ml-1m", "amazon-beauty"):
        return sdx.split.leave_last(sdx.read(path, time="position", quiet=True))
    log = sdx.read(path, quiet=True)
    if name == "gowalla":
        log = log.select(log.user < USERS).k_core(3)
    return sdx.split.leave_last(log) if name == "ml-100k" else sdx.split.rg(log, seed=0)


def ours(recipe: str, train: sdx.Interactions, seed: int) -> sdx.Retriever:
    options = sdx.recipes.options(recipe) | {"seed": seed, "device": "cpu"}
    job = sdx.recipes.make(recipe, train, options)
    trainer = job.trainer(train)
    for epoch in range(sized(options["epochs"], 1)):
        trainer.run_epoch(Progress(epoch), lambda: None)
    trainer.solve_users()
    return assemble(recipe, options, train, job.encoder, job.scorer)


def implicit(train: sdx.Interactions, test: sdx.Holdout, seed: int) -> list[sdx.Retriever]:
    """The model with users by train, and with those of test by the history there."""
    from implicit.als import AlternatingLeastSquares

    matrix, past = train.csr(binary=True), test.history
    later = sp.csr_matrix(
        (np.ones(len(past.ids), np.float32), past.ids, past.indptr), (len(test), train.num_items)
    )
    with warnings.catch_warnings(), threadpool_limits(1, "blas"):  # implicit asks for it
        warnings.simplefilter("ignore")
        model = AlternatingLeastSquares(random_state=seed, use_gpu=False)
        model.fit(matrix, show_progress=False)
        users = model.recalculate_user(np.arange(train.num_users), matrix)
        both = users.copy()
        both[test.users] = model.recalculate_user(np.arange(len(test)), later)
    items = Dot(torch.from_numpy(model.item_factors))
    tables = (Users(torch.from_numpy(vectors)) for vectors in (users, both))
    return [assemble("implicit", {}, train, table, items) for table in tables]


def main(given: Namespace) -> None:
    for name in given.data:
        train, _, test = parts(name)
        rows: dict[str, Any] = {}
        for system, seed in itertools.product(("ials", "rg2", "implicit"), range(SEEDS)):
            if system == "implicit":
                models = implicit(train, test, seed)
            else:
                models = [ours(system, train, seed)] * 2
            for model, known in zip(models, ("trained", "history"), strict=True):
                figure = model.evaluate(test, 20, known_users=known)["ndcg@20"]
                rows.setdefault(f"{system}, {known}", []).append(round(figure, 4))
        protocol = f"{test.card.name}, users solved again, seeds 0 to {SEEDS - 1}"
        report(f"als_beside {name}", protocol, card=test.card.sha256, **{"ndcg@20": rows})


if __name__ == "__main__":
    run(PARSER, main)
