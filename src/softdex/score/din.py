"""DIN: how well an item, or a node of a tree of items, suits a history, by attention to it.

Shapes: B histories of L items, N items or nodes, D numbers a vector, A of the attention, F, G and H
of the layers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, layer_norm, prelu

from softdex.encode.table import Table, table_of
from softdex.kernels.attend_cpu import attend

Rows = Callable[[Tensor], Tensor]
"""Item ids -> the rows of the table that stand for them, -1 for none."""
NORMS = ("none", "layer", "batch")
MOMENTUM, TINY = 0.1, 1e-5
LAYERS = ("first", "second", "third")


class Seen(NamedTuple):
    """Histories as one level of a tree sees them: what depends on them alone, computed once.

    Their vectors (B, L, D), 0 where there is no item, their part of the attention (B, L, A), what
    each would add to the first layer (B, L, F), and where there is an item (B, L).
    """

    vectors: Tensor
    attention: Tensor
    first: Tensor
    real: Tensor


@final
class Din(nn.Module):
    """score(history, n) of rows n of a table; the history's items are rows of it, too.

        weight_k = prelu(weigh . prelu(see_1 a_k + see_2 (a_k * w_n) + see_3 w_n + b) + c)
        x = (sum of weight_k a_k over each window of the history, w_n)
        score = last . third(second(first(x))) + d,  each layer prelu(norm(x W + b))

    a_k is the vector of the k-th item of the history, w_n that of n. The first layer is linear in
    the weights, so windows are never summed: each item's share of it is computed once a history.
    Histories stand at the right, -1 before their beginning.

    Args:
        nodes: vectors (R, D).
        see: (3, D, A), of history, product and node.
        see_units: (3, A): bias and slope of each unit, and what it weighs.
        weigh: (2,): bias and slope of the weight.
        windows: how many places each window has, the oldest first, (W,).
        first, second, third: (W D + D, F), (F, G), (G, H).
        first_units, ...: (4, F) and so on: bias, slope, and scale and shift of the norm.
        first_stats, ...: (2, F) and so on: mean and variance of each unit, of the batches so far.
        last, last_bias: (H,) and ().
        norm: a number of NORMS.
    """

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
        self.pair_bytes = 4 * (2 * self.most + 8 * first.shape[1])  # while it is scored

    def num_queries(self, query: Tensor | Seen) -> int:
        """How many histories there are."""
        return len(query.real if isinstance(query, Seen) else query)

    def seen(self, query: Tensor, *rows: Rows) -> Seen:
        """Histories (B, L) of item ids, where these rows stand for items; where each of several
        do, one behind the other."""
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
        return Seen(vectors, vectors @ self.see[0] + self.see_units[0], first, real)

    def forward(self, query: Tensor | Seen, ids: Tensor | slice) -> Tensor:
        """Scores (B, N) of rows (N,) for all histories, or (B, N)."""
        seen = query if isinstance(query, Seen) else self.seen(query, lambda ids: ids)
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

    def _weight(self, seen: Seen, nodes: Tensor) -> Tensor:
        """What each item of a history weighs for each node, (B, N, L)."""
        (_, slope, weigh), (_, product, own) = self.see_units, self.see
        ends = self.weigh[0], self.weigh[1]
        given = seen.vectors, seen.attention, nodes, product, nodes @ own, slope, weigh, *ends
        return attend(*given, seen.real)

    def _normed(self, x: Tensor, scale: Tensor, shift: Tensor, stats: Tensor) -> Tensor:
        if self.kind == "none":
            return x
        if self.kind == "layer":
            return layer_norm(x, x.shape[-1:], scale, shift)
        learns = self.training and torch.is_grad_enabled() and x.shape[:-1].numel() > 1
        mean, variance = stats
        flat = batch_norm(x.flatten(0, 1), mean, variance, scale, shift, learns, MOMENTUM, TINY)
        return flat.view_as(x)


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
    """A scorer of this many rows with random weights."""

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
    """Places of the windows of a history of this length, the oldest first; later ones are finer.

    Those of 69 places are S0's; shorter histories have fewer, longer ones a longer first window.
    """
    full = [20, 20, 10, 10, 2, 2, 2, 1, 1, 1]
    kept = last_windows(full, length)
    kept[0] += max(0, length - sum(full))
    return tuple(kept)


def last_windows(sizes: list[int], length: int) -> list[int]:
    """Places of the windows that the last so many places lie in, the first one cut."""
    kept: list[int] = []
    for size in reversed(sizes):
        if length > sum(kept):
            kept.append(min(size, length - sum(kept)))
    return kept[::-1]
