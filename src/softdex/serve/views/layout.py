"""Layout: a map of items on which those that a model finds similar lie close together.

Items of up to `ANCHORS` are laid out: neighbours attract and random items repel each other, from
the plane of the two main directions of their vectors (as UMAP and LargeVis do, with every edge in
every round). Other items lie between their nearest anchors. Shapes: N items, K neighbours.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from softdex.data.ragged import Ragged
from softdex.model.answer import KnowsLikeness, alike
from softdex.model.asking import blocks
from softdex.model.rules import Rules
from softdex.model.wanted import wanted
from softdex.serve.problems import Problem
from softdex.serve.study import Study, some
from softdex.serve.views.groups import by_column

ANCHORS, POINTS = 20_000, 100_000  # items that are laid out, and that are on the map
NEAR = 15  # neighbours that attract
ROUNDS = 200
HOME = 0.05  # pull to the middle, which holds groups together that have no common neighbours
DRAWN = 10  # random items that repel each item, per round
BETWEEN = 4  # anchors that another item lies between
CHECKED, AROUND = 10, 50  # of an item's nearest, how many are among so many on the map
ROWS = 1024  # items whose neighbours are searched at a time
A, B = 1.577, 0.895  # attraction is 1 / (1 + A d^2B), as for a least distance of 0.1 in UMAP
GRID = 10_000  # coordinates are whole numbers from 0 to this
COLOURS = 8  # values of a column that have a colour


class Layout(NamedTuple):
    """Places (N, 2) of items, and which share of their neighbours they keep."""

    items: np.ndarray
    places: np.ndarray
    kept: float
    plane: float


def layout(study: Study) -> Layout:
    """Return the map of a model's items, computed once."""
    return study.once("layout", lambda: _layout(study))


def item_map(study: Study, column: str) -> dict[str, Any]:
    """Return the items of the map with their places, events and value of a column."""
    found, model = layout(study), study.model
    rows = {
        "items": study.keys(found.items),
        "x": found.places[:, 0].tolist(),
        "y": found.places[:, 1].tolist(),
        "events": model.item_counts[found.items].tolist(),
    }
    more: dict[str, Any] = {"column": None, "values": [], "value": []}
    if column or study.facts["category"]:
        name, values, codes = by_column(study, column)
        kept = np.argsort(-np.bincount(codes.ids, minlength=len(values)), kind="stable")[:COLOURS]
        more = {"column": name, "values": [values[i] for i in kept.tolist()]}
        more["value"] = _first(codes, found.items, kept).tolist()
    return {
        **rows, **more, "of": len(model.items), "kept": found.kept, "plane": found.plane,
        "checked": CHECKED, "around": AROUND,
    }  # fmt: skip


# inside ------------------------------------------------------------------------------------------


def _layout(study: Study) -> Layout:
    model = study.model
    alive = np.flatnonzero(model.index.alive.cpu().numpy())
    order = alive[np.argsort(-model.item_counts[alive], kind="stable")]
    rare = some(np.sort(order[ANCHORS // 2 :]), ANCHORS - min(len(order), ANCHORS // 2))
    anchors = np.sort(np.concatenate([order[: ANCHORS // 2], rare]))
    if len(anchors) < 4:
        raise Problem(404, "map: the model has fewer than four items.")
    near = _neighbours(study, anchors, anchors, NEAR)
    linked = near[:, 0] != np.arange(len(anchors))
    if not linked.all():  # an item without neighbours has no place
        place = np.cumsum(linked) - 1
        anchors, near = anchors[linked], place[near[linked]]
    start = _plane(study, anchors, near)
    places = _settled(near, start)
    kept, plane = (_kept(near[:, :CHECKED], each) for each in (places, start))
    others = some(np.setdiff1d(alive, anchors), POINTS - len(anchors))
    if len(others):
        between = _neighbours(study, others, anchors, BETWEEN)
        places = np.concatenate([places, places[between].mean(1)])
    places = _turned(places)
    low, high = np.quantile(places, (0.001, 0.999), axis=0)
    scaled = ((places - low) / max(1e-9, float((high - low).max()))).clip(0, 1)
    scaled += (1 - scaled.max(0)) / 2
    return Layout(
        np.concatenate([anchors, others]), (scaled * GRID).round().astype(np.int64), kept, plane
    )


def _neighbours(study: Study, items: np.ndarray, among: np.ndarray, k: int) -> np.ndarray:
    """Return the k most similar items per item (N, k), as places in `among`."""
    model: Any = study.model
    k = min(k, len(among) - 1)
    vectors = model.index.vectors()
    if vectors is None:
        return _counted(study, items, among, k)
    rows = torch.nn.functional.normalize(vectors.detach().float().cpu(), dim=1)
    head = rows[torch.from_numpy(among)]
    found = []
    for part in blocks(len(items), ROWS):
        ids = torch.from_numpy(items[part])
        scores = rows[ids] @ head.T
        scores[torch.from_numpy(items[part])[:, None] == torch.from_numpy(among)] = -torch.inf
        found.append(scores.topk(k, dim=1).indices.numpy())
    return np.concatenate(found)


def _counted(study: Study, items: np.ndarray, among: np.ndarray, k: int) -> np.ndarray:
    """Return the neighbours by what an encoder knows of likeness; itself where there are fewer."""
    model = study.model
    if not isinstance(model.encoder, KnowsLikeness):
        raise Problem(404, f"map: {model.recipe} does not know which items are similar.")
    allow = torch.zeros(len(model.items), dtype=torch.bool)
    allow[torch.from_numpy(among)] = True
    like = wanted(model, "map", k, None, Rules(), None)._replace(mask=allow)
    place = np.full(len(model.items), -1)
    place[among] = np.arange(len(among))
    found = np.concatenate([hits.ids.numpy() for _, hits in alike(model, items, like)])
    own = np.maximum(place[items], 0)[:, None]
    return np.where(found >= 0, place[found], own)


def _plane(study: Study, items: np.ndarray, near: np.ndarray) -> np.ndarray:
    """Return the two main directions (N, 2) of the vectors, or of the graph of neighbours."""
    from scipy.sparse import csr_matrix  # takes a while to import
    from scipy.sparse.linalg import svds

    model: Any = study.model
    vectors = model.index.vectors()
    if vectors is not None:
        rows = vectors.detach().double().cpu()[torch.from_numpy(items)]
        rows = torch.nn.functional.normalize(rows, dim=1)
        rows = rows - rows.mean(0)
        _, directions = torch.linalg.eigh(rows.T @ rows)
        wide = directions[:, -2:].flip(1)
        wide = wide * torch.where(wide.sum(0) < 0, -1.0, 1.0)
        flat = (rows @ wide).numpy()
        flat = np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    else:
        n, k = near.shape
        graph = csr_matrix((np.ones(n * k), near.ravel(), np.arange(0, n * k + 1, k)), (n, n))
        left, size, _ = svds(graph, 3, v0=np.ones(n))
        flat = left[:, np.argsort(-size)[1:3]]
    flat = flat - flat.mean(0)
    return flat * (10 / np.abs(flat).max(0).clip(1e-12))


def _settled(near: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the places (N, 2) after attraction and repulsion; always the same for the same start.

    A pair of neighbours attracts from both sides.
    """
    n, k = near.shape
    one, two = np.repeat(np.arange(n), k), near.ravel()
    one, two = np.concatenate([one, two]), np.concatenate([two, one])
    draw, places = np.random.default_rng(0), places.copy()
    for round_ in range(ROUNDS):
        rate = 1 - round_ / ROUNDS
        gap = places[two] - places[one]
        far = (gap**2).sum(1).clip(1e-12)
        pull = 2 * A * B * far ** (B - 1) / (1 + A * far**B)
        step = _summed(one, np.clip(pull[:, None] * gap, -4, 4), n) / 4 - HOME * places
        other = draw.integers(n, size=(DRAWN, n))
        for drawn in other:
            gap = places - places[drawn]
            far = (gap**2).sum(1)
            push = 2 * B / ((0.001 + far) * (1 + A * far**B))
            step += np.clip(push[:, None] * gap, -4, 4)
        places += rate * np.clip(step, -4, 4) / 4
    return places


def _turned(places: np.ndarray) -> np.ndarray:
    """Return the places with the direction in which they spread most as the first one."""
    middle = places - places.mean(0)
    directions = np.linalg.eigh(middle.T @ middle)[1][:, ::-1]
    turned: np.ndarray = middle @ (directions * np.where(directions.sum(0) < 0, -1, 1))
    return turned


def _summed(rows: np.ndarray, values: np.ndarray, n: int) -> np.ndarray:
    return np.stack([np.bincount(rows, column, n) for column in values.T], 1)


def _kept(near: np.ndarray, places: np.ndarray) -> float:
    """Return which share of the nearest items is among the nearest on the map."""
    from scipy.spatial import KDTree  # takes a while to import

    rows = some(np.arange(len(places)), 2000)
    around = KDTree(places).query(places[rows], min(AROUND + 1, len(places)))[1]
    hits = (near[rows][:, :, None] == around[:, None, :]).any(2)
    return float(hits.mean())


def _first(codes: Ragged, items: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return the rarest of the coloured values of each item, -1 for none."""
    place = np.full(int(max(codes.ids.max(initial=0), kept.max(initial=0))) + 1, -1)
    place[kept] = np.arange(len(kept))
    mine = codes.take(items)
    found = np.full(len(items), -1)
    np.maximum.at(found, mine.row_of, place[mine.ids])
    return found
