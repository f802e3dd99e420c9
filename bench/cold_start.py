"""Recall@20 of cold items: a tenth of the items is left out of training and served by features.

    python bench/cold_start.py DATA [recipe=sasrec] [seed=0] [NAME=VALUE ...]

DATA is `ml-1m` (genres, title) or `amazon-beauty` (categories). Events are split 80/20 per user in
the order of time; events of cold items are removed from train. Every user with a cold item in test
gets 20 items: among the cold ones alone, and among all.
"""

from __future__ import annotations

import time
from argparse import Namespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import softdex as sdx
from _data import need
from _harness import report, sized
from _options import parser, run, unless_tiny
from softdex.encode.features.columns import learn_columns

COLUMNS = {"ml-1m": ["genres", "title:text"], "amazon-beauty": ["categories"]}
K, COLD = sized(20, 5), 0.1

PARSER = parser(__file__, __doc__)
PARSER.add_argument("data", choices=list(COLUMNS), **unless_tiny("ml-1m"))
PARSER.recipe_options({"recipe": "sasrec"})


def main(given: Namespace) -> None:
    data, recipe = given.data, given.own["recipe"]
    options = {"seed": 0, "features": COLUMNS[data]} | given.options
    seed = options["seed"]
    catalogue = pq.read_table(need(f"{data}.items.parquet"))
    log = sdx.read(need(f"{data}.parquet"), time="position", items=catalogue, quiet=True).compact()
    drawn = np.random.default_rng(seed).permutation(log.num_items)
    cold = np.sort(drawn[: int(COLD * log.num_items)])
    past, future = halves(log)
    warm = past.select(~np.isin(past.item, cold)).compact()
    asked = future.select(np.isin(future.item, cold))
    asked = asked.select(np.isin(asked.user, users_of(warm, log)))
    wanted = lists(asked)
    began = time.perf_counter()
    model = sdx.fit(recipe, warm, **options)
    seconds = time.perf_counter() - began
    keys = log.items.take(cold)
    rows = pa.array(np.flatnonzero(np.isin(catalogue["item"].to_numpy(), keys.to_numpy())))
    model.add_items(catalogue.take(rows))
    people = log.users.take(np.array(sorted(wanted)))
    alone = model.recommend(people, k=K, allow=keys)
    everything = model.recommend(people, k=K)
    figures = {
        f"{recipe}, cold alone": recall(alone, log, wanted),
        f"{recipe}, among all": recall(everything, log, wanted),
    }
    figures |= rivals(log, past, cold, wanted, COLUMNS[data], seed)
    report(
        f"cold_start {data}",
        f"{len(cold):,} of {log.num_items:,} items cold, 80/20 per user by time, {len(wanted):,} "
        f"users with a cold item in test, recall@{K} of their cold items",
        recipe=recipe,
        options=options,
        figures={name: round(value, 4) for name, value in figures.items()},
        seconds=round(seconds, 1),
    )


def halves(log: sdx.Interactions) -> tuple[sdx.Interactions, sdx.Interactions]:
    """The first 80 % of each user's events, and the rest."""
    order = np.lexsort((log.time, log.user))
    counts = log.user_counts
    place = np.empty(len(log), np.int64)
    place[order] = np.arange(len(log)) - np.repeat(np.cumsum(counts) - counts, counts)
    early = place < 0.8 * counts[log.user]
    return log.select(early), log.select(~early)


def users_of(part: sdx.Interactions, log: sdx.Interactions) -> np.ndarray:
    return log.users.lookup(part.users.all())


def lists(asked: sdx.Interactions) -> dict[int, set[int]]:
    wanted: dict[int, set[int]] = {}
    for user, item in zip(asked.user.tolist(), asked.item.tolist(), strict=True):
        wanted.setdefault(user, set()).add(item)
    return wanted


def recall(found: Any, log: sdx.Interactions, wanted: dict[int, set[int]]) -> float:
    table = found.to_pydict()
    user, item = log.users.lookup(table["user"]), log.items.lookup(table["item"])
    hits = dict.fromkeys(wanted, 0)
    for u, i in zip(user.tolist(), item.tolist(), strict=True):
        hits[u] += i in wanted[u]
    return float(np.mean([hits[u] / len(wanted[u]) for u in wanted]))


def rivals(
    log: sdx.Interactions,
    past: sdx.Interactions,
    cold: np.ndarray,
    wanted: dict[int, set[int]],
    columns: list[str],
    seed: int,
) -> dict[str, float]:
    """Recall of cold items at random, and by the cosine of their features with the history's; the
    most popular items hold no cold one."""
    draw = np.random.default_rng(seed + 1)
    content = features_of(log, columns)
    history = past.select(~np.isin(past.item, cold)).histories
    chance, nearest, among = [], [], []
    for user, targets in wanted.items():
        chosen = set(draw.choice(cold, K, replace=False).tolist())
        chance.append(len(chosen & targets) / len(targets))
        taste = content[history[user]].sum(0)
        score = content @ taste
        best = cold[np.argsort(-score[cold], kind="stable")[:K]]
        nearest.append(len(set(best.tolist()) & targets) / len(targets))
        score[history[user]] = -np.inf
        best = np.argsort(-score, kind="stable")[:K]
        among.append(len(set(best.tolist()) & targets) / len(targets))
    found = {"random, cold alone": chance, "content, cold alone": nearest}
    found |= {"content, among all": among, "popular, among all": [0.0]}
    return {name: float(np.mean(values)) for name, values in found.items()}


def features_of(log: sdx.Interactions, columns: list[str]) -> np.ndarray:
    """Token vectors of length 1 per item, rare tokens weighing more."""
    made = learn_columns(log.item_table, columns)
    encoded = made.encode(log.item_table)
    matrix = np.zeros((log.num_items, made.tokens), np.float32)
    row, place = np.nonzero(encoded.ids >= 0)
    np.add.at(matrix, (row, encoded.ids[row, place]), encoded.weights[row, place])
    matrix *= np.log(log.num_items / np.maximum(1, (matrix > 0).sum(0)))
    return matrix / np.maximum(1e-9, np.linalg.norm(matrix, axis=1, keepdims=True))


if __name__ == "__main__":
    run(PARSER, main)
