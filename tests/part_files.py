"""What the suites of encoders and scorers share: parts through a file, and over more items."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import safetensors.torch
import torch

from softdex.index.flat import Flat
from softdex.model.artifact import Contents
from softdex.model.kinds import kind_of, rebuild, saved_index, saved_tensors

DIM = 4


def from_file(encoder: Any, scorer: Any, users: int = 6) -> tuple[Any, Any]:
    """Encoder and scorer as a file gives them back."""
    items, index = scorer.num_items, Flat(scorer)
    tensors = saved_tensors(encoder, scorer) | saved_index(index)
    tensors |= {
        "seen.indptr": torch.zeros(users + 1, dtype=torch.int64),
        "seen.ids": torch.zeros(0, dtype=torch.int32),
        "item_counts": torch.ones(items, dtype=torch.int64),
    }
    kinds = {"encoder": kind_of(encoder), "scorer": kind_of(scorer), "index": kind_of(index)}
    manifest = {"recipe": "x", "options": {}, "softdex": {}, **kinds}
    tensors = safetensors.torch.load(safetensors.torch.save(tensors))
    keys = (pa.table({"key": np.arange(n)}) for n in (users, items))
    again, flat = rebuild(Contents(manifest, tensors, *keys))
    return again.eval(), flat.scorer.eval()


def newly(scorer: Any, order: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Random vectors and offsets of the new items in an order."""
    new, dim = len(order) - scorer.num_items, scorer.items.dim if scorer.is_product else DIM
    generator = torch.Generator().manual_seed(0)
    return torch.randn(new, dim, generator=generator), torch.full((new,), -1.0)


def grown(scorer: Any, order: np.ndarray) -> Any:
    """A scorer over more items."""
    return scorer.over(order, *newly(scorer, order))
