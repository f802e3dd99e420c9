"""Study: what a report is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, final

import numpy as np

from softdex.data.holdout import Split
from softdex.data.labels import Labels
from softdex.evaluate.evaluate import is_target
from softdex.evaluate.pairs import Pairs, pairs
from softdex.evaluate.result import Result

FEW = 5  # models shown at once, beside `popular`; the others are folded
POPULAR = "popular"
CEILING = "best possible"


@final
@dataclass(frozen=True, eq=False)
class Study:
    """Results of one split, and what else is known of their models; only results are needed.

    Attributes:
        results: per model.
        metric: what models are ranked by, such as "ndcg@20".
        chosen: the model that validation chose, or None.
        ceiling: the result of the best possible lists, or None.
        seconds, memory: of training, per model that was trained here; bytes of memory.
        training: epoch records, per model that was trained in epochs.
        ends: why a training ended before its time, per model where it did.
        extra: further columns of the table, per model.
        missing: why a model has no result, per model without one.
        split: the log trained on and the holdout; without it there are no categories and no users.
        columns: item columns to name, group and show items by; see `Labels`.
        facts: titled tables of the protocol card.
    """

    results: Mapping[str, Result]
    metric: str
    chosen: str | None = None
    ceiling: Result | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)
    training: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    ends: Mapping[str, str] = field(default_factory=dict)
    extra: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)
    split: Split | None = None
    columns: str | Sequence[str] | None = None
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @cached_property
    def pairs(self) -> Pairs:
        """Every pair of models; its names are the models, the best first."""
        return pairs(self.results, self.metric)

    @property
    def names(self) -> tuple[str, ...]:
        """The models, the best first."""
        return self.pairs.names

    @property
    def best(self) -> Result:
        """The result of the first model."""
        return self.results[self.names[0]]

    @property
    def few(self) -> list[str]:
        """The best five models, and `popular`; all, if that leaves one."""
        found = [n for i, n in enumerate(self.names) if i < FEW or n == POPULAR]
        return found if len(found) + 1 < len(self.names) else list(self.names)

    @property
    def rest(self) -> list[str]:
        """The other models."""
        return [name for name in self.names if name not in self.few]

    @property
    def k(self) -> int:
        """The cut-off of the metric."""
        return int(self.metric.partition("@")[2])

    @cached_property
    def labels(self) -> Labels | None:
        """What items are called, if the split is known."""
        if self.split is None:
            return None
        log = self.split.train
        return Labels(log.items, log.item_table, self.columns, "report")

    @cached_property
    def asked(self) -> np.ndarray:
        """The rows of the holdout whose users' lists are kept, in the order of `lists`."""
        assert self.split is not None
        rows = np.arange(len(self.split.test))
        if self.best.conventions["empty"] == "skip":
            rows = np.flatnonzero(self.split.test.targets.lengths)
        return rows[self.best.sampled]

    @cached_property
    def hits(self) -> dict[str, np.ndarray]:
        """Which places of the lists kept are targets (S, K), per model."""
        assert self.split is not None
        targets = self.split.test.targets.take(self.asked)
        number = len(self.split.test.item_keys)
        return {n: is_target(self.results[n].lists, targets, number) for n in self.names}
