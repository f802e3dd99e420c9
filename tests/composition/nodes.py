"""Trees by loops: the levels over the slots, and a node's score by attention to the history."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from composition.loops import Leaves, Rows

LAYERS = ("first", "second", "third")
Pair = tuple[Sequence[int], int, int]
"""A history of items, oldest first; a level, from 1; a node of it."""


class Shape:
    """The levels of a tree: the first has `roots` nodes, others `arity` times as many."""

    def __init__(self, items: int, options: dict[str, Any]) -> None:
        self.arity, beam = options["arity"], options["beam"]
        need = math.ceil(round(items * (1 + options["room"]), 6))
        if options["leaves"] == "none":
            beam = max(beam, items)
        sizes = [need]
        while items > beam and math.ceil(need / self.arity ** len(sizes)) > beam:
            sizes.append(0)
        self.depth = len(sizes)
        self.roots = math.ceil(need / self.arity ** (self.depth - 1))
        self.sizes = [self.roots * self.arity**j for j in range(self.depth)]
        self.starts = [sum(self.sizes[:j]) for j in range(self.depth)]

    def width(self, level: int) -> int:
        """Slots under a node of a level."""
        return int(self.arity ** (self.depth - level))


class Tree:
    """A tree over its slots, in one state of a run, and the scores of its nodes.

    Args:
        shape: of the tree.
        state: tensors by the names of the run.
        options: of the recipe.
        leaves: of a step; None: nothing is looked up.
    """

    def __init__(
        self,
        shape: Shape,
        state: dict[str, Tensor],
        options: dict[str, Any],
        leaves: Leaves | None = None,
    ) -> None:
        self.shape, self.options = shape, options
        self.item_of = [int(i) for i in state["index.item_of"]]
        assert len(self.item_of) == shape.sizes[-1]
        self.slot_of = {item: slot for slot, item in enumerate(self.item_of) if item >= 0}
        nodes = "scorer.nodes"
        self.rows = Rows(state[f"model.{nodes}.weight"]) if leaves is None else leaves.tables[nodes]
        assert len(self.rows) == sum(shape.sizes)
        names = ("see", "see_units", "weigh", "last", "last_bias")
        names += tuple(f"{layer}{more}" for layer in LAYERS for more in ("", "_units"))
        self.layers = {
            name: state[f"model.scorer.{name}"]
            if leaves is None
            else leaves.dense[f"scorer.{name}"]
            for name in names
        }
        self.stats = {layer: state[f"model.scorer.{layer}_stats"].clone() for layer in LAYERS}
        self.windows = _windows(options["length"])
        self.known: dict[tuple[tuple[int, ...], int], list[float]] = {}

    def above(self, item: int, level: int) -> int:
        """The ancestor of an item on a level."""
        return self.slot_of[item] // self.shape.width(level)

    def holds(self, node: int, level: int) -> list[int]:
        """The items under a node."""
        width = self.shape.width(level)
        return [i for i in self.item_of[node * width : (node + 1) * width] if i >= 0]

    def children(self, node: int) -> list[int]:
        """The nodes below."""
        return [node * self.shape.arity + child for child in range(self.shape.arity)]

    def scores(self, pairs: Sequence[Pair], *, learns: bool = False) -> Tensor:
        """Scores of pairs; with `learns` as one batch, whose norm moves the statistics."""
        alike = itertools.groupby(pairs, lambda pair: (id(pair[0]), *pair[:2]))
        x = torch.cat([self._met(*key[1:], [n for _, _, n in each]) for key, each in alike])
        for layer in LAYERS:
            bias, slope, scale, shift = self.layers[f"{layer}_units"]
            x = (x if layer == "first" else x @ self.layers[layer]) + bias
            x = self._normed(layer, x, learns) * scale + shift if self._norm != "none" else x
            x = torch.where(x > 0, x, slope * x)
        found: Tensor = x @ self.layers["last"] + self.layers["last_bias"]
        return found

    @property
    def _norm(self) -> str:
        return str(self.options["norm"])

    def _met(self, history: Sequence[int], level: int, nodes: Sequence[int]) -> Tensor:
        """The first layer before its bias: windows of the history by attention, and the node."""
        start, layers = self.shape.starts[level - 1], self.layers
        own, first = torch.stack([self.rows[start + node] for node in nodes]), layers["first"]
        dim, total = own.shape[1], own @ first[-own.shape[1] :]
        (bias, slope, weigh), ends = layers["see_units"], layers["weigh"]
        window = [n for n, size in enumerate(self.windows) for _ in range(size)]
        history = list(history)[-len(window) :]
        for place, item in enumerate(history, len(window) - len(history)):
            if item not in self.slot_of:
                continue
            a = self.rows[start + self.above(item, level)]
            hidden = a @ layers["see"][0] + (a * own) @ layers["see"][1] + own @ layers["see"][2]
            hidden = hidden + bias
            weight = torch.where(hidden > 0, hidden, slope * hidden) @ weigh + ends[0]
            weight = torch.where(weight > 0, weight, ends[1] * weight)
            at = window[place] * dim
            total = total + weight[:, None] * (a @ first[at : at + dim])
        return total

    def _normed(self, layer: str, x: Tensor, learns: bool) -> Tensor:
        if self._norm == "layer":
            mean, variance = x.mean(1, keepdim=True), x.var(1, correction=0, keepdim=True)
            return (x - mean) / (variance + 1e-5).sqrt()
        mean, variance = self.stats[layer]
        if learns:
            now = torch.stack([x.mean(0), x.var(0)]).detach()
            self.stats[layer] = 0.9 * self.stats[layer] + 0.1 * now
            mean, variance = x.mean(0), x.var(0, correction=0)
        return (x - mean) / (variance + 1e-5).sqrt()

    @torch.no_grad()
    def value(self, history: Sequence[int], level: int, node: int) -> float:
        """The score of one node as it is served, minus infinity if it is empty."""
        key = (tuple(history), level)
        if key not in self.known:
            nodes = range(self.shape.sizes[level - 1])
            self.known[key] = self.scores([(history, level, n) for n in nodes]).tolist()
        return self.known[key][node] if self.holds(node, level) else -math.inf

    def beam(
        self, history: Sequence[int], k: int, width: int, seen: Sequence[int] = ()
    ) -> list[list[tuple[int, float]]]:
        """The nodes with scores that a search looks at on each level, the best first."""
        found: list[list[tuple[int, float]]] = []
        nodes, above = list(range(self.shape.roots)), dict.fromkeys(range(self.shape.roots), 0.0)
        for level in range(1, self.shape.depth + 1):
            scored = []
            for node in nodes:
                score = self.value(history, level, node)
                if self.options["product"]:
                    score = float(logsigmoid(torch.tensor(score))) + above[node]
                if seen and not set(self.holds(node, level)) - set(seen):
                    score = -math.inf
                scored.append((node, score))
            found.append(sorted(scored, key=lambda each: -each[1]))
            kept, held = [], 0
            for node, score in found[-1]:
                if score > -math.inf and (len(kept) < width or held < k):
                    kept.append((node, score))
                    held += len(set(self.holds(node, level)) - set(seen))
            nodes = [child for node, _ in kept for child in self.children(node)]
            above = {child: score for node, score in kept for child in self.children(node)}
        return found

    def best(
        self, history: Sequence[int], k: int, width: int, seen: Sequence[int]
    ) -> list[tuple[int, float]]:
        """The list of a search: items and scores."""
        leaves = self.beam(history, k, width, seen)[-1]
        items = [(-score, self.item_of[node]) for node, score in leaves if score > -math.inf]
        return [(item, -low) for low, item in sorted(items)[:k]]


def _windows(length: int) -> list[int]:
    """Positions per window, the oldest first; a few of the latest have one of their own."""
    sizes, left = [], length
    for size in (1, 1, 1, 2, 2, 2, 10, 10, 20, 20):
        if left > 0:
            sizes.append(min(size, left))
            left -= size
    sizes[-1] += max(0, left)
    return sizes[::-1]
