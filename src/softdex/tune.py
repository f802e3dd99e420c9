"""Tune: search the options of a recipe on a validation part, by successive halving."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from softdex import notebook, recipes
from softdex.data.expect import expect, expect_log
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.fit import make_job
from softdex.machine import parse_bytes
from softdex.messages import METRIC, at_volume, say
from softdex.model.card import Card, card_of
from softdex.model.honest import check_origins, check_train
from softdex.model.learn import (
    assemble,
    begin,
    check_finite,
    check_memory,
    finish,
    measurer,
    warned,
)
from softdex.model.parts import known_from, parts_from
from softdex.model.retriever import Retriever
from softdex.options import fits
from softdex.progress import Work, shown
from softdex.recipes.catalogue import Recipe
from softdex.solve.loop import Job, Run
from softdex.tables import Rows

MOST_SETTINGS = 65_536
KEPT = 3  # one setting in KEPT goes on, with KEPT times the epochs


@dataclass(frozen=True)
class Tuned:
    """The result of a search.

    Attributes:
        options: the best options, ready for `fit(recipe, train, valid, **options)`.
        model: the model trained with them.
        metric: its NDCG@20 on the (sampled) validation users. The best of many settings is
            optimistic: measure the model on a test part that played no role in the choice.
        settings: every setting with its epochs and its metric, best first.
    """

    options: dict[str, Any]
    model: Retriever
    metric: float
    settings: Rows

    def __str__(self) -> str:
        return str(self.settings)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = self.settings
        shown = notebook.table([*rows[0]], [[*row.values()] for row in rows])
        return notebook.page(notebook.title(rows.title), shown)


class _Trial:
    """One setting and its training so far."""

    def __init__(
        self,
        recipe: Recipe,
        options: dict[str, Any],
        train: Interactions,
        valid: Holdout,
        of: int,
        max_memory: int | None,
    ) -> None:
        if options.get("epochs", 1) is None:
            options["epochs"] = recipes.preset(recipe, options["device"])["epochs"]
        self.recipe, self.name = recipe, recipes.entry(recipe).name
        self.options, self.train, self.valid = options, train, valid
        self.of, self.max_memory = of, max_memory
        self.card = card_of(self.name, options, train)
        self.score, self.epochs = -float("inf"), 0
        self.origins: list[Card] = []
        self.model: Retriever | None = None
        self.run: Run | None = None
        self.error: SoftdexError | None = None

    def advance(self, epochs: int) -> None:
        """Train up to `epochs` epochs in total, and measure."""
        try:
            if self.model is None and self.run is None and self.error is None:
                self._begin()
            if self.run is not None and self.error is None:
                self.run.advance(epochs - self.run.progress.epoch)
        except SoftdexError as error:  # contradictory or diverged: the other settings go on
            self.error = error
            say(f"tuning: a setting failed ({error})")
        finally:
            if self.run is not None:
                self.score, self.epochs = self.run.progress.best, self.run.progress.epoch

    def _begin(self) -> None:
        made, self.origins = make_job(self.recipe, self.train, self.options)
        check_origins("tune", self.origins, self.valid)
        if not isinstance(made, Job):
            self.model = assemble(self.name, self.options, self.train, *made)
            parts, known = parts_from(*made), known_from(self.train)
            self.score, self.epochs = measurer(self.name, parts, known, self.valid)(), 1
            return
        self.card = warned(self.card, made, self.train)
        check_finite(self.card, made.encoder, made.scorer)
        kept = -(-self.of // KEPT)  # as many are held at a time
        check_memory(self.options, kept * made.memory(self.train), self.max_memory)
        self.run = begin(self.card, made, self.train, self.valid, quiet=True)

    def drop(self) -> None:
        """Free the tables."""
        self.model = self.run = None

    def done(self) -> Retriever:
        """The model of the best epoch."""
        model = self.model
        if model is None:
            assert self.run is not None
            model = finish(self.card, self.run, self.train)
        model.card = model.card.started_from(self.origins)
        model.card = model.card.measured("valid", model.evaluate(self.valid))
        model.card = model.card.chosen_by(self.valid)
        return model


@at_volume
def tune(
    recipe: Recipe,
    train: Interactions,
    valid: Holdout,
    *,
    settings: int = 24,
    space: Mapping[str, Any] | None = None,
    search_seed: int = 0,
    max_memory: int | str | None = None,
    quiet: bool = False,
    verbose: bool = False,
    **fixed: Any,
) -> Tuned:
    """Search for good options of a recipe by successive halving.

    Settings are spread evenly over the space, the recipe's defaults among them if they lie in it.
    All are trained for a ninth of the epochs (at least two), the best third of them for a third of
    the epochs, the best third of those to the end. No epoch is trained twice. Ctrl-C ends the
    search with the best setting so far.

    Args:
        recipe: a name, or a function of your own.
        train: the training part of a split.
        valid: the part that settings are measured on.
        settings: number of settings to try.
        space: options to vary, each a list of choices or a pair (low, high) of numbers on a
            logarithmic scale. None takes the recipe's own, `softdex.recipes.space(recipe)`.
        search_seed: of the choice of settings; `seed` is that of the training, as in `fit`.
        max_memory: bytes (or "4GB") that settings in training may hold together.
        quiet, verbose: print warnings only, or every epoch too.
        fixed: options with one value in every setting, also if `space` has them.
    """
    name, fixed = recipes.entry(recipe).name, recipes.check_options(recipe, fixed)
    expect_log("tune", train, "train")
    expect(Holdout, "tune", valid, "valid")
    check_train("tune", train, valid)
    if not len(valid.targets.ids):
        raise SoftdexError("tune: expected a validation part with targets: valid= of a split.")
    if isinstance(settings, bool) or not isinstance(settings, int) or settings < 1:
        raise SoftdexError(f"tune: expected a number of settings >= 1, got {settings!r}.")
    if settings > MOST_SETTINGS:
        raise SoftdexError(f"tune: expected at most {MOST_SETTINGS:,} settings, got {settings:,}.")
    base = recipes.options(recipe) | fixed
    if space is None:
        idle = recipes.unread(recipe, base)
        space = {option: s for option, s in recipes.space(recipe).items() if option not in idle}
    if not isinstance(space, Mapping):
        raise SoftdexError(f"tune: expected space={{option: [...]}}, got {space!r}.")
    space = {option: among for option, among in space.items() if option not in fixed}
    if not space:
        raise SoftdexError(f"tune: {name} has nothing to tune. Pass space={{option: [...]}}.")
    space = _checked(recipe, base, space)
    chosen = _spread(recipe, base, space, settings, search_seed)
    limit = None if max_memory is None else parse_bytes(max_memory)
    trials = [_Trial(recipe, base | o, train, valid, len(chosen), limit) for o in chosen]
    began = time.perf_counter()
    try:
        _halve(trials, max(int(t.options.get("epochs", 1)) for t in trials), began)
    except KeyboardInterrupt:
        if not any(trial.epochs for trial in trials):
            raise
        say("stopped: the best setting so far is kept")
    ranked = sorted(trials, key=lambda t: (t.model is None and t.run is None, -t.score))
    if not ranked[0].epochs and ranked[0].error is not None:
        raise ranked[0].error
    rows = [
        {**{n: t.options[n] for n in space}, "epochs": t.epochs, METRIC: t.score}
        for t in ranked
        if t.epochs
    ]
    title = f"{name}: {len(rows)} settings in {time.perf_counter() - began:.1f} s"
    best = ranked[0]
    idle = recipes.unread(recipe, best.options)
    given = {o: best.options[o] for o in (*fixed, *space) if o not in idle}
    return Tuned(given, best.done(), best.score, Rows(title, rows))


def _halve(trials: list[_Trial], epochs: int, began: float) -> None:
    """Successive halving: train all settings, continue the best third."""
    alive = list(trials)
    budgets = [max(min(2, epochs), -(-epochs // share)) for share in (KEPT**2, KEPT, 1)]
    for budget in sorted(set(budgets if len(alive) > 1 else budgets[-1:])):
        keep = 1 if budget == epochs else max(1, -(-len(alive) // KEPT))
        best: list[_Trial] = []
        work = Work(f"{trials[0].name} to epoch {budget}", "setting", len(alive))
        with shown(work):
            for done, trial in enumerate(alive, 1):
                trial.advance(budget)
                best = sorted([*best, trial], key=lambda t: -t.score)
                if len(best) > keep:
                    best.pop().drop()
                work.facts["best"] = f"{best[0].score:.4f}"
                work.moved(done)
        spent = time.perf_counter() - began
        say(
            f"tuning: {len(alive)} settings to epoch {budget}, best {METRIC} {best[0].score:.4f}, "
            f"{spent:.1f} s in all"
        )
        alive = best


def _checked(recipe: Recipe, base: Mapping[str, Any], space: Mapping[str, Any]) -> dict[str, Any]:
    """A space as plain values; wrong values, and options without an effect in any setting, are
    refused."""
    whole = _whole(recipe)
    found: dict[str, Any] = {}
    for option, among in space.items():
        tried = _sample(option, among, whole.get(option, False))
        tried = [recipes.check_options(recipe, {option: value})[option] for value in tried]
        found[option] = tried if isinstance(among, list) else among
    defaults = recipes.options(recipe)
    used = {o for o in base if base[o] != defaults[o]} | found.keys()
    for option, (by, values) in recipes.rules(recipe):
        among = found.get(by, [base[by]])
        if option in used and not any(v in values for v in _sample(by, among, whole[by])):
            because = f"{by}={found.get(by, base[by])!r}"
            name = recipes.entry(recipe).name
            raise SoftdexError(f"{name}: {option}= has no effect with {because}. Leave it out.")
    return found


def _whole(recipe: Recipe) -> dict[str, bool]:
    """Which options are whole numbers."""
    annotated = recipes.kinds(recipe)
    return {n: fits(1, kind) and not fits(0.5, kind) for n, kind in annotated.items()}


def _spread(
    recipe: Recipe, base: Mapping[str, Any], space: Mapping[str, Any], settings: int, seed: int
) -> list[dict[str, Any]]:
    """Distinct settings spread evenly over a space; the defaults first if they lie in it."""
    defaults, whole = recipes.options(recipe), _whole(recipe)
    first = {option: defaults[option] for option in space}
    from scipy.stats import qmc  # takes a while to import

    found = [first] if all(_within(first[o], among) for o, among in space.items()) else []
    for point in qmc.Halton(len(space), seed=seed).random(settings - len(found)):
        setting = {
            option: _pick(among, float(at), whole[option])
            for (option, among), at in zip(space.items(), point, strict=True)
        }
        for _ in space:  # options without an effect keep their defaults, so that settings differ
            idle = recipes.unread(recipe, {**base, **setting})
            setting |= {option: defaults[option] for option in space if option in idle}
        if setting not in found:
            found.append(setting)
    return found


def _within(value: Any, among: Any) -> bool:
    if isinstance(among, list):
        return value in among
    return value is None or bool(among[0] <= value <= among[1])  # None: chosen by the log


def _sample(option: str, among: Any, whole: bool) -> list[Any]:
    """All choices, or both ends of a range."""
    if isinstance(among, list) and among:
        return among
    pair = isinstance(among, tuple) and len(among) == 2 and all(fits(x, float) for x in among)
    if pair and 0 < among[0] < among[1]:
        return [_pick(among, at, whole) for at in (0.0, 1.0)]
    raise SoftdexError(
        f"tune: expected {option} as a list of choices or a pair (low, high) with 0 < low < high, "
        f"got {among!r}."
    )


def _pick(among: Any, at: float, whole: bool) -> Any:
    if isinstance(among, list):
        return among[int(at * len(among))]
    value = float(np.exp(np.log(among[0]) + at * np.log(among[1] / among[0])))
    return round(value) if whole else float(f"{value:.3g}")
