"""Comparison: recipes trained on one split, the one to choose, and which differences are real."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

from softdex import notebook
from softdex.compare.store import Store
from softdex.data.expect import expect
from softdex.data.holdout import Split
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError, choose
from softdex.evaluate.pairs import Pairs
from softdex.evaluate.pairs import pairs as compared
from softdex.evaluate.report import Study, build
from softdex.evaluate.result import Result
from softdex.files import check_page, save_text
from softdex.machine import hardware
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
        metric: what the leaderboard and the report go by, such as "ndcg@20".
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
    metric: str
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
        """The recipes that finished, by NDCG on validation; without that part, by the metric on
        test."""
        by = self.valid or {name: result[self.metric] for name, result in self.results.items()}
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
        """Per recipe, the best of the metric on top: NDCG@20 on validation, recall and NDCG per
        cut-off on test ± standard error, and training seconds."""
        return self._board(next(iter(self.results.values())).cutoffs)

    def _board(self, cutoffs: Sequence[int]) -> Rows:
        metrics = [f"{m}@{k}" for k in cutoffs for m in ("recall", "ndcg")]
        metrics = list(dict.fromkeys([*metrics, self.metric]))
        rows = []
        for name in self.pairs.names:
            chosen = {f"valid {METRIC}": f"{self.valid[name]:.4f}"} if self.valid else {}
            shown = {m: self.results[name].shown(m) for m in metrics}
            rows.append(
                {"": name, **chosen, **shown, **self.extra[name]}
                | {"fit s": f"{self.seconds[name]:.1f}"}
            )
        return Rows("", rows)

    @cached_property
    def pairs(self) -> Pairs:
        """Every recipe against every other on the metric, by paired bootstrap over users; the
        intervals of all pairs hold at once."""
        return compared(self.results, self.metric)

    @property
    def differences(self) -> Rows:
        """The best recipe against every other; see `Pairs.against`."""
        return self.pairs.against(self.best)

    @property
    def _sentences(self) -> list[str]:
        """What validation chose, how it does against the others, and what went wrong."""
        where = "validation" if self.valid else "test (there is no validation part)"
        words = [f"{self.best} is the best on {where}."]
        words += [
            f"On test it is {'above' if row['difference'] > 0 else 'below'} {row['against']} by "
            f"{abs(row['difference']):.4f} {row['metric']} "
            f"(95 % {row['low']:.4f} .. {row['high']:.4f}, p {_p_value(row['p'])}"
            f"{'' if row['real'] else ', cannot be told apart'})"
            for row in self.differences
        ]
        words += [f"{name}: stopped by the budget in epoch {n + 1}" for name, n in self.cut.items()]
        return [*words, *(f"{name}: {why}" for name, why in self.missing.items())]

    def __str__(self) -> str:
        cutoff = int(self.metric.partition("@")[2])  # a terminal has no room for more of them
        return "\n".join([str(self._board([cutoff])), *self._sentences])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self.leaderboard
        shown = notebook.table([*rows[0]], [[*row.values()] for row in rows])
        return notebook.page(shown, notebook.notes(self._sentences))

    def report(
        self,
        path: str | Path,
        *,
        title: str = "Recipes compared",
        lead: str = "",
        data: Mapping[str, Any] | None = None,
        ceiling: Result | None = None,
        also: Mapping[str, Result] | None = None,
        columns: str | Sequence[str] | None = None,
        command: str = "",
    ) -> None:
        """Write the comparison as one self-contained HTML page.

        Args:
            path: the file to write.
            title, lead: the heading and the sentence below it.
            data: facts about the data; `log.describe()` by default.
            ceiling: the result of the best possible lists, where they are known.
            also: results of the same test part that come from elsewhere, such as those of
                `sdx.evaluate`, per name.
            columns: item columns: one with distinct values names items, one with repeated values
                groups them, others are shown. Names not given are looked for.
            command: what made the comparison, for the protocol card.
        """
        path = Path(path)
        check_page(path, "report")
        for name, result in (also or {}).items():
            expect(Result, "report", result, f"also[{name!r}]")
            if name in self.results:
                raise SoftdexError(f"report: a recipe is called {name!r}. Rename that of also=.")
        facts = {
            "Data": self.log.describe() if data is None else data,
            "Run": {"command": command, "seeds": self._seeds, **hardware()},
            "Versions": versions(),
            "Options": self.store.options,
        }
        entries = {name: self.store.entries[name] for name in self.results}
        study = Study(
            {**self.results, **(also or {})},
            self.metric,
            chosen=self.best if self.valid else None,
            ceiling=ceiling,
            seconds=self.seconds,
            memory={n: e["memory"] for n, e in entries.items() if e.get("memory")},
            training=self.training,
            ends={n: f"stopped by the budget in epoch {e + 1}" for n, e in self.cut.items()},
            extra={
                n: self.extra[n]
                | ({"GPU MB": gpu // 10**6} if (gpu := e.get("gpu_memory")) else {})
                for n, e in entries.items()
            },
            missing=self.missing,
            split=self.split,
            columns=columns,
            facts=facts,
        )
        save_text(path, build(title, lead, study))

    @property
    def _seeds(self) -> str:
        """The seeds of the recipes that draw."""
        seeds = {n: o["seed"] for n, o in self.store.options.items() if "seed" in o}
        if len(set(seeds.values())) < 2:
            return f"{next(iter(seeds.values()))}, of every recipe" if seeds else ""
        return ", ".join(f"{name} {seed}" for name, seed in seeds.items())


# inside ------------------------------------------------------------------------------------------


def _p_value(p: float) -> str:
    """Format a bootstrap p; 1000 samples resolve nothing below 0.001."""
    return "at most 0.001" if p <= 0.001 else f"{p:.3f}"


def _words(error: Exception) -> str:
    """Return the text of an error, with its type unless the text was written for users."""
    return str(error) if isinstance(error, SoftdexError) else f"{type(error).__name__}: {error}"
