"""Inside: how an index finds a user's list: the nodes of a beam search, or the cells of a
multi-index.

Rows and columns of the cells stand in the order of their codewords' scores for the user, so that
the cells with the best words are in the first corner. Shapes: I items, C words per codebook.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from softdex.explain.draw import places
from softdex.explain.look import look
from softdex.explain.page import AREA, LEFT
from softdex.index.contract import Filter
from softdex.index.imi.index import Imi
from softdex.index.imi.search import opened
from softdex.index.tree.tree import Tree
from softdex.model.asking import Asked, query_of
from softdex.model.estimate import softmax_of
from softdex.serve.study import Study
from softdex.serve.views.effort import present, tried

SIDE = 64  # cells per side that are shown


def inside(study: Study, asked: Asked, k: int, effort: float | None) -> dict[str, Any]:
    """Return what a search looks at for a user."""
    index, serves = tried(study)
    k = min(k, len(study.model.items))
    found = beam(study, asked, k) if isinstance(index, Tree) else cells(study, asked, k, effort)
    return {"serves": serves, **found}


def beam(study: Study, asked: Asked, k: int) -> dict[str, Any]:
    """Return the levels of the beam search of a tree: the nodes to draw, and what it found."""
    seen = look(study.model, history=study.keys(asked.history), k=k)
    levels = []
    for row, xs in zip(seen.rows, places(seen.rows), strict=True):
        nodes = [
            {
                "number": node.number, "parent": node.parent, "kind": node.kind,
                "rank": node.rank, "shade": round(node.shade, 4), "leads": list(node.leads),
                "name": node.name, "detail": node.detail, "note": node.note,
                "x": round((float(x) - LEFT) / AREA, 5),
            }
            for node, x in zip(row.nodes, xs, strict=True)
        ]  # fmt: skip
        level = row.beam
        levels.append(
            {
                "level": level.level, "size": level.size, "scored": level.scored,
                "kept": level.kept, "candidates": len(level.nodes), "nodes": nodes,
            }
        )  # fmt: skip
    return {
        "kind": "tree",
        "effort": study.model.index.effort,  # type: ignore[attr-defined]
        "named": seen.named,
        "levels": levels,
        "items": [
            {"item": item.key, "title": item.title, "rank": item.rank, "exact": item.exact}
            for item in seen.items
        ],
        "lost": [
            {"item": item.key, "title": item.title, "exact": item.exact, "level": item.end.level}
            for item in seen.lost or []
            if item.end is not None
        ],
    }


def cells(study: Study, asked: Asked, k: int, effort: float | None) -> dict[str, Any]:
    """Return the cells of a multi-index: their mass under its law and under the softmax, which of
    them a search opens, and where the list and the history are."""
    index: Imi = tried(study).index
    effort = present(index, k) if effort is None else effort
    query, filter = query_of(study.model, asked.rows, asked.history), Filter(asked.history)
    every = torch.arange(index.num_items, device=index.cell.device)
    with torch.inference_mode():
        law = index.log_prob(query, every)[0].double().exp().cpu().numpy()
        softmax = softmax_of(study.model, "inside", 1.0).log_probs(query)[0].double().exp()
        projected = index.scorer.project(query).float()
        scores = torch.einsum("d,kcd->kc", projected[0], index.words).cpu().numpy()
        looked = opened(index, projected, max(effort, k), filter)[0].cpu().numpy()
        hits = index.search(query, k, filter=filter, effort=effort)
    size = index.words.shape[1]
    ranks = [np.argsort(np.argsort(-each, kind="stable"), kind="stable") for each in scores]
    side = min(SIDE, size)
    row, column = (rank * side // size for rank in ranks)
    cell = index.cell.cpu().numpy().astype(np.int64)
    block = row[cell // size] * side + column[cell % size]
    alive = index.alive.cpu().numpy()

    def summed(values: np.ndarray) -> list[float]:
        sums = np.bincount(block, values * alive, side * side)
        return [float(f"{each:.4g}") for each in sums]

    listed = [item for item in hits.ids[0].tolist() if item >= 0]
    past = list(dict.fromkeys(asked.history.ids[::-1].tolist()))
    return {
        "kind": "imi",
        "effort": None if np.isinf(effort) else effort,
        "codewords": size,
        "side": side,
        "last": index.last,
        "cells": summed(np.ones(len(block))),
        "mass": summed(law),
        "softmax": summed(softmax.cpu().numpy()),
        "opened": summed(looked[cell].astype(float)),
        "looked": int((looked[cell] & alive).sum()),
        "listed": _placed(study, listed, block),
        "history": _placed(study, past, block),
    }


# inside ------------------------------------------------------------------------------------------


def _placed(study: Study, items: list[int], block: np.ndarray) -> list[list[Any]]:
    """Return items with the block that they are in."""
    keys = study.keys(np.array(items, np.int64))
    return [[key, int(block[item])] for key, item in zip(keys, items, strict=True)]
