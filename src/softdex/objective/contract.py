"""What a loss is to the trainer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softdex.index.contract import Index

Loss = Callable[[Index, Tensor, Tensor, torch.Generator], Tensor]
"""(index, query, target, generator) -> loss per target. `target` is (B,), or (B, P) padded with -1;
a loss of padding has weight 0, whatever it is."""
