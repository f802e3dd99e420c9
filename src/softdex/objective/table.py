"""The losses on draws by name: recipes take their words from here, so a new loss is one row."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from softdex.objective.binary import bce
from softdex.objective.pairwise import bpr, dns, self_adversarial

LossOnDraws = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(target scores (B,), scores of draws (B, N), where a draw is the target (B, N)) -> loss (B,)."""

ON_DRAWS: dict[str, LossOnDraws] = {
    "bpr": bpr,
    "bce": bce,
    "dns": dns,
    "self_adversarial": self_adversarial,
}
