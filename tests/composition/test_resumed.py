"""A training that was killed goes on as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import softdex as sdx
from composition.logs import measured
from composition.models import (
    MODELS,
)
from composition.suite import SMALL, tiny
from softdex.solve.gradient.trainer import Descent, Trainer

RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (recipe, options | {"epochs": 4, "patience": 0, "batch_size": 3})
    for name, (recipe, options) in MODELS.items()
    if name in ("ssm", "own vectors and histories", "bir", "fastvae", "sasrec", "dtr")
}
RUNS["a cache"] = ("xir", SMALL | {"epochs": 4, "patience": 0})


def kept(model: sdx.Retriever) -> dict[str, Tensor]:
    parts = {"encoder": model.encoder, "scorer": model.index.scorer}
    found = {f"{p}.{n}": t for p, m in parts.items() for n, t in m.state_dict().items()}
    return found | model.index.state()


@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_was_killed_after_its_best_epoch_serves_that_epoch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint lies inside of the third epoch; the best is the second, or equals it."""
    recipe, options = RUNS[name]
    parts, metrics = sdx.split.leave_last(tiny()), (0.1, 0.4, 0.4, 0.2)
    with measured(*metrics):
        whole = sdx.fit(recipe, parts.train, parts.valid, quiet=True, **options)
    record = whole.card.training
    assert record is not None
    assert record["best_epoch"] == 2
    plain, steps = Trainer.step, [0]
    monkeypatch.setattr(Descent.__new__, "__defaults__", (0.0,))  # a checkpoint after every step

    def step(self: Trainer, at: Tensor) -> None:
        steps[0] += 1
        if steps[0] == 2 * -(-self.feed.size // self.batch_size) + 2:
            raise KeyboardInterrupt
        plain(self, at)

    given = options | {"folder": tmp_path, "quiet": True}
    with monkeypatch.context() as patch, measured(*metrics):
        patch.setattr(Trainer, "step", step)
        with pytest.raises(KeyboardInterrupt):
            sdx.fit(recipe, parts.train, parts.valid, **given)
    with measured(*metrics[2:]):
        again = sdx.fit(recipe, parts.train, parts.valid, resume=True, **given)
    assert again.card.training == whole.card.training
    other = kept(again)
    for tensor, value in kept(whole).items():
        assert torch.equal(value, other[tensor]), tensor
