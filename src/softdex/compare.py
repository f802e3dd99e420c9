"""Compare: train several recipes on one split and tell which differences are real."""

from __future__ import annotations

import math
import re
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, final

from softdex import recipes as catalogue
from softdex.data import split as splits
from softdex.data.expect import expect, expect_log
from softdex.data.holdout import Split
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError, choose
from softdex.evaluate import report
from softdex.evaluate.evaluate import check_rules
from softdex.evaluate.result import Result, above_others, best_of
from softdex.files import save_text
from softdex.fit import fit
from softdex.index.contract import MAX_MEMORY
from softdex.messages import say
from softdex.model.card import versions
from softdex.model.retriever import Retriever
from softdex.tables import Rows

UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0}
DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?)\s*{unit}\s*)?" for unit in UNITS))

Columns = Callable[[Retriever, Result], Mapping[str, Any]]
"""(trained model, its result) -> further columns of the leaderboard."""


@final
@dataclass(frozen=True, eq=False)
class Comparison:
    """Recipes trained on one split, and their results on its test part.

    Attributes:
        log: the log compared on, or the training part of a split.
        split: train, valid and test.
        options: options given, per recipe.
        results: metrics on the test part, per recipe that finished.
        seconds: training time, per recipe that finished.
        training: epoch records, per recipe that finished and trains in epochs.
        extra: further columns of the leaderboard, per recipe that finished.
        failed: the error, per recipe that failed.
        stopped: why recipes were skipped: the `budget` was spent, or Ctrl-C was an `interrupt`.
    """

    log: Interactions
    split: Split
    options: dict[str, dict[str, Any]]
    results: dict[str, Result] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    training: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    stopped: Literal["budget", "interrupt"] | None = None

    @property
    def skipped(self) -> list[str]:
        """Recipes that were not trained, or not to the end."""
        return [name for name in self.options if name not in self.results | self.failed]

    @property
    def missing(self) -> dict[str, str]:
        """Why a recipe has no result, per recipe without one."""
        why = "the budget was spent" if self.stopped == "budget" else "interrupted"
        skipped = dict.fromkeys(self.skipped, f"not trained ({why})")
        return {name: f"failed ({_words(e)})" for name, e in self.failed.items()} | skipped

    @property
    def leaderboard(self) -> Rows:
        """Recall and NDCG per cut-off ± standard error, and training seconds, per recipe."""
        cutoffs = next(iter(self.results.values())).cutoffs
        metrics = [f"{m}@{k}" for k in cutoffs for m in ("recall", "ndcg")]
        rows = [
            {"": name, **{m: result.shown(m) for m in metrics}, **self.extra[name]}
            | {"fit s": f"{self.seconds[name]:.1f}"}
            for name, result in self.results.items()
        ]
        return Rows("", rows)

    @cached_property
    def differences(self) -> Rows:
        """Paired bootstrap of the best recipe against every other; see `above_others`."""
        return above_others(self.results)

    def __str__(self) -> str:
        lines = [str(self.leaderboard)]
        lines += [
            f"{best_of(self.results)} is above {row['against']} by {row['difference']:.4f} "
            f"{row['metric']} (95 % {row['low']:.4f} .. {row['high']:.4f}, p {_p_value(row['p'])})"
            for row in self.differences
        ]
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
            title, lead, self.results, ceiling=ceiling, extra=extra, training=self.training,
            facts=[(name, each) for name, each in facts.items() if each],
        )  # fmt: skip
        save_text(Path(path), page)


def compare(
    log: Interactions | Split,
    recipes: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    *,
    budget: float | str | None = None,
    k: int | Sequence[int] = (10, 20, 50),
    index: str = "served",
    empty: str | None = None,
    repeats: str | None = None,
    ideal: str | None = None,
    max_memory: int | str = MAX_MEMORY,
    extra: Columns | None = None,
) -> Comparison:
    """Train recipes on one split, in the order given, and evaluate them on its test part.

    A recipe that fails does not stop the others. Ctrl-C returns what has finished.

    Args:
        log: a split, or a log to split: as its column `test` says if it has one, else by
            `leave_last` if it has times, else by `per_user`.
        recipes: names, or options per name: {"rg2": {"dim": 64}, "item_cf": {}}. None compares
            all of `softdex.recipes.methods()` with their defaults.
        budget: seconds, or a time such as "10m" or "1h30m". Once it is spent no further recipe
            starts; the first always does, and one that has started is finished.
        k, index, empty, repeats, ideal, max_memory: as in `Retriever.evaluate`.
        extra: called with each trained model and its result; returns further columns of the
            leaderboard.
    """
    limit = math.inf if budget is None else parse_seconds(budget)
    rules = {"k": k, "index": index, "empty": empty, "repeats": repeats, "ideal": ideal}
    rules["max_memory"] = max_memory
    options = check_recipes(recipes)
    check_rules(rules)
    whole, split = (log.train, log) if isinstance(log, Split) else (log, _split(log))
    expect_log("compare", split.train)
    check_rules(rules, split.train.num_items)
    found, began = Comparison(whole, split, options), time.perf_counter()
    for name in options:
        if found.results | found.failed and time.perf_counter() - began >= limit:
            found = replace(found, stopped="budget")
            break
        try:
            _add(found, name, rules, extra)
        except KeyboardInterrupt:
            if not found.results:
                raise
            found = replace(found, stopped="interrupt")
            break
        except Exception as error:
            traceback.clear_frames(error.__traceback__)  # free what the recipe held
            found.failed[name] = error
            say(f"{name}: {found.missing[name]}")
    for name in found.skipped:
        say(f"{name}: {found.missing[name]}")
    if not found.results:
        raise next(iter(found.failed.values()))
    return found


def check_recipes(recipes: Any) -> dict[str, dict[str, Any]]:
    """Return the options given, per recipe; refuse unknown recipes and options."""
    given = catalogue.methods() if recipes is None else recipes
    if isinstance(given, (list, tuple)) and all(isinstance(name, str) for name in given):
        given = {name: {} for name in given}
    if not isinstance(given, Mapping) or not given:
        raise SoftdexError(
            f"compare: expected recipes as a list of names or as {{name: options}}, got {given!r}."
        )
    found = {}
    for name, options in given.items():
        choose("compare", "recipe", name, catalogue.names())
        if not isinstance(options, Mapping):
            raise SoftdexError(f"compare: expected options of {name} as a dict, got {options!r}.")
        found[name] = catalogue.checked(name, options)
    return found


def parse_seconds(budget: float | str) -> float:
    """Parse a budget.

    Example:
        >>> parse_seconds("1h30m")
        5400.0
    """
    found = math.nan
    if isinstance(budget, str):
        parts = DURATION.fullmatch(budget.strip())
        if parts:
            found = sum(
                float(n) * u for n, u in zip(parts.groups("0"), UNITS.values(), strict=True)
            )
        elif re.fullmatch(r"\d+(\.\d+)?", budget.strip()):
            found = float(budget)
    elif isinstance(budget, (int, float)) and not isinstance(budget, bool):
        found = float(budget)
    if not 0 < found < math.inf:
        raise SoftdexError(
            "compare: expected budget as a positive number of seconds or a time such as '10m' or "
            f"'1h30m', got {budget!r}."
        )
    return found


# inside ------------------------------------------------------------------------------------------


def _add(found: Comparison, name: str, rules: Mapping[str, Any], extra: Columns | None) -> None:
    """Train a recipe, evaluate it, and record both."""
    began = time.perf_counter()
    model = fit(name, found.split.train, valid=found.split.valid, **found.options[name])
    seconds = time.perf_counter() - began
    say(f"trained {name} in {seconds:.1f} s")
    result = model.evaluate(found.split.test, **rules)
    found.extra[name] = {} if extra is None else dict(extra(model, result))
    found.seconds[name] = seconds
    found.results[name] = result
    if model.card.training is not None:
        found.training[name] = model.card.training["history"]


def _split(log: Any) -> Split:
    """Split a log by the rule that suits it."""
    expect((Interactions, Split), "compare", log)
    expect_log("compare", log)
    name, why = splits.default_name(log)
    say(f"split: {name}, because {why}; pass a split to choose another")
    return splits.by_name(name, log)


def _p_value(p: float) -> str:
    """Format a bootstrap p; 1000 samples resolve nothing below 0.002."""
    return "at most 0.002" if p <= 0.002 else f"{p:.3f}"


def _words(error: Exception) -> str:
    """Return the text of an error, with its type unless the text was written for users."""
    return str(error) if isinstance(error, SoftdexError) else f"{type(error).__name__}: {error}"
