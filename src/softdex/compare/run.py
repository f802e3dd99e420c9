"""Train recipes one after the other within a budget, then report all of them on the test part."""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from softdex import recipes as catalogue
from softdex.compare.board import Board, board
from softdex.compare.comparison import Comparison
from softdex.compare.store import Store
from softdex.data import split as splits
from softdex.data.expect import expect, expect_log
from softdex.data.holdout import Holdout, Split
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError, choose
from softdex.evaluate.evaluate import check_metric, check_rules
from softdex.evaluate.result import Result
from softdex.files import locked
from softdex.fit import train_once
from softdex.index.contract import MAX_MEMORY
from softdex.machine import parse_seconds, peak_memory
from softdex.messages import METRIC, at_volume, say
from softdex.model.honest import check_train
from softdex.model.retriever import Retriever
from softdex.recipes import Recipe

PORTFOLIO = ("popular", "item_cf", "rg2", "ials", "ssl_pop", "ssm", "fastvae")  # cheap to dear
ORDERED = ("sasrec",)  # where the log has times

R = TypeVar("R")
Options = Mapping[R, Mapping[str, Any]]
Columns = Callable[[Retriever, Result], Mapping[str, Any]]
"""(trained model, its result) -> further columns of the leaderboard."""
Chosen = dict[str, tuple[Recipe, dict[str, Any]]]
"""Recipe and options given, per name."""


@at_volume
def compare(
    log: Interactions | Split,
    recipes: Sequence[Recipe] | Options[str] | Options[Recipe] | None = None,
    *,
    budget: float | str | None = None,
    folder: str | Path | None = None,
    k: int | Sequence[int] = (10, 20, 50),
    index: str = "served",
    empty: str | None = None,
    repeats: str | None = None,
    ideal: str | None = None,
    max_memory: int | str = MAX_MEMORY,
    metric: str | None = None,
    extra: Columns | None = None,
    quiet: bool = False,
    verbose: bool = False,
) -> Comparison:
    """Train recipes on one split, choose by validation, and evaluate all on the test part at last.

    A recipe that fails does not stop the others. Ctrl-C ends the training; what has finished is
    evaluated.

    Args:
        log: a split, or a log to split: as its column `test` says if it has one, else by
            `leave_last` if it has times, else by `per_user`.
        recipes: names and functions in the order of training, or options per recipe:
            {"rg2": {"dim": 64}, "item_cf": {}}. None takes eight that cover the ground, from cheap
            to dear.
        budget: seconds, or a time such as "10m" or "1h30m", for training and evaluation. Recipes
            share what is left evenly, so that what the quick ones leave is for the slow ones; one
            that trains in epochs stops when its share is over, with its best epoch. Once the budget
            is spent no further recipe starts; the first always does.
        folder: where models, checkpoints and seconds are kept as they come. The same call goes on
            where an earlier one was stopped, and with a larger budget where that one had ended.
            A second comparison into it at the same time is refused. None keeps models in memory.
        k, index, empty, repeats, ideal, max_memory: as in `Retriever.evaluate`, on the test part.
        metric: what the leaderboard and the report go by, such as "recall@10"; None takes NDCG at
            20, or at the middle one of `k`. The best is chosen on validation all the same.
        extra: called with each trained model and its result; returns further columns of the
            leaderboard.
        quiet, verbose: print warnings only, or every epoch too.
    """
    limit = math.inf if budget is None else parse_seconds("compare: budget", budget)
    rules = {"k": k, "index": index, "empty": empty, "repeats": repeats, "ideal": ideal}
    rules["max_memory"] = max_memory
    chosen = None if recipes is None else check_recipes(recipes)
    check_rules(rules)
    metric = check_metric("compare", metric, k)
    whole, split = (log.train, log) if isinstance(log, Split) else (log, _split(log))
    expect_log("compare", split.train)
    for name, part in (("valid", split.valid), ("test", split.test)):
        if part is not None:
            expect(Holdout, "compare", part, name)
            check_train("compare", split.train, part, name)
    check_rules(rules, split.train.num_items)
    if chosen is None:
        chosen = check_recipes(PORTFOLIO + ORDERED * (split.train.time is not None))
    everything = {n: catalogue.options(r) | given for n, (r, given) in chosen.items()}
    place = None if folder is None else Path(folder)
    with nullcontext() if place is None else locked(place, "compare"):
        store = Store(place, split, everything)
        given = {n: options for n, (_, options) in chosen.items()}
        found = Comparison(whole, split, given, store, metric)
        with board(chosen) as shown:
            found = replace(found, stopped=_train_all(found, chosen, limit, shown))
            for name, why in found.missing.items():
                if name not in {*store.trained(), *found.failed}:
                    shown.missing(name, why)
            return _report_all(found, rules, extra, shown)


def check_recipes(recipes: Any) -> Chosen:
    """Return recipe and options given, per name; refuse unknown recipes and options."""
    given = recipes
    if isinstance(given, (list, tuple)) and all(isinstance(r, str) or callable(r) for r in given):
        given = {recipe: {} for recipe in given}
    if not isinstance(given, Mapping) or not given:
        raise SoftdexError(
            "compare: expected recipes as a list of names and functions, or as {recipe: options}, "
            f"got {given!r}."
        )
    found: Chosen = {}
    for recipe, options in given.items():
        if isinstance(recipe, str):
            choose("compare", "recipe", recipe, catalogue.names())
        name = catalogue.entry(recipe).name
        if name in found:
            raise SoftdexError(f"compare: two recipes have the name {name!r}. Rename a function.")
        if not isinstance(options, Mapping):
            raise SoftdexError(f"compare: expected options of {name} as a dict, got {options!r}.")
        found[name] = recipe, catalogue.checked(recipe, options)
    return found


# inside ------------------------------------------------------------------------------------------


def _train_all(
    found: Comparison, chosen: Chosen, limit: float, shown: Board
) -> Literal["budget", "interrupt"] | None:
    """Train what is not trained yet; return what stopped it."""
    store, lost = found.store, 0.0
    pending = [name for name in chosen if not store.is_done(name, limit)]
    for name in store.trained():
        shown.done(name, store.entries[name], before=True)
    for place, name in enumerate(pending):
        left = limit - store.spent() - lost
        if left <= 0 and (store.trained() or found.failed):
            return "budget"
        began = time.perf_counter()
        try:
            _train(found, name, *chosen[name], limit, left / (len(pending) - place), shown)
        except KeyboardInterrupt:
            if not store.trained():
                raise
            return "interrupt"
        except Exception as error:
            _fail(found, name, error)
            shown.missing(name, found.missing[name])
            lost += time.perf_counter() - began
    return None


def _train(
    found: Comparison,
    name: str,
    recipe: Recipe,
    given: dict[str, Any],
    limit: float,
    share: float,
    shown: Board,
) -> None:
    """Train a recipe for at most its share of the seconds, measure it on validation, keep it."""
    store, (train, valid, _) = found.store, found.split
    asked = valid if valid is not None and len(valid.targets.ids) else None
    shown.begin(name)
    store.begin(name)
    resume = store.can_resume(name)
    before = store.entries[name].get("seconds", 0.0) if resume else 0.0
    began = time.monotonic()
    with peak_memory() as used:
        model = train_once(
            recipe, catalogue.options(recipe) | given, train, asked, folder=store.place(name),
            resume=resume, until=began + share,
        )  # fmt: skip
    trained = time.monotonic()
    if asked is not None:
        model.card = model.card.measured("valid", model.evaluate(asked))
    store.keep(
        name, model, seconds=before + trained - began, measuring=time.monotonic() - trained,
        valid=model.card.metrics["valid"][METRIC] if asked is not None else None,
        cut=limit if (model.card.training or {}).get("cut") else None, **used,
    )  # fmt: skip
    shown.done(name, store.entries[name])


def _report_all(
    found: Comparison, rules: Mapping[str, Any], extra: Columns | None, shown: Board
) -> Comparison:
    """Evaluate every trained model on the test part."""
    store = found.store
    for name in store.trained():
        shown.begin(name, "measuring on test")
        try:
            model = store.model(name)
            result = model.evaluate(found.split.test, **rules)
            if model.card.metrics.get("test") != dict(result):
                model.card = model.card.measured("test", result)
                store.save(name, model)
            found.extra[name] = {} if extra is None else dict(extra(model, result))
        except KeyboardInterrupt:
            if not found.results:
                raise
            return replace(found, stopped="interrupt")
        except Exception as error:
            _fail(found, name, error)
            say(f"{name}: {found.missing[name]}")
            continue
        found.results[name] = result
        if model.card.training is not None:
            found.training[name] = model.card.training["history"]
        shown.measured(name)
    if not found.results:
        raise next(iter(found.failed.values()))
    return found


def _fail(found: Comparison, name: str, error: Exception) -> None:
    """Record an error, and free what the recipe held."""
    traceback.clear_frames(error.__traceback__)
    found.failed[name] = error


def _split(log: Any) -> Split:
    """Split a log by the rule that suits it."""
    expect((Interactions, Split), "compare", log)
    expect_log("compare", log)
    name, why = splits.default_name(log)
    say(f"split: {name}, because {why}; pass a split to choose another")
    return splits.by_name(name, log)
