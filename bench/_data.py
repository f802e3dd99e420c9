"""The logs of the benchmarks: real ones, random ones, and what a recipe does with them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import softdex as sdx
from _harness import TINY, scratch
from softdex.data.keys import range_keys
from softdex.index.tree.tree import Tree

DATA = Path(os.environ.get("SOFTDEX_DATA", Path(__file__).parents[2] / "shared" / "data"))


def need(name: str) -> Path:
    """The path of a real data set; with --tiny that of a synthetic one with its columns."""
    if TINY:
        return _synthetic() / (
            "items.parquet" if name.endswith(".items.parquet") else "log.parquet"
        )
    path = DATA / name
    if not path.exists():
        raise sdx.DataError(f"no {name} in {DATA}. Set SOFTDEX_DATA to the folder that holds it.")
    return path


@cache
def _synthetic() -> Path:
    """A folder with a log and an item table that have every column a script asks for."""
    world = sdx.synthetic.world(users=150, items=120, seed=0, events=40, skew=0.5)
    log, table = world.interactions(), world.item_table()
    order = np.lexsort((log.time, log.user))
    user, counts = log.user[order], log.user_counts
    position = np.arange(len(log)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns = {"user": user, "item": log.item[order], "position": position.astype(np.int32)}
    folder = scratch()
    pq.write_table(
        pa.table(columns | {"test": position >= 0.8 * counts[user]}), folder / "log.parquet"
    )
    words = [[name] for name in table["category"].to_pylist()]
    items = {"item": np.arange(log.num_items, dtype=np.int32), "genres": words, "categories": words}
    items["title"] = [f"the {name}" for name in table["subcategory"].to_pylist()]
    pq.write_table(pa.table(items), folder / "items.parquet")
    return folder


def runs(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that `bench/quality.py` wrote."""
    if not path.exists():
        raise sdx.DataError(f"no file {path}. Let bench/quality.py write it.")
    return [json.loads(line) for line in path.read_text().splitlines()]


def tree_model(path: Path) -> sdx.Retriever:
    """The saved model at `path`, if it is served from a tree."""
    model = sdx.load(path)
    if not isinstance(model.index, Tree):
        raise sdx.DataError(f"{path} holds no tree: its recipe is {model.recipe!r}.")
    return model


def log_of(user: np.ndarray, item: np.ndarray, users: int, items: int) -> sdx.Interactions:
    """The log of these row numbers, in the order of time."""
    columns = user.astype(np.int32), item.astype(np.int32)
    return sdx.Interactions(
        range_keys(users), range_keys(items), *columns, time=np.arange(len(user))
    )


def random_log(users: int, items: int, events: int) -> sdx.Interactions:
    """Random histories of so many events per user, low item numbers more often."""
    item = np.random.default_rng(0).random(users * events) ** 2 * items
    return log_of(np.repeat(np.arange(users), events), item, users, items)


def trainer_of(recipe: str, log: sdx.Interactions, **options: Any) -> Any:
    """What trains a recipe on a log, at its first step."""
    job = sdx.recipes.make(recipe, log, sdx.recipes.options(recipe) | options)
    trainer = job.trainer(log)
    trainer.modules.train()
    return trainer


def step_of(trainer: Any) -> Callable[[], None]:
    """A training step, on another batch at each call; on a GPU replayed as `fit` replays it."""
    size = trainer.batch_size
    assert trainer.feed.size >= size, "a step needs a whole batch"
    order = torch.randperm(trainer.feed.size).to(trainer.device)
    batches = cycle(order[: len(order) // size * size].split(size))
    if trainer.replay is None:
        return lambda: trainer.step(next(batches))
    return lambda: trainer.replay(trainer.step, next(batches))
