"""The variational encoder: a bag of items becomes a query by way of latent numbers."""

from __future__ import annotations

from typing import Any, ClassVar, Self, final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag, pad

from softdex.data.ragged import Ragged
from softdex.encode.table import Table
from softdex.shapes import (
    FLAGS,
    FLOATS,
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


@final
class Vae(nn.Module):
    """Encode a history H by a variational autoencoder; the cost is that of the history's items.

        h = f(sum over H of bag_i / sqrt|H| + bias);  (mean, log variance) = h mix + mix_bias
        query = z out + out_bias,  z = mean + deviation * noise in training, z = mean afterwards

    Args:
        bag: input vectors of the items (I, H).
        bias: (H,).
        mix, mix_bias: to mean and log variance of Z latent numbers, (H, 2 Z) and (2 Z,).
        out, out_bias: to the query, (Z, D) and (D,).
        relu: whether f is max(0, x) (FastVAE); else it is tanh (Mult-VAE).
        dropout: probability that an item of the history is dropped in training.
        beta: weight of the Kullback-Leibler term.
        anneal: steps over which this weight rises from 0.
    """

    tensors: ClassVar[Layout] = {
        "bag.weight": (FLOATS, "IH"),
        "bias": (FLOATS, "H"),
        "mix": (FLOATS, "HL"),
        "mix_bias": (FLOATS, "L"),
        "out": (FLOATS, "ZD"),
        "out_bias": (FLOATS, "D"),
        "relu": (FLAGS, "?"),
    }
    reads_items = False
    reads_history = True
    answers_strangers = False
    history_first = False
    steps: Tensor
    relu: Tensor | None

    def __init__(
        self,
        bag: Tensor,
        bias: Tensor,
        mix: Tensor,
        mix_bias: Tensor,
        out: Tensor,
        out_bias: Tensor,
        relu: Tensor | bool = False,
        *,
        dropout: float = 0.5,
        beta: float = 0.2,
        anneal: int = 0,
    ) -> None:
        super().__init__()
        self.bag = Table(bag)
        self.bias, self.mix, self.mix_bias = map(nn.Parameter, (bias, mix, mix_bias))
        self.out, self.out_bias = nn.Parameter(out), nn.Parameter(out_bias)
        self.dropout, self.beta, self.anneal = dropout, beta, anneal
        self.register_buffer("steps", torch.zeros(()))
        self.register_buffer("relu", torch.tensor(True) if relu else None)  # tanh leaves no tensor
        self.query_bytes = 4 * (self.bag.dim + out.shape[1])

    @staticmethod
    def check(tensors: Tensors, sizes: Sizes) -> None:
        """Refuse layers whose numbers could overflow."""
        moderate(tensors, sizes)
        relu = "relu" in tensors and bool(tensors["relu"])
        summed = sizes["I"] ** 0.5 * most_of(tensors["bag.weight"]) + most_of(tensors["bias"])
        latent = most_through(summed if relu else 1.0, tensors["mix"], tensors["mix_bias"])
        made = most_through(latent, tensors["out"], tensors["out_bias"])
        check_made("the encoder", latent, made)

    def forward(
        self,
        users: np.ndarray | Tensor,
        history: Ragged | None = None,
        leave_out: Tensor | None = None,
    ) -> Tensor:
        """Return queries (B, D) of the latent means; an item counts once."""
        assert history is not None
        met = history.distinct(len(self.bag))
        device = self.bias.device
        ids = torch.from_numpy(met.ids.astype(np.int64)).to(device)
        starts = torch.from_numpy(met.indptr[:-1]).to(device)
        sums = embedding_bag(ids, self.bag.weight, starts, mode="sum")
        length = torch.from_numpy(met.lengths).to(device).clamp(min=1)
        mean, _ = self._latent(sums / length.sqrt().unsqueeze(1))
        return mean @ self.out + self.out_bias

    def learn(self, ids: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return queries (B, D) of padded histories (B, L), and their weighted KL terms (B,)."""
        real, device = ids >= 0, ids.device
        rows, width = ids.shape
        kept = draw(rows, lambda rows: torch.rand(rows, width, generator=generator, device=device))
        scale = real.sum(1, keepdim=True).clamp(min=1).rsqrt() / (1 - self.dropout)
        mean, log_variance = self._latent(
            self.bag.bag(ids, (real & (kept >= self.dropout)) * scale)
        )
        latent = mean.shape[1]
        noise = draw(
            rows, lambda rows: torch.randn(rows, latent, generator=generator, device=device)
        )
        z = mean + (log_variance / 2).exp() * noise
        self.steps += 1
        beta = self.beta * (self.steps / max(1, self.anneal)).clamp(max=1)
        kl = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1) / 2
        return z @ self.out + self.out_bias, beta * kl

    def _latent(self, sums: Tensor) -> tuple[Tensor, Tensor]:
        activate = torch.tanh if self.relu is None else torch.relu
        mean, log_variance = (activate(sums + self.bias) @ self.mix + self.mix_bias).chunk(2, 1)
        return mean, log_variance

    def over(self, items: Any, order: np.ndarray) -> Self:
        """Return the encoder over other items; the input vectors of new ones are 0."""
        given: dict[str, Any] = arguments(kept(self))
        bag = given["bag"]
        given["bag"] = pad(bag, (0, 0, 0, len(order) - len(bag)))[order]
        return type(self)(**given).eval()
