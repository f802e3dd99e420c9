"""Readers of ordered histories by loops: self-attention, and three layers over a mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

Drop = Callable[[Tensor, int], Tensor]
"""Drops parts of a vector (D,) at a position."""


def attention_states(
    p: Mapping[str, Tensor], vectors: Sequence[Tensor], heads: int, drops: Sequence[Drop] = ()
) -> list[Tensor]:
    """The state of each item of one history; drops are those of the embeddings, then two per layer.

    Args:
        p: positions, attend, mix, widen, narrow with their biases, norm.
        vectors: of the items, oldest first; the last position is the last item's.
        heads: of attention.
        drops: in training.
    """
    most, count = len(p["positions"]), len(vectors)
    assert count <= most
    dropping = iter(drops)

    def dropped(xs: list[Tensor]) -> list[Tensor]:
        drop = next(dropping) if drops else lambda x, at: x
        return [drop(x, at) for at, x in enumerate(xs)]

    x = dropped([v + p["positions"][most - count + at] for at, v in enumerate(vectors)])
    for layer in range(len(p["attend"])):
        normed = [_normed(each, p["norm"][2 * layer]) for each in x]
        mixed = _attended(p, layer, normed, heads)
        x = [a + b for a, b in zip(x, dropped(mixed), strict=True)]
        normed = [_normed(each, p["norm"][2 * layer + 1]) for each in x]
        wide = [n @ p["widen"][layer] + p["widen_bias"][layer] for n in normed]
        wide = [w * 0.5 * (1 + torch.erf(w / math.sqrt(2))) for w in wide]
        more = [w @ p["narrow"][layer] + p["narrow_bias"][layer] for w in wide]
        x = [a + b for a, b in zip(x, dropped(more), strict=True)]
    return [_normed(each, p["norm"][-1]) for each in x]


def _normed(x: Tensor, norm: Tensor) -> Tensor:
    mean = x.mean()
    return (x - mean) / ((x - mean).square().mean() + 1e-6).sqrt() * norm[0] + norm[1]


def _attended(p: Mapping[str, Tensor], layer: int, xs: list[Tensor], heads: int) -> list[Tensor]:
    """Each position attends to itself and those before it."""
    dim = len(xs[0])
    size = dim // heads
    three = [x @ p["attend"][layer] + p["attend_bias"][layer] for x in xs]
    stacked, found = torch.stack(three), []
    for at in range(len(xs)):
        parts = []
        for head in range(heads):
            here = slice(head * size, (head + 1) * size)
            keys, values = (stacked[: at + 1, n * dim : (n + 1) * dim][:, here] for n in (1, 2))
            scores = keys @ three[at][:dim][here] / math.sqrt(size)
            parts.append((scores.exp() / scores.exp().sum()) @ values)
        found.append(torch.cat(parts) @ p["mix"][layer] + p["mix_bias"][layer])
    return found


def dnn_query(p: Mapping[str, Tensor], vectors: Sequence[Tensor]) -> Tensor:
    """Three layers over the mean of the history."""
    mean = torch.stack(list(vectors)).mean(0)
    wide = (mean @ p["first"] + p["first_bias"]).clamp(min=0)
    deep = (wide @ p["second"] + p["second_bias"]).clamp(min=0)
    return deep @ p["third"] + p["third_bias"]
