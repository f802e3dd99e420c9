"""The losses by name: recipes take their words from here, so a new loss is one row."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from softdex.objective.binary import bce
from softdex.objective.pairwise import bpr, dns, pris, self_adversarial, warp
from softdex.objective.softmax import log_mass
from softdex.objective.sparsemax import sparsemax_mass, sparsemax_of_draws

LossOnDraws = Callable[..., Tensor]
"""(target scores (B,), scores of draws (B, N), where a draw is the target (B, N)) -> loss (B,).

A function that names an argument `logq` also gets log q of the draws, (B, N), or (N,) where a batch
shares them; one that names `pos_logq` gets log q of the targets (B,)."""

Mass = Callable[[Tensor, Tensor, "Tensor | None"], Tensor]
"""(query (B, D), item vectors (I, D), biases (I,) or None) -> what a loss over all items adds to
minus the target's score (B,)."""

ON_DRAWS: dict[str, LossOnDraws] = {
    "bpr": bpr,
    "bce": bce,
    "dns": dns,
    "self_adversarial": self_adversarial,
    "warp": warp,
    "pris": pris,
    "sparsemax": sparsemax_of_draws,
}
OVER_ALL: dict[str, Mass] = {"softmax": log_mass, "ssm": log_mass, "sparsemax": sparsemax_mass}
