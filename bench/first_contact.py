"""Five jobs of a new user, as the pages tell them to: seconds and the figure of each.

    python bench/first_contact.py [--data FOLDER] [--budget 10m] [JOB ...]

FOLDER holds `ml-100k.parquet`, `ml-100k.items.parquet` and `diginetica-sessions.parquet`; without
it the jobs run on a synthetic world. JOB is one of `best` (the best of several recipes within the
budget), `sessions` (the next click), `cold` (items without events), `batch` (lists for everybody
under business rules) and `loop` (an encoder in a PyTorch loop, served from its index).
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

import softdex as sdx
from _harness import report, scratch, sized
from _options import parser, run
from softdex.encode.history import padded
from softdex.index.contract import Index
from softdex.index.imi.index import build
from softdex.index.uniform import Uniform
from softdex.objective.sampled import sampled_softmax
from softdex.score.product import Dot

K = sized(20, 5)
SESSIONS = sized(30_000, 60)  # the latest ones
EPOCHS = sized(5, 1)
TINIEST = {"recipes": ["popular", "item_cf"]}

Figures = dict[str, Any]


def main(given: Namespace) -> None:
    for job in given.jobs or JOBS:
        began = time.perf_counter()
        figures = JOBS[job](given.data, given.budget)
        protocol = figures.pop("protocol")
        spent = round(time.perf_counter() - began, 1)
        report(f"first_contact {job}", protocol, seconds=spent, figures=figures)


# the jobs ----------------------------------------------------------------------------------------


def best(folder: Path | None, budget: str) -> Figures:
    log = with_items(folder)
    found = sdx.compare(log, budget=budget, k=K, **sized({}, TINIEST))
    scores = {name: round(result[f"ndcg@{K}"], 4) for name, result in found.results.items()}
    return {
        "protocol": f"{about(log)}, sdx.compare(log, budget={budget!r}), ndcg@{K} on test",
        "best on validation": found.best,
        **scores,
    }


def sessions(folder: Path | None, budget: str) -> Figures:
    log = sessions_of(folder)
    given: dict[str, Any] = {"column": "test"} if "test" in log.extra else {"order": "rows"}
    train, valid, test = sdx.split.next_item(log, **given)
    figures: Figures = {"protocol": f"{about(log)}, split.next_item({given}), mrr@{K} per click"}
    options = {"epochs": EPOCHS, "dim": sized(64, 8), "hidden": 64, "max_history": 20}
    for recipe, own in (("popular", {}), ("item_cf", {}), ("sasrec", options)):
        model = sdx.fit(recipe, train, valid=valid, **own)
        figures[recipe] = round(model.evaluate(test, k=K, metrics="mrr")[f"mrr@{K}"], 4)
    return figures


def cold(folder: Path | None, budget: str) -> Figures:
    log = with_items(folder)
    names = ["genres"] if folder else ["category", "subcategory"]
    train, _, test = sdx.split.cold_items(log, (0.9, 0.1))
    figures: Figures = {
        "protocol": f"{about(log)}, split.cold_items, a tenth of the items, recall@{K} of ssl with "
        f"encoder='history', features={names}"
    }
    model = sdx.fit("ssl", train, encoder="history", features=names, epochs=EPOCHS)
    for name, one in (("popular", sdx.fit("popular", train)), ("ssl", model)):
        found = one.evaluate(test, k=K, metrics="recall")
        figures[f"{name}, among all"] = round(found[f"recall@{K}"], 4)
        figures[f"{name}, among cold"] = round(found[f"cold recall@{K}"], 4)
    return figures


def batch(folder: Path | None, budget: str) -> Figures:
    log = with_items(folder)
    column = "genre" if folder else "category"
    if folder:  # one value per item, to count
        assert log.item_table is not None
        first = pc.list_element(log.item_table["genres"], 0)
        log = replace(log, item_table=log.item_table.append_column("genre", first))
    users, banned = log.users.all(), log.items.take(np.argsort(-log.item_counts)[:20])
    model = sdx.fit("rg2", log)
    path = scratch() / "lists.parquet"
    rows = model.recommend_all(
        path, K, at_most={column: 3}, deny={users[0]: banned.to_pylist()}, columns=column
    )
    table = pq.read_table(path)
    counts = table.group_by(["user", column]).aggregate([([], "count_all")])["count_all"]
    own = table.filter(pc.equal(table["user"], users[0]))["item"]
    broken = int(pc.sum(pc.greater(counts, 3)).as_py())
    broken += len(set(own.to_pylist()) & set(banned.to_pylist()))
    return {
        "protocol": f"{about(log)}, rg2, recommend_all: {K} items per user, at most 3 per "
        f"{column}, 20 items denied to one user",
        "rows": rows,
        "full lists": round(rows / (K * len(users)), 4),
        "rules broken": broken,
    }


def loop(folder: Path | None, budget: str) -> Figures:
    train, _, test = sdx.split.leave_last(with_items(folder))
    figures: Figures = {
        "protocol": f"{about(train)} in train, docs/own_loop.md with 20 draws per event, ndcg@{K}"
    }
    proposals: dict[str, Callable[[Dot], Index]] = {
        "multi-index": lambda scorer: build(scorer, codewords=16),
        "uniform": Uniform,
    }
    for name, make in proposals.items():
        figures[name] = round(own(train, make).evaluate(test, k=K)[f"ndcg@{K}"], 4)
    figures["popular"] = round(sdx.fit("popular", train).evaluate(test, k=K)[f"ndcg@{K}"], 4)
    return figures


JOBS: dict[str, Callable[[Path | None, str], Figures]] = {
    f.__name__: f for f in (best, sessions, cold, batch, loop)
}


# what they share ---------------------------------------------------------------------------------


def own(train: sdx.Interactions, make: Callable[[Dot], Index]) -> sdx.Retriever:
    """Train the model of docs/own_loop.md against draws of a proposal, and serve it."""
    user, item = (torch.tensor(column, dtype=torch.int64) for column in (train.user, train.item))
    past = padded(train.histories, 50)
    torch.manual_seed(0)
    items, mix = nn.Embedding(train.num_items, 32), nn.Linear(32, 32)
    nn.init.normal_(items.weight, std=0.3)
    nn.init.eye_(mix.weight)

    def queries(past: Tensor) -> Tensor:
        real = (past >= 0).unsqueeze(2)
        sums = (items(past.clamp(min=0)) * real).sum(1)
        found: Tensor = mix(sums / real.sum(1).clamp(min=1))
        return found

    scorer = Dot(items, nn.Parameter(torch.zeros(train.num_items)))
    index = make(scorer)
    adam = torch.optim.Adam([*mix.parameters(), *scorer.parameters()], lr=0.01)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(train)).split(512):
            target, known = item[rows, None], past[user[rows]]
            query = queries(torch.where(known == target, -1, known))
            draws = index.sample(query, 20)
            loss = sampled_softmax(
                scorer(query, target)[:, 0], scorer(query, draws.ids), draws.logq,
                index.log_prob(query, target)[:, 0], draws.ids == target,
            )  # fmt: skip
            adam.zero_grad()
            loss.mean().backward()
            adam.step()
        index = index.refit()
    return sdx.from_torch(queries(past), index, train)


def with_items(folder: Path | None) -> sdx.Interactions:
    """A log with an item table."""
    if folder:
        return sdx.read(folder / "ml-100k.parquet", items=folder / "ml-100k.items.parquet")
    users, items = sized((2000, 1000), (60, 40))
    world = sdx.synthetic.world(users=users, items=items, seed=0)
    log = world.interactions()
    table = world.item_table().add_column(0, "item", log.items.all())
    return sdx.read(log.to_arrow(), items=table)


def sessions_of(folder: Path | None) -> sdx.Interactions:
    """A log whose users are sessions, the latest ones."""
    if not folder:
        return with_items(None)
    log = sdx.read(folder / "diginetica-sessions.parquet")
    return log.select(log.user >= log.num_users - SESSIONS).compact()


def about(log: sdx.Interactions) -> str:
    return f"{len(log):,} events, {log.num_users:,} users, {log.num_items:,} items"


PARSER = parser(__file__, __doc__)
PARSER.add_argument("jobs", nargs="*", metavar="JOB", help="jobs to run; all without one")
PARSER.add_argument("--data", type=Path, help="folder of the data sets; else a synthetic world")
PARSER.add_argument("--budget", default="10m", help="of the job `best`, such as 90s or 10m")

if __name__ == "__main__":
    run(PARSER, main)
