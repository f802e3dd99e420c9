"""Trained models of every family on a tiny log, and what they answer, by keys."""

from __future__ import annotations

from typing import Any

import softdex as sdx
from composition.products import featured
from composition.suite import SMALL

Key = str
Scores = dict[tuple[Key, Key], float]
TREE = {"leaves": "random", "beam": 2, "negatives": 2, "max_history": 5}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "popular": ("popular", {}),
    "item_cf": ("item_cf", {}),
    "ials": ("ials", {"dim": 3, "epochs": 2, "device": "cpu"}),
    "rg2": ("rg2", {"dim": 3, "epochs": 2, "device": "cpu"}),
    "ssm": ("ssm", SMALL),
    "own vectors and histories": ("ssm", SMALL | {"encoder": "mix", "prior": 0.4, "lr": 0.1}),
    "histories": ("bpr", SMALL | {"encoder": "history", "score": "dot"}),
    "bir": ("bir", SMALL | {"encoder": "mix"}),
    "fastvae": ("fastvae", SMALL | {"hidden": 5, "latent": 3, "codewords": 3, "lr": 0.1}),
    "sasrec": ("sasrec", SMALL | {"heads": 1, "hidden": 4, "layers": 1}),
    "dtr": ("dtr", SMALL | TREE),
}
VAE = SMALL | {"hidden": 5, "latent": 3, "lr": 0.1}
GROWING = [name for name in MODELS if name not in ("popular", "item_cf")]


def fitted(name: str, log: sdx.Interactions | None = None) -> sdx.Retriever:
    recipe, options = MODELS[name]
    return sdx.fit(recipe, featured() if log is None else log, quiet=True, **options)


def keys(model: sdx.Retriever) -> tuple[list[Key], list[Key]]:
    """Users with events, and all items."""
    users = model.users.all().to_pylist()
    return [
        u for u, n in zip(users, model.seen.lengths, strict=True) if n
    ], model.items.all().to_pylist()


def scores_of(model: sdx.Retriever, users: list[Key], items: list[Key]) -> Scores:
    found = model.score(users, items, exclude_seen=False).to_pydict()
    return dict(zip(zip(found["user"], found["item"], strict=True), found["score"], strict=True))


def past(model: sdx.Retriever) -> dict[Key, list[Key]]:
    """The items of each user, by keys."""
    items = model.items.all().to_pylist()
    users = model.users.all().to_pylist()
    return {user: [items[i] for i in model.seen[n].tolist()] for n, user in enumerate(users)}


def lists_of(table: Any) -> dict[Key, list[Key]]:
    found: dict[Key, list[Key]] = {}
    for row in table.to_pylist():
        found.setdefault(row["user"], []).append(row["item"])
    return found
