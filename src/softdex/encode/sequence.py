"""Encoders of ordered histories.

Histories are padded with -1 at the end. Nothing attends to later positions, so neither later items
nor padding change the state of a position. Positions are counted from the end.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, relu, scaled_dot_product_attention

from softdex.data.ragged import Ragged
from softdex.encode.history import latest, reads_something
from softdex.encode.table import Table
from softdex.shapes import (
    FLOATS,
    LONGS,
    MOST,
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
from softdex.share import draw


def at_the_end(states: Tensor, ids: Tensor) -> Tensor:
    """Return the state of each history's last item (B, D), 0 where it is empty.

    Args:
        states: (B, L, D).
        ids: padded histories (B, L).
    """
    length = (ids >= 0).sum(1)
    last = states[torch.arange(len(ids), device=ids.device), (length - 1).clamp(min=0)]
    return last * (length > 0).unsqueeze(1)


@final
class Sequence(nn.Module):
    """Encode a history by causal self-attention (SASRec); the query is the state of its last item.

        x_j = item_j + position;   x += attention(norm x);   x += narrow gelu(widen norm x);
        query = norm x_last

    Args:
        positions: vectors (M, D), the last row for the last item; longer histories are cut to M.
        attend, attend_bias: to queries, keys and values, (N, D, 3 D) and (N, 3 D), for N layers.
        mix, mix_bias: output of the attention, (N, D, D) and (N, D).
        widen, widen_bias, narrow, narrow_bias: (N, D, F), (N, F), (N, F, D), (N, D).
        norm: scale and shift of two norms per layer and a final one, (2 N + 1, 2, D).
        heads: number of attention heads, a divisor of D.
        items: the scorer's item table.
        dropout: probability, in training, for embeddings and for the output of each layer.
    """

    tensors: ClassVar[Layout] = {
        "positions": (FLOATS, "WD"),
        "attend": (FLOATS, "RDA"),
        "attend_bias": (FLOATS, "RA"),
        "mix": (FLOATS, "RDD"),
        "mix_bias": (FLOATS, "RD"),
        "widen": (FLOATS, "RDF"),
        "widen_bias": (FLOATS, "RF"),
        "narrow": (FLOATS, "RFD"),
        "narrow_bias": (FLOATS, "RD"),
        "norm": (FLOATS, "K2D"),
        "heads": (LONGS, ""),
    }
    reads_items = True
    reads_history = True
    answers_strangers = False
    history_first = False
    heads: Tensor

    def __init__(
        self,
        positions: Tensor,
        attend: Tensor,
        attend_bias: Tensor,
        mix: Tensor,
        mix_bias: Tensor,
        widen: Tensor,
        widen_bias: Tensor,
        narrow: Tensor,
        narrow_bias: Tensor,
        norm: Tensor,
        heads: Tensor,
        items: Table,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.positions = nn.Parameter(positions)
        self.attend, self.attend_bias = nn.Parameter(attend), nn.Parameter(attend_bias)
        self.mix, self.mix_bias = nn.Parameter(mix), nn.Parameter(mix_bias)
        self.widen, self.widen_bias = nn.Parameter(widen), nn.Parameter(widen_bias)
        self.narrow, self.narrow_bias = nn.Parameter(narrow), nn.Parameter(narrow_bias)
        self.norm = nn.Parameter(norm)
        self.register_buffer("heads", heads)
        self.items, self.dropout = items, dropout
        self.layers, self.most, self.split = len(attend), len(positions), int(heads)
        self.query_bytes = 4 * self.most * (attend.shape[2] + widen.shape[2])

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse heads, positions, widths and norms that do not fit together."""
        heads, (layers, dim, three) = int(tensors["heads"]), tensors["attend"].shape
        good = heads > 0 and dim % heads == 0 and three == 3 * dim and len(tensors["positions"]) > 0
        if not good or len(tensors["norm"]) != 2 * layers + 1:
            raise ValueError("the encoder's heads, positions, widths or norms do not fit together")
        moderate(tensors, sizes)
        x = MOST + most_of(tensors["positions"])
        for layer in range(layers):
            (scale, shift), (later, more) = tensors["norm"][2 * layer : 2 * layer + 2]
            normed = dim**0.5 * most_of(scale) + most_of(shift)
            met = most_through(normed, tensors["attend"][layer], tensors["attend_bias"][layer])
            mixed = most_through(met, tensors["mix"][layer], tensors["mix_bias"][layer])
            normed = dim**0.5 * most_of(later) + most_of(more)
            wide = most_through(normed, tensors["widen"][layer], tensors["widen_bias"][layer])
            narrow = most_through(wide, tensors["narrow"][layer], tensors["narrow_bias"][layer])
            x += mixed + narrow
            check_made("the encoder", met, wide, x)

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Return queries (B, D)."""
        assert history is not None
        ids = latest(history, self.most).to(self.positions.device)
        return at_the_end(self.states(ids), ids)

    def learn(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Return queries (B, L, D): one after each item of padded histories (B, L)."""
        return self.states(ids, generator)

    def states(self, ids: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the state of each item (B, L, D); dropout needs the generator."""
        length = (ids >= 0).sum(1, keepdim=True)
        place = torch.arange(ids.shape[1], device=ids.device) + self.most - length
        x = self.items(ids) + self.positions[place.clamp(0, self.most - 1)]
        x = self._dropped(x, generator)
        for layer in range(self.layers):
            x = x + self._dropped(self._attended(self._normed(x, 2 * layer), layer), generator)
            wide = gelu(self._normed(x, 2 * layer + 1) @ self.widen[layer] + self.widen_bias[layer])
            more = wide @ self.narrow[layer] + self.narrow_bias[layer]
            x = x + self._dropped(more, generator)
        return self._normed(x, 2 * self.layers)

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder over another item table."""
        given: dict[str, Any] = arguments(kept(self))
        return type(self)(**given, items=items).eval()

    def _normed(self, x: Tensor, which: int) -> Tensor:
        scale, shift = self.norm[which]
        return layer_norm(x, x.shape[-1:], scale, shift, 1e-6)

    def _attended(self, x: Tensor, layer: int) -> Tensor:
        size, length, dim = x.shape
        three = (x @ self.attend[layer] + self.attend_bias[layer]).view(
            size, length, 3, self.split, dim // self.split
        )
        query, key, value = three.permute(2, 0, 3, 1, 4)
        found = scaled_dot_product_attention(query, key, value, is_causal=True)
        joined = found.transpose(1, 2).reshape(size, length, dim)
        return joined @ self.mix[layer] + self.mix_bias[layer]

    def _dropped(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        if not self.dropout or generator is None:
            return x
        rows, *shape = x.shape
        chance = draw(
            rows, lambda rows: torch.rand(rows, *shape, generator=generator, device=x.device)
        )
        return x * (chance >= self.dropout) / (1 - self.dropout)


@final
class Dnn(nn.Module):
    """Encode the mean of the history by three layers (YoutubeDNN).

        query = relu(relu(mean W1 + b1) W2 + b2) W3 + b3

    Args:
        first, first_bias, second, second_bias, third, third_bias: (D, F), (F,), (F, G), (G,),
            (G, D) and (D,).
        length: number of latest items that are read.
        items: the scorer's item table.
    """

    tensors: ClassVar[Layout] = {
        "first": (FLOATS, "DF"),
        "first_bias": (FLOATS, "F"),
        "second": (FLOATS, "FG"),
        "second_bias": (FLOATS, "G"),
        "third": (FLOATS, "GD"),
        "third_bias": (FLOATS, "D"),
        "length": (LONGS, ""),
    }
    reads_items = True
    reads_history = True
    answers_strangers = False
    history_first = False
    length: Tensor

    def __init__(
        self,
        first: Tensor,
        first_bias: Tensor,
        second: Tensor,
        second_bias: Tensor,
        third: Tensor,
        third_bias: Tensor,
        length: Tensor,
        items: Table,
    ) -> None:
        super().__init__()
        self.first, self.first_bias = nn.Parameter(first), nn.Parameter(first_bias)
        self.second, self.second_bias = nn.Parameter(second), nn.Parameter(second_bias)
        self.third, self.third_bias = nn.Parameter(third), nn.Parameter(third_bias)
        self.register_buffer("length", length)
        self.items, self.most = items, int(length)
        self.query_bytes = 4 * (self.most * items.dim + first.shape[1] + second.shape[1])

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse an encoder that reads nothing, and layers whose numbers could overflow."""
        reads_something(tensors, sizes)
        x = MOST
        for layer in ("first", "second", "third"):
            x = most_through(x, tensors[layer], tensors[f"{layer}_bias"])
            check_made("the encoder", x)

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Return queries (B, D)."""
        assert history is not None
        ids = latest(history, self.most).to(self.first.device)
        real = ids >= 0
        return self._query(self.items.bag(ids, real / real.sum(1, keepdim=True).clamp(min=1)))

    def learn(self, ids: Tensor, generator: torch.Generator) -> Tensor:
        """Return queries (B, L, D): one after each item of padded histories (B, L)."""
        real = (ids >= 0).unsqueeze(2)
        sums = (self.items(ids) * real).cumsum(1)
        return self._query(sums / real.cumsum(1).clamp(min=1))

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder over another item table."""
        return type(self)(**arguments(kept(self)), items=items).eval()

    def _query(self, mean: Tensor) -> Tensor:
        wide = relu(mean @ self.first + self.first_bias)
        return relu(wide @ self.second + self.second_bias) @ self.third + self.third_bias
