"""Comparison: recipes trained on one split, the one to choose, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

from softdex.compare.store import Store
from softdex.data.holdout import Split
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError, choose
from softdex.evaluate import report
from softdex.evaluate.result import Result, against_others
from softdex.files import check_page, save_text
from softdex.messages import METRIC
from softdex.model.card import versions
from softdex.model.retriever import Retriever
from softdex.tables import Rows


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """Recipes trained on one split, with their results on validation and on the test part.

    Attributes:
        log: the log compared on, or the training part of a split.
        split: train, valid and test.
        options: options given, per recipe.
        store: the trained models.
        results: metrics on the test part, per recipe that finished.
        training: epoch records, per recipe that finished and trains in epochs.
        extra: further columns of the leaderboard, per recipe that finished.
        failed: the error, per recipe that failed.
        stopped: why recipes were skipped: the `budget` was spent, or Ctrl-C was an `interrupt`.
    """

    log: Interactions
    split: Split
    options: dict[str, dict[str, Any]]
    store: Store
    results: dict[str, Result] = field(default_factory=dict)
    training: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    stopped: Literal["budget", "interrupt"] | None = None

    @property
    def seconds(self) -> dict[str, float]:
        """Training time, per recipe that finished."""
        return {name: self.store.entries[name]["seconds"] for name in self.results}

    @property
    def valid(self) -> dict[str, float]:
        """NDCG@20 on validation, per recipe that finished; empty without a validation part."""
        found = {name: self.store.entries[name]["valid"] for name in self.results}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def ranking(self) -> list[str]:
        """The recipes that finished, by NDCG on validation; without that part, on the test part."""
        metric = f"ndcg@{next(iter(self.results.values())).middle}"
        by = self.valid or {name: result[metric] for name, result in self.results.items()}
        return sorted(self.results, key=lambda name: -by[name])

    @property
    def best(self) -> str:
        """The first of the ranking."""
        return self.ranking[0]

    def model(self, name: str | None = None) -> Retriever:
        """The model of a recipe, by default of the best."""
        chosen = self.best if name is None else name
        return self.store.model(choose("compare", "recipe", chosen, list(self.results)))

    @property
    def skipped(self) -> list[str]:
        """Recipes that were not trained to the end, or not evaluated."""
        return [name for name in self.options if name not in self.results | self.failed]

    @property
    def missing(self) -> dict[str, str]:
        """Why a recipe has no result, per recipe without one."""
        why = "the budget was spent" if self.stopped == "budget" else "interrupted"
        found = {name: f"failed ({_words(e)})" for name, e in self.failed.items()}
        trained = self.store.trained()
        for name in self.skipped:
            found[name] = f"not {'evaluated' if name in trained else 'trained'} ({why})"
        return found

    @property
    def cut(self) -> dict[str, int]:
        """Whole epochs trained, per recipe that the budget ended."""
        entries = self.store.entries
        return {
            name: len(history)
            for name, history in self.training.items()
            if entries[name]["cut"] is not None
        }

    @property
    def leaderboard(self) -> Rows:
        """Per recipe, the best on top: NDCG@20 on validation, recall and NDCG per cut-off on test ±
        standard error, and training seconds."""
        cutoffs = next(iter(self.results.values())).cutoffs
        metrics = [f"{m}@{k}" for k in cutoffs for m in ("recall", "ndcg")]
        rows = []
        for name in self.ranking:
            chosen = {f"valid {METRIC}": f"{self.valid[name]:.4f}"} if self.valid else {}
            shown = {m: self.results[name].shown(m) for m in metrics}
            rows.append(
                {"": name, **chosen, **shown, **self.extra[name]}
                | {"fit s": f"{self.seconds[name]:.1f}"}
            )
        return Rows("", rows)

    @cached_property
    def differences(self) -> Rows:
        """Paired bootstrap of the best recipe against every other; see `against_others`."""
        return against_others(self.results, self.best)

    def __str__(self) -> str:
        where = "validation" if self.valid else "test (there is no validation part)"
        lines = [str(self.leaderboard), f"{self.best} is the best on {where}."]
        lines += [
            f"On test it is {'above' if row['difference'] > 0 else 'below'} {row['against']} by "
            f"{abs(row['difference']):.4f} {row['metric']} "
            f"(95 % {row['low']:.4f} .. {row['high']:.4f}, p {_p_value(row['p'])})"
            for row in self.differences
        ]
        lines += [f"{name}: stopped by the budget in epoch {n + 1}" for name, n in self.cut.items()]
        return "\n".join([*lines, *(f"{name}: {why}" for name, why in self.missing.items())])

    __repr__ = __str__

    def report(
        self,
        path: str | Path,
        *,
        title: str = "Recipes compared",
        lead: str = "",
        data: Mapping[str, Any] | None = None,
        ceiling: Result | None = None,
    ) -> None:
        """Write the comparison as one self-contained HTML page.

        Args:
            path: the file to write.
            title, lead: the heading and the sentence below it.
            data: facts about the data; `log.describe()` by default.
            ceiling: the result of the best possible lists, where they are known.
        """
        path = Path(path)
        check_page(path, "report")
        facts = {
            "Data": self.log.describe() if data is None else data,
            "Options": {name: given for name, given in self.options.items() if given},
            "Without a result": self.missing,
            "Protocol card": self.split.card.json(),
            "Versions": versions(),
        }
        extra = {
            name: {**self.extra[name], "fit seconds": f"{seconds:.1f}"}
            for name, seconds in self.seconds.items()
        }
        page = report.build(
            title, lead, {name: self.results[name] for name in self.ranking}, best=self.best,
            ceiling=ceiling, extra=extra, training=self.training,
            facts=[(name, each) for name, each in facts.items() if each],
        )  # fmt: skip
        save_text(path, page)


# inside ------------------------------------------------------------------------------------------


def _p_value(p: float) -> str:
    """Format a bootstrap p; 1000 samples resolve nothing below 0.002."""
    return "at most 0.002" if p <= 0.002 else f"{p:.3f}"


def _words(error: Exception) -> str:
    """Return the text of an error, with its type unless the text was written for users."""
    return str(error) if isinstance(error, SoftdexError) else f"{type(error).__name__}: {error}"
