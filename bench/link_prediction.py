"""Link prediction on a graph of items; appends one JSON line per run, unless it is there.

    python bench/link_prediction.py NAME OUT.jsonl [recipe=ssm] [NAME=VALUE ...]

NAME is a data set: `gowalla`, `ml-1m`, `amazon-book-kgat` and so on link items by the users whom
they share, `lastfm-hetrec-tags` and `ml-10m-tags` link tags by the items that carry both. Two nodes
are linked if one is among the 50 of the other with the largest cosine, of those that share at least
3; nodes with fewer than 20 links are dropped, repeatedly (RG2, Table 4, has a graph of pages with
the same core). `neighbours=50`, `shared=3` and `core=20` change that.

Recipes see a link as two events, one per direction, and nothing of what made it. 80/10/10 of the
links are drawn at random; both directions of a link are in one part, and each node keeps a link in
train. A node is asked for its held-out neighbours among all nodes but itself and its known
neighbours. NAME=VALUE takes every option of the recipe, and `tune=24` and `timed=true` as in
`bench/quality.py`.
"""

from __future__ import annotations

from argparse import ArgumentTypeError, Namespace
from dataclasses import replace

import numpy as np
import scipy.sparse as sp

import softdex as sdx
from _data import need
from _harness import TINY, sized, surroundings
from _options import parser, run, unless_tiny, written
from _training import key_of, trained, write
from softdex.data.holdout import join
from softdex.data.keys import range_keys
from softdex.data.ragged import group

METRICS = ("map@10", "mrr@10", "ndcg@10")
OWN = {"recipe": "ssm", "tune": None, "timed": False}
GRAPH = {"neighbours": 50, "shared": 3, "core": sized(20, 3)}


def data_set(text: str) -> str:
    """The name of a log, without its ending."""
    if "." in text or "/" in text:
        raise ArgumentTypeError(f"expected the name of a data set such as ml-1m, got {text!r}")
    return text


PARSER = parser(__file__, __doc__)
PARSER.add_argument("name", type=data_set, **unless_tiny("ml-1m"))
PARSER.add_argument("out", **written("links.jsonl"))
PARSER.recipe_options(OWN | GRAPH)


def main(given: Namespace) -> None:
    name, path, options, own = given.name, given.out, given.options, given.own
    changed = {n: v for n, v in own.items() if v != (OWN | GRAPH)[n]}
    key = key_of(path, [name, own["recipe"], options | changed])
    if key is None:
        return
    graph = linked(members(name), *(own[n] for n in GRAPH))
    train, valid, test = divided(graph)
    made = trained(own["recipe"], train, valid, options, tune=own["tune"], timed=bool(own["timed"]))
    result = made.model.evaluate(test, 10)
    line = {
        "key": key,
        "benchmark": f"link_prediction {name}",
        "graph": {"nodes": graph.shape[0], "links": graph.nnz // 2} | {n: own[n] for n in GRAPH},
        "card": test.card.sha256,
        "metrics": {n: round(result[n], 5) for n in METRICS},
        "errors": {n: round(result.standard_error(n), 5) for n in METRICS},
        **made.figures(),
        **surroundings(),
    }
    write(path, line, {n: line[n] for n in ("benchmark", "recipe", "graph", "metrics", "seconds")})


def members(name: str) -> sp.csr_matrix:
    """Users x items of a log, or items x tags of one of tags: which nodes belong together."""
    path = need(f"{name}.parquet")
    if name.endswith("-tags") and not TINY:
        log = sdx.read(path, user="item", item="tag", time=False, quiet=True)
    else:
        log = sdx.read(path, time=False, quiet=True)
    return log.csr(binary=True)


def linked(members: sp.csr_matrix, neighbours: int, shared: int, core: int) -> sp.csr_matrix:
    """The symmetric adjacency of the columns: see the head of this file."""
    together = (members.T @ members).tocoo()
    counts = np.asarray(members.sum(0)).ravel()
    enough = (together.data >= shared) & (together.row != together.col)
    row, col = together.row[enough], together.col[enough]
    cosine = together.data[enough] / np.sqrt(counts[row] * counts[col])
    order = np.lexsort((col, -cosine, row))
    row, col = row[order], col[order]
    near = np.arange(len(row)) - np.searchsorted(row, row) < neighbours
    ones = np.ones(int(near.sum()), np.float32)
    graph = sp.csr_matrix((ones, (row[near], col[near])), shape=together.shape)
    graph = graph.maximum(graph.T).tocsr()
    while len(few := np.flatnonzero(np.diff(graph.indptr) < core)):
        kept = np.setdiff1d(np.arange(graph.shape[0]), few)
        graph = graph[kept][:, kept]
    if not graph.nnz:
        raise sdx.DataError("no link is left. Lower shared= or core=.")
    return graph


def divided(graph: sp.csr_matrix) -> sdx.Split:
    """Divide the links; both directions of a link are in one part."""
    upper = sp.triu(graph, 1).tocoo()
    order = np.random.default_rng(0).permutation(upper.nnz)
    one, other = upper.row[order], upper.col[order]
    part = np.full(len(one), "train", "<U5")
    free = np.flatnonzero(~_first(one, other))
    held = len(one) // 10
    part[free[:held]], part[free[held : 2 * held]] = "test", "valid"
    nodes = range_keys(graph.shape[0])
    log = sdx.Interactions(
        nodes,
        nodes,
        np.concatenate([one, other]).astype(np.int32),
        np.concatenate([other, one]).astype(np.int32),
        extra={"part": np.tile(part, 2)},
    )
    split = sdx.split.given(log, "part")
    assert split.valid is not None
    return join(split.train, _without_self(split.valid), _without_self(split.test), split.card)


def _first(*ends: np.ndarray) -> np.ndarray:
    """Whether a link is the first of one of its nodes, in the order of the links."""
    first = np.zeros(len(ends[0]), bool)
    _, at = np.unique(np.stack(ends, 1).ravel(), return_index=True)
    first[at // len(ends)] = True
    return first


def _without_self(holdout: sdx.Holdout) -> sdx.Holdout:
    """Exclude the node itself from its list, beside its known neighbours."""
    rows, masked = np.arange(len(holdout)), holdout.masked
    row = np.append(masked.row_of, rows)
    ids = np.append(masked.ids, holdout.users)
    return replace(holdout, masked=group(row, ids, len(holdout)))


if __name__ == "__main__":
    run(PARSER, main)
