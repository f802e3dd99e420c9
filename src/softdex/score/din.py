"""DIN: score an item, or a node of a tree, by its attention to the history.

Shapes: B histories of L items, N items or nodes, D dimension, A attention units, F, G and H layer
widths, R rows of the node table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm, prelu

from softdex.encode.table import Table, table_of
from softdex.gathered import summed
from softdex.kernels.dispatch import attend
from softdex.score.contract import extended
from softdex.shapes import (
    FLOATS,
    LONGS,
    Layout,
    Sizes,
    Tensors,
    arguments,
    check_made,
    kept,
    moderate,
    most_of,
    most_through,
)
from softdex.share import present

Rows = Callable[[Tensor], Tensor]
"""Item ids -> rows of the node table that stand for them, -1 for none."""
NORMS = ("none", "layer", "batch")
MOMENTUM, TINY = 0.1, 1e-5
MOST_PLACES = 2**20  # longest history that a file may ask for
LAYERS = ("first", "second", "third")


class HistoryAtLevel(NamedTuple):
    """Histories with items replaced by their ancestors at one level of a tree.

    Attributes:
        vectors: of the ancestors (B, L, D), 0 for padding.
        attention: their share in the attention units (B, L, A).
        first: their share in the first layer, for an attention weight of 1 (B, L, F).
        real: whether the position holds an item (B, L).
    """

    vectors: Tensor
    attention: Tensor
    first: Tensor
    real: Tensor


@final
class Din(nn.Module):
    """Score rows n of a node table for a history, whose items are rows of the same table.

        weight_k = prelu(weigh . prelu(see_1 a_k + see_2 (a_k * w_n) + see_3 w_n + b) + c)
        x = (sum of weight_k a_k over each window of the history, w_n)
        score = last . third(second(first(x))) + d,  each layer prelu(norm(x W + b))

    a_k is the vector of the k-th item of the history, w_n that of n. The first layer is linear in
    the weights, so windows are never summed: the share of each item is computed once per history.
    Histories are padded with -1 at the beginning.

    Args:
        nodes: vectors (R, D).
        see: weights (3, D, A) of history, product and node.
        see_units: bias, slope and output weight of the attention units (3, A).
        weigh: bias and slope of the attention weight (2,).
        windows: positions per window, the oldest first (W,).
        first, second, third: layers (W D + D, F), (F, G), (G, H).
        first_units, ...: bias, slope, and scale and shift of the norm, (4, F) and so on.
        first_stats, ...: running mean and variance for the batch norm, (2, F) and so on.
        last, last_bias: output, (H,) and ().
        norm: index into NORMS.
    """

    tensors: ClassVar[Layout] = {
        "nodes.weight": (FLOATS, "RD"),
        "see": (FLOATS, "3DA"),
        "see_units": (FLOATS, "3A"),
        "weigh": (FLOATS, "2"),
        "windows": (LONGS, "W"),
        "first": (FLOATS, "EF"),
        "first_units": (FLOATS, "4F"),
        "first_stats": (FLOATS, "2F"),
        "second": (FLOATS, "FG"),
        "second_units": (FLOATS, "4G"),
        "second_stats": (FLOATS, "2G"),
        "third": (FLOATS, "GH"),
        "third_units": (FLOATS, "4H"),
        "third_stats": (FLOATS, "2H"),
        "last": (FLOATS, "H"),
        "last_bias": (FLOATS, ""),
        "norm": (LONGS, ""),
    }
    is_product = False
    windows: Tensor

    def __init__(
        self,
        nodes: Tensor | nn.Module,
        see: Tensor,
        see_units: Tensor,
        weigh: Tensor,
        windows: Tensor,
        first: Tensor,
        first_units: Tensor,
        first_stats: Tensor,
        second: Tensor,
        second_units: Tensor,
        second_stats: Tensor,
        third: Tensor,
        third_units: Tensor,
        third_stats: Tensor,
        last: Tensor,
        last_bias: Tensor,
        norm: Tensor,
    ) -> None:
        super().__init__()
        self.nodes: Table = table_of(nodes)
        self.see, self.see_units = nn.Parameter(see), nn.Parameter(see_units)
        self.weigh = nn.Parameter(weigh)
        self.first, self.first_units = nn.Parameter(first), nn.Parameter(first_units)
        self.second, self.second_units = nn.Parameter(second), nn.Parameter(second_units)
        self.third, self.third_units = nn.Parameter(third), nn.Parameter(third_units)
        self.last, self.last_bias = nn.Parameter(last), nn.Parameter(last_bias)
        self.register_buffer("windows", windows)
        self.register_buffer("first_stats", first_stats)
        self.register_buffer("second_stats", second_stats)
        self.register_buffer("third_stats", third_stats)
        self.register_buffer("norm", norm)
        self.sizes: list[int] = windows.tolist()
        self.kind, self.most, self.num_items = NORMS[int(norm)], sum(self.sizes), len(self.nodes)
        self.pair_bytes = 4 * (2 * self.most + 8 * first.shape[1])

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse windows, layers and norms that do not fit together."""
        windows = tensors["windows"]
        good = bool((windows > 0).all()) and sizes["E"] == (sizes["W"] + 1) * sizes["D"]
        if not good or int(windows.sum()) > MOST_PLACES or int(tensors["norm"]) not in range(3):
            raise ValueError("the scorer's windows, layers or norm do not fit together")
        moderate(tensors, sizes)
        if any(bool((tensors[f"{layer}_stats"][1] < 0).any()) for layer in LAYERS):
            raise ValueError("the scorer holds a variance below 0")
        _check_made(tensors, NORMS[int(tensors["norm"])])

    def num_queries(self, query: Tensor | HistoryAtLevel) -> int:
        """Return the number of histories."""
        return len(query.real if isinstance(query, HistoryAtLevel) else query)

    def seen(self, query: Tensor, *rows: Rows) -> HistoryAtLevel:
        """Return histories (B, L) of item ids as a level sees them.

        Args:
            query: item ids, padded with -1 at the beginning.
            rows: the rows that stand for items; given several, their histories are concatenated
                along the batch.
        """
        query = query[:, -self.most :]
        known, at = query >= 0, query.clamp(min=0)
        ids = torch.cat([torch.where(known, each(at), -1) for each in rows])
        real = ids >= 0
        vectors = self.nodes(ids) * real.unsqueeze(2)
        dim, sizes = vectors.shape[2], last_windows(self.sizes, ids.shape[1])
        parts = zip(
            torch.split(vectors, sizes, 1),
            self.first[:-dim].view(len(self.sizes), dim, -1)[-len(sizes) :],
            strict=True,
        )
        first = torch.cat([part @ weight for part, weight in parts], 1)
        return HistoryAtLevel(vectors, vectors @ self.see[0] + self.see_units[0], first, real)

    def forward(self, query: Tensor | HistoryAtLevel, ids: Tensor | slice) -> Tensor:
        """Return scores (B, N) of rows (N,) for all histories, or (B, N)."""
        seen = query if isinstance(query, HistoryAtLevel) else self.seen(query, lambda ids: ids)
        nodes = self.nodes(ids)
        own = nodes @ self.first[-nodes.shape[-1] :] + self.first_units[0]
        x = torch.bmm(self._weight(seen, nodes), seen.first) + own
        for layer in LAYERS:
            bias, slope, scale, shift = getattr(self, f"{layer}_units")
            if layer != "first":
                x = x @ getattr(self, layer) + bias
            x = self._normed(x, scale, shift, getattr(self, f"{layer}_stats"))
            x = prelu(x.flatten(0, 1), slope).view_as(x)
        return x @ self.last + self.last_bias

    def over(
        self, order: np.ndarray, vectors: Tensor | None = None, offsets: Tensor | None = None
    ) -> Self:
        """Return the scorer over other rows, where rows are items; a tree keeps its nodes."""
        given = arguments(kept(self))
        return type(self)(**given | {"nodes": extended(given["nodes"], vectors, order)}).eval()

    def _weight(self, seen: HistoryAtLevel, nodes: Tensor) -> Tensor:
        """Return the attention weight of each item for each node, (B, N, L)."""
        (_, slope, weigh), (_, product, own) = self.see_units, self.see
        ends = self.weigh[0], self.weigh[1]
        given = seen.vectors, seen.attention, nodes, product, nodes @ own, slope, weigh, *ends
        return attend(*given, seen.real)

    def _normed(self, x: Tensor, scale: Tensor, shift: Tensor, stats: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return layer_norm(x, x.shape[-1:], scale, shift)
        learns = self.training and torch.is_grad_enabled()
        mean, variance = stats
        flat = x.flatten(0, 1)
        if learns and present() is not None:
            return _normed_by_all(flat, mean, variance, scale, shift).view_as(x)
        learns = learns and len(flat) > 1
        flat = batch_norm(flat, mean, variance, scale, shift, learns, MOMENTUM, TINY)
        return flat.view_as(x)


def _normed_by_all(
    x: Tensor, running_mean: Tensor, running_variance: Tensor, scale: Tensor, shift: Tensor
) -> Tensor:
    """Return rows (N, F) by the mean and variance of the rows of all ranks."""
    count = summed(x.new_tensor(float(len(x))))
    mean = summed(x.sum(0)) / count
    x = x - mean
    variance = summed(x.square().sum(0)) / count
    with torch.no_grad():
        running_mean.lerp_(mean, MOMENTUM)
        running_variance.lerp_(variance * count / (count - 1), MOMENTUM)
    return x / (variance + TINY).sqrt() * scale + shift


def _check_made(tensors: Tensors, norm: str) -> None:
    """Refuse layers whose numbers could overflow."""
    node, dim = most_of(tensors["nodes.weight"]), tensors["nodes.weight"].shape[1]
    see, (bias, slope, weigh) = tensors["see"], tensors["see_units"]
    hidden = sum(most_through(x, part) for x, part in zip((node, node**2, node), see, strict=True))
    hidden = (hidden + most_of(bias)) * max(1.0, most_of(slope))
    weight = most_through(hidden, weigh[:, None]) + most_of(tensors["weigh"])
    weight *= max(1.0, most_of(tensors["weigh"]))
    first, length = tensors["first"], int(tensors["windows"].sum())
    parts = max(most_through(node, part) for part in torch.split(first[:-dim], dim))
    x = length * weight * parts + most_through(node, first[-dim:])
    for layer in LAYERS:
        bias, slope, scale, shift = tensors[f"{layer}_units"]
        x = (x if layer == "first" else most_through(x, tensors[layer])) + most_of(bias)
        check_made("the scorer", hidden, weight, x)
        mean, variance = tensors[f"{layer}_stats"]
        if norm == "layer":
            x = len(mean) ** 0.5 * most_of(scale) + most_of(shift)
        elif norm == "batch":
            spread = (float(variance.min()) + TINY) ** 0.5
            x = (x + most_of(mean)) / spread * most_of(scale) + most_of(shift)
        x *= max(1.0, most_of(slope))
    check_made("the scorer", most_through(x, tensors["last"][:, None], tensors["last_bias"]))


def random_din(
    rows: int,
    dim: int,
    windows: tuple[int, ...],
    *,
    attention: int = 32,
    layers: tuple[int, int, int] = (128, 64, 24),
    norm: str = "layer",
    scale: float = 0.1,
    generator: torch.Generator | None = None,
) -> Din:
    """Return a scorer of random weights.

    Args:
        rows: of the node table.
        dim: dimension of the vectors.
        windows: positions per window, the oldest first.
        attention: number of attention units.
        layers: widths of the three layers.
        norm: one of NORMS.
        scale: standard deviation of the vectors.
        generator: of the weights.
    """

    def random(*shape: int, by: float) -> Tensor:
        return torch.randn(*shape, generator=generator) * by

    made: dict[str, Any] = {}
    sizes = [(len(windows) + 1) * dim, *layers]
    for name, here, there in zip(LAYERS, sizes, layers, strict=False):
        made[name] = random(here, there, by=here**-0.5)
        made[f"{name}_units"] = torch.tensor([0.0, 0.25, 1.0, 0.0])[:, None].repeat(1, there)
        made[f"{name}_stats"] = torch.tensor([0.0, 1.0])[:, None].repeat(1, there)
    units = torch.tensor([0.1, 0.25])[:, None].repeat(1, attention)
    weigh = random(1, attention, by=attention**-0.5)
    return Din(
        random(rows, dim, by=scale),
        random(3, dim, attention, by=dim**-0.5),
        torch.cat([units, weigh]),
        torch.tensor([0.1, 0.25]),
        torch.tensor(windows),
        **made,
        last=random(layers[-1], by=layers[-1] ** -0.5),
        last_bias=torch.zeros(()),
        norm=torch.tensor(NORMS.index(norm)),
    )


def windows_of(length: int) -> tuple[int, ...]:
    """Return positions per window for a history of this length, the oldest first.

    Later windows are finer. Those of 69 positions are DTR's; shorter histories have fewer windows,
    longer ones a longer first window.
    """
    full = [20, 20, 10, 10, 2, 2, 2, 1, 1, 1]
    kept = last_windows(full, length)
    kept[0] += max(0, length - sum(full))
    return tuple(kept)


def last_windows(sizes: list[int], length: int) -> list[int]:
    """Return the windows that cover the last `length` positions, the first one cut."""
    kept: list[int] = []
    for size in reversed(sizes):
        if length > sum(kept):
            kept.append(min(size, length - sum(kept)))
    return kept[::-1]
