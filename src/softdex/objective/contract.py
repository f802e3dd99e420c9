"""The contract of losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from softdex.index.contract import Index

Loss = Callable[[Index, Tensor, Tensor, torch.Generator], Tensor]
"""(index, query, target, generator) -> loss per target.

`target` is (B,), or (B, P) padded with -1. The trainer gives losses of padding weight 0, so their
values do not matter. A module with `reads_users = True` also gets `users=`, the rows (B,) of the
users whose queries these are."""
