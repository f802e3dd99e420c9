"""The options of training that every recipe shares which learns by gradient steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from softdex.options import at_least_0, count, from_0_to_1, rate, up_to


@dataclass(frozen=True)
class Training:
    """How a recipe trains by gradient steps.

    Attributes:
        epochs: maximum number of passes over the training data.
        batch_size: events per step, or users for recipes that read whole histories. None chooses
            by the recipe, and fewer on a small log, for at least 64 steps per epoch.
        lr: learning rate of Adam.
        lr_end: fraction of `lr` reached linearly at the end of the training.
        decay: weight decay; the rows that a step updates shrink by lr * decay.
        per_row: one Adam second moment per row: a third less memory; use a larger `lr`.
        patience: epochs without a better validation metric before training stops; 0 never stops
            early. The best epoch is kept.
        seed: of initial vectors, the order of the data, draws and dropout.
        device: `auto` takes a GPU if there is one; else `cpu` or `cuda`.
        precision: `float32`, or `bf16` for matrix products.
    """

    epochs: Annotated[int | None, count] = 60
    batch_size: Annotated[int | None, count] = None
    lr: Annotated[float | None, rate] = 0.01
    lr_end: Annotated[float, from_0_to_1] = 1.0
    decay: Annotated[float, up_to(1e3)] = 0.0
    per_row: bool = False
    patience: Annotated[int, at_least_0] = 5
    seed: Annotated[int, at_least_0] = 0
    device: str = "auto"
    precision: Literal["float32", "bf16"] = "float32"
