"""Steps of trees by loops: walks, draws, siblings and beams; labels; losses per level."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import softdex as sdx
from composition.logs import Plain
from composition.loops import Leaves, Ran, close, steps_per_epoch
from composition.nodes import LAYERS, Shape, Tree
from composition.readers import attention_states
from composition.steps import check_network_step


class Row(NamedTuple):
    """A row to train on: the items before a target, the target, and its weight."""

    history: list[int]
    target: int
    weight: float


class World(NamedTuple):
    """A training of a tree, and what the loops know of it."""

    ran: Ran
    plain: Plain
    shape: Shape
    rows: list[Row]
    made: dict[str, Any]

    @property
    def o(self) -> dict[str, Any]:
        """All options."""
        return self.ran.options


def check_tree_step(w: World, number: int) -> None:
    step, o = w.ran.steps[number], w.o
    leaves = Leaves(step)
    tree, still = Tree(w.shape, step.before, o, leaves), Tree(w.shape, step.before, o)
    rows = [w.rows[int(at)] for at in step.at]
    epoch = number // steps_per_epoch(w.ran)
    rectify = o["rectify"] if epoch >= o["warm_up"] and w.shape.depth > 1 else "none"
    labels = [[1.0] * w.shape.depth for _ in rows]
    if rectify == "own":
        labels = [_led_to(still, row) for row in rows]
    losses = _losses(tree, still, rows, o, step.generator, labels)
    if rectify in ("path", "child"):
        weighed = [_rectified(w, still, row, rectify) for row in rows]
    else:
        weighed = [[1.0] * w.shape.depth for _ in rows]
    total, sum_ = torch.zeros((), dtype=torch.float64), sum(row.weight for row in rows)
    for row, each, label in zip(rows, losses, weighed, strict=True):
        for value, counts in zip(each, label, strict=True):
            total = total + row.weight / sum_ * counts * value / w.shape.depth
    moving = [f"scorer.{layer}_stats" for layer in LAYERS] if o["norm"] == "batch" else []
    check_network_step(w.ran, number, leaves, total, moving)
    for layer in LAYERS:
        close(step.after[f"model.scorer.{layer}_stats"], tree.stats[layer], f"norm of {layer}")


def _losses(
    tree: Tree,
    still: Tree,
    rows: list[Row],
    o: dict[str, Any],
    generator: torch.Generator,
    labels: list[list[float]],
) -> list[list[Tensor]]:
    """The loss of each row per level: first the levels that are taken whole, then the others."""
    shape = tree.shape
    found: list[list[Tensor]] = [[] for _ in rows]
    own = [[tree.above(row.target, j) for j in range(1, shape.depth + 1)] for row in rows]
    narrow = o["sampling"] in ("siblings", "beam")
    whole = [
        j == 1 if narrow else shape.sizes[j - 1] <= o["draws"] + 1
        for j in range(1, shape.depth + 1)
    ]
    against = _against(still, rows, own, o, generator, whole)
    for level in range(1, shape.depth + 1):
        if not whole[level - 1]:
            continue
        nodes = range(shape.sizes[level - 1])
        scores = tree.scores([(r.history, level, n) for r in rows for n in nodes], learns=True)
        for b, each in enumerate(scores.view(len(rows), -1)):
            pos = own[b][level - 1]
            others = [n for n in nodes if n != pos and tree.holds(n, level)]
            if o["objective"] == "softmax":
                top = torch.stack([each[n] for n in [pos, *others]])
                found[b].append(top.logsumexp(0) - each[pos])
            else:
                found[b].append(_binary(each[pos], [each[n] for n in others], labels[b][level - 1]))
    sampled = [j for j in range(1, shape.depth + 1) if not whole[j - 1]]
    if not sampled:
        return found
    pairs = [
        (row.history, j, n)
        for j in sampled
        for b, row in enumerate(rows)
        for n in [own[b][j - 1], *(node for node, _ in against[j][b][0])]
    ]
    scores = iter(tree.scores(pairs, learns=True))
    for j in sampled:
        for b in range(len(rows)):
            draws, logq, there = against[j][b]
            pos = next(scores)
            kept = [(next(scores), node, q) for node, q in draws]
            kept = [x for x in kept if x[1] != own[b][j - 1] and tree.holds(x[1], j)]
            if o["objective"] == "binary":
                label = labels[b][j - 1]
                found[b].append(_binary(pos, [score for score, _, _ in kept], label, there))
            elif not kept:
                found[b].append(pos * 0)
            else:
                rest = math.log1p(-math.exp(logq)) - math.log(len(kept))
                terms = [pos] + [score - q + rest for score, _, q in kept]
                found[b].append(torch.stack(terms).logsumexp(0) - pos)
    return found


def _binary(pos: Tensor, others: list[Tensor], label: float, there: float = 1.0) -> Tensor:
    yes, no = -torch.nn.functional.logsigmoid(pos), -torch.nn.functional.logsigmoid(-pos)
    total = there * (label * yes + (1 - label) * no)
    for score in others:
        total = total - torch.nn.functional.logsigmoid(-score)
    return total


def _against(
    still: Tree,
    rows: list[Row],
    own: list[list[int]],
    o: dict[str, Any],
    generator: torch.Generator,
    whole: list[bool],
) -> dict[int, list[tuple[list[tuple[int, float]], float, float]]]:
    """Per level and row: nodes with their log-probabilities, that of the label, and whether the
    label counts."""
    shape, found = still.shape, {}
    if o["sampling"] == "tree":
        return _walks(still, rows, own, o["draws"], generator)
    looked = (
        [still.beam(row.history, 1, o["beam"]) for row in rows] if o["sampling"] == "beam" else []
    )
    widest = max((len(each[j]) for each in looked for j in range(1, shape.depth)), default=0)
    for level in range(1, shape.depth + 1):
        if whole[level - 1]:
            continue
        mine = [each[level - 1] for each in own]
        size = shape.sizes[level - 1]
        living = sum(bool(still.holds(n, level)) for n in range(size))
        logq = -math.log(living)
        if o["sampling"] == "uniform":
            drawn = torch.randint(size, (len(rows), o["draws"]), generator=generator).tolist()
            found[level] = [([(n, logq) for n in each], logq, 1.0) for each in drawn]
        elif o["sampling"] == "siblings":
            found[level] = [
                ([(n, 0.0) for n in still.children(m // shape.arity)], 0.0, 1.0) for m in mine
            ]
        else:
            found[level] = []
            for b, m in enumerate(mine):
                nodes = [n for n, score in looked[b][level - 1] if score > -math.inf]
                filled = [(n, 0.0) for n in nodes] + [(m, 0.0)] * (widest - len(nodes))
                found[level].append((filled, 0.0, float(m in nodes)))
    return found


def _walks(
    still: Tree, rows: list[Row], own: list[list[int]], count: int, generator: torch.Generator
) -> dict[int, list[tuple[list[tuple[int, float]], float, float]]]:
    """Walks from the top, each step by a softmax among siblings."""
    found: dict[int, Any] = {}
    at = [[(-1, 0.0)] * count for _ in rows]
    mine = [0.0] * len(rows)
    for level in range(1, still.shape.depth + 1):
        points = torch.rand(len(rows), count, generator=generator, dtype=torch.float64).tolist()
        cached: dict[tuple[int, int], list[tuple[int, float]]] = {}

        def local(
            b: int, parent: int, level: int = level, cached: dict[Any, Any] = cached
        ) -> list[tuple[int, float]]:
            if (b, parent) not in cached:
                nodes = still.children(parent) if level > 1 else list(range(still.shape.roots))
                scores = torch.tensor(
                    [still.value(rows[b].history, level, n) for n in nodes]
                ).double()
                cached[b, parent] = list(zip(nodes, scores.log_softmax(0).tolist(), strict=True))
            return cached[b, parent]

        for b in range(len(rows)):
            walked = []
            for (node, logq), point in zip(at[b], points[b], strict=True):
                total, choice = 0.0, iter(local(b, node))
                while total <= point:
                    child, log = next(choice)
                    total += math.exp(log)
                walked.append((child, logq + log))
            at[b] = walked
            label = own[b][level - 1]
            mine[b] += dict(local(b, -1 if level == 1 else label // still.shape.arity))[label]
        found[level] = [(at[b], mine[b], 1.0) for b in range(len(rows))]
    return found


# labels ------------------------------------------------------------------------------------------


def _led_to(still: Tree, row: Row) -> list[float]:
    """Where the path from a level down to the item leads through the best of siblings."""
    label, labels = 1.0, [1.0]
    for level in range(still.shape.depth, 1, -1):
        own = still.above(row.target, level)
        siblings = still.children(own // still.shape.arity)
        scores = [still.value(row.history, level, n) for n in siblings]
        label *= scores.index(max(scores)) == siblings.index(own)
        labels.append(label)
    return labels[::-1]


def _rectified(w: World, still: Tree, row: Row, kind: str) -> list[float]:
    """Where the likeliest item under the ancestor is the target, or under the likelier child."""
    scores = _estimate(w, row.history)
    chance = np.exp(scores - np.max(scores))
    chance /= chance.sum()
    labels = []
    for level in range(1, w.shape.depth + 1):
        below = still.holds(still.above(row.target, level), level)
        label = float(max(below, key=lambda i: chance[i]) == row.target)
        if kind == "child" and level < w.shape.depth:
            likeliest = max(below, key=lambda i: chance[i])
            label = float(still.above(likeliest, level + 1) == still.above(row.target, level + 1))
        if w.o["normalise"]:
            nodes = range(w.shape.sizes[level - 1])
            held_ = [still.holds(n, level) for n in nodes]
            label /= sum(max(chance[i] for i in under) for under in held_ if under)
        labels.append(label)
    return labels


@torch.no_grad()
def _estimate(w: World, history: list[int]) -> np.ndarray:
    """Scores of all items by the sasrec behind the labels."""
    if w.o["estimator"] is None:
        job = w.made["jobs"]["sequence"]
        encoder, items = job.encoder, job.scorer.items.weight.double()
    else:
        saved = sdx.load(w.o["estimator"])
        encoder, items = saved.encoder, saved.index.scorer.items.weight.double()
    p = {name: t.double() for name, t in encoder.named_parameters()}
    read = [items[i] for i in history[-len(p["positions"]) :]]
    state = attention_states(p, read, int(encoder.heads))[-1]
    found: np.ndarray = (items @ state).numpy()
    return found
