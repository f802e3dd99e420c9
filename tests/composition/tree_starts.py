"""How trees begin by loops: random weights, and items in the order that `leaves` asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from composition.loops import close
from composition.nodes import LAYERS, Tree
from composition.tree_steps import World
from softdex.recipes import leaves as leaves_file
from softdex.recipes.leaves import Quick


@contextmanager
def quick_models() -> Iterator[dict[str, Any]]:
    """Record the vectors that leaves are clustered by, and the quick models behind them."""
    found: dict[str, Any] = {"clustered": [], "jobs": {}}
    by_vectors = leaves_file.build.by_vectors

    def clustered(vectors: Any, shape: Any, **kept: Any) -> Any:
        order = by_vectors(vectors, shape, **kept)
        found["clustered"].append((vectors.copy(), shape, kept, order))
        return order

    def recorded(name: str) -> Any:
        plain = getattr(Quick, name)

        def made(quick: Quick) -> Any:
            found["jobs"][name] = plain(quick)
            return found["jobs"][name]

        return patch.object(Quick, name, made)

    clusters = patch.object(leaves_file.build, "by_vectors", clustered)
    with clusters, recorded("sequence"), recorded("factors"):
        yield found


def check_tree_start(w: World) -> None:
    """Random weights by the seed, and items in the order that `leaves` asks for."""
    o, before, dim = w.o, w.ran.steps[0].before, w.o["dim"]
    generator = torch.Generator().manual_seed(o["seed"])
    made = Tree(w.shape, before, o)
    widths = [(len(made.windows) + 1) * dim, 128, 64, 24]
    for n, layer in enumerate(LAYERS):
        wanted = torch.randn(widths[n], widths[n + 1], generator=generator) * widths[n] ** -0.5
        close(made.layers[layer], wanted, layer)
    torch.randn(1, 32, generator=generator)
    nodes = torch.randn(sum(w.shape.sizes), dim, generator=generator) * 0.1
    close(made.rows.weight, nodes, "nodes")
    assert torch.equal(before["index.effort"], torch.tensor(float(o["beam"])).double())
    items, slots = len(w.plain.items), w.shape.sizes[-1]
    order = [item for item in made.item_of if item >= 0]
    wanted = [-1] * slots
    for rank, item in enumerate(order):
        wanted[rank * slots // items] = item
    assert made.item_of == wanted
    how = o["leaves"]
    if how == "none":
        assert order == list(range(items))
    elif how == "random":
        assert order == np.random.default_rng(o["seed"]).permutation(items).tolist()
    elif how == "category":
        assert w.plain.log.item_table is not None
        genres = w.plain.log.item_table["genre"].to_pylist()
        chance = np.random.default_rng(o["seed"]).random(items).tolist()
        one = [g[int(x * len(g))] if g else None for g, x in zip(genres, chance, strict=True)]
        assert one != [g[0] if g else None for g in genres], "the case shows nothing"
        codes = [name for name in dict.fromkeys(one) if name is not None]
        code = [-1 if name is None else codes.index(name) for name in one]
        draw = np.random.default_rng(o["seed"])
        place = draw.permutation(len(set(code)))[[c + 1 for c in code]].tolist()
        mixed = np.random.default_rng(int(draw.integers(2**62))).permutation(items).tolist()
        assert order == sorted(mixed, key=lambda i: place[i])
    elif how in ("factors", "sequence"):
        vectors, shape, kept, clustered = w.made["clustered"][0]
        assert order == clustered.tolist()
        assert (tuple(shape), kept["seed"]) == (
            (w.shape.roots, w.shape.arity, w.shape.depth),
            o["seed"],
        )
        job = w.made["jobs"][how]
        close(job.scorer.items.weight, vectors, "the vectors of a quick model")
        again = _quick(how, w)
        close(again, vectors, "the vectors of that model trained by itself", scale=1.0)
    else:
        saved = sdx.load(how)
        keys = saved.items.all().to_pylist()
        known = [w.plain.items.index(keys[i]) for i in saved.index.item_of.tolist() if i >= 0]
        assert known != sorted(known)
        assert order == known + [i for i in range(items) if i not in known]


def _quick(how: str, w: World) -> Tensor:
    """The item vectors of the quick model, trained by itself."""
    given: dict[str, Any] = {"dim": 64, "seed": w.o["seed"], "device": "cpu", "patience": 0}
    if how == "factors":
        return sdx.fit("rg2", w.plain.log, epochs=4, **given).index.scorer.items.weight
    sampled = {"objective": "ssm", "index": "uniform", "negatives": 1000}
    rates = {"epochs": 8, "lr": 0.003, "lr_end": 0.05, "max_history": 50}
    return sdx.fit("sasrec", w.plain.log, **given, **sampled, **rates).index.scorer.items.weight
