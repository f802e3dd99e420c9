"""Runs: fit a plan into a folder with config, metrics and model; evaluate the folder again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from softdex import group, recipes
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions
from softdex.errors import SoftdexError
from softdex.evaluate.lists import evaluate as evaluate_lists
from softdex.evaluate.result import Result
from softdex.files import check_folder, locked, save_text
from softdex.fit import fit as train_model
from softdex.fit import refitted
from softdex.messages import say
from softdex.model.artifact import plain
from softdex.model.retriever import Retriever
from softdex.model.saving import MODEL_FILE, load
from softdex.plan import CONFIG, Plan, prepare, read_config, tested, to_toml
from softdex.solve.checkpoint import FILE as CHECKPOINT
from softdex.tune import tune

METRICS, SETTINGS = "metrics.json", "settings.json"
OWN = (CHECKPOINT, CONFIG, SETTINGS, METRICS)  # of a run, beside the model
ASIDE = "{}.before"  # an earlier run's, until this run has its own


def fit(
    plan: Plan, *, force: bool = False, resume: bool = False
) -> tuple[Retriever, Result | None, Path]:
    """Train the recipe of a plan, evaluate it on the test part, and write the run folder.

    Config and checkpoints are in the folder from the start, so that `resume` can continue a run
    that was stopped. Of a group of processes the first one writes; the others get no result.
    """
    name = plan["recipe"]
    out = Path(plan.setdefault("out", f"runs/{name}"))
    with ExitStack() as held:
        with group.agreeing():
            _check_recipe(name, plan)
            if group.is_first():
                held.enter_context(locked(out))
                _check_folder(out, force=force, resume=resume)
                check_folder(out, "fit")
            _, (train, valid, test) = prepare(plan)
        if group.is_first():
            return _fit(plan, out, train, valid, test, resume=resume)
        return _train(plan, train, valid, out, resume=resume), None, out


def _fit(
    plan: Plan,
    out: Path,
    train: Interactions,
    valid: Holdout | None,
    test: Holdout,
    *,
    resume: bool,
) -> tuple[Retriever, Result, Path]:
    recipe, stopped = plan["recipe"], (out / CHECKPOINT).exists()
    had = [] if resume and stopped else [n for n in OWN if (out / n).exists()]
    _drop_aside(out)
    try:
        for name in had:
            (out / name).replace(out / ASIDE.format(name))
        if not (resume and stopped):
            save_text(out / CONFIG, to_toml(plan))
        model = _train(plan, train, valid, out, resume=resume)
        model.save(out / MODEL_FILE)  # from here on no error loses the training
    except BaseException as error:
        if not (out / CHECKPOINT).exists():  # nothing to resume: leave the folder as it was
            _put_back(out, had)
        elif isinstance(error, KeyboardInterrupt):
            say(f"stopped. Resume with: softdex fit --out {out} --resume")
        _drop_aside(out)
        raise
    _drop_aside(out)
    result = model.evaluate(test, **plan.get("evaluate", {}))
    model.card = model.card.measured("test", result)
    model.save(out / MODEL_FILE)
    save_text(out / METRICS, json.dumps(plain(summary(recipe, result)), indent=2) + "\n")
    (out / CHECKPOINT).unlink(missing_ok=True)
    return model, result, out


def evaluate(
    folder: Path, rules: Mapping[str, Any], source: str | None, lists: Path | None = None
) -> tuple[str, Result]:
    """Evaluate the model of a run folder, or lists, on the split it was trained with.

    Returns what was evaluated, the recipe or the file, and the result.

    Args:
        folder: the run folder.
        rules: arguments of `Retriever.evaluate` that differ from the run's config.
        source: path of the log, if it has moved.
        lists: file of lists to evaluate instead of the model.
    """
    if folder.is_file():
        raise SoftdexError(f"evaluate: {folder} is a file. Expected the run folder it is in.")
    if not (folder / CONFIG).exists():
        raise SoftdexError(f"evaluate: {folder} is not a run folder (it has no {CONFIG}).")
    model, plan = load(folder), read_config(folder / CONFIG)
    if source:
        plan.setdefault("data", {})["source"] = source
    plan["evaluate"] = {**plan.get("evaluate", {}), **rules}
    test, rules = tested(model, plan, folder), plan["evaluate"]
    if lists is None:
        return model.recipe, model.evaluate(test, **rules)
    taken = ("k", "metrics", "empty", "repeats", "ideal")
    return lists.name, evaluate_lists(
        str(lists), test, **{name: rules[name] for name in taken if name in rules}
    )


def summary(name: str, result: Result) -> dict[str, Any]:
    """Return a result as plain values."""
    errors = {n: result.standard_error(n) for n in result.per_user}
    return {
        "recipe": name,
        "users": len(result.users),
        "metrics": dict(result),
        "standard_errors": {n: e for n, e in errors.items() if e == e},
        "conventions": result.conventions,
        "card": result.card.json(),
    }


# inside ------------------------------------------------------------------------------------------


def _train(
    plan: Plan, train: Interactions, valid: Holdout | None, out: Path, *, resume: bool
) -> Retriever:
    """Train with the options of a plan, or with the best that tuning finds."""
    how = dict(plan.get("train", {}))
    if how.get("tune") is not None:
        return _tune(plan, train, valid)
    if how.get("start") is not None:
        how["start"] = load(how["start"])
    options = plan.get("options", {})
    return train_model(
        plan["recipe"], train, valid=valid, folder=out, resume=resume, **how, **options
    )


def _tune(plan: Plan, train: Interactions, valid: Holdout | None) -> Retriever:
    """Tune, write the best options into the plan, and return their model."""
    how, name = plan["train"], plan["recipe"]
    if group.size() > 1:
        raise SoftdexError("fit: --tune works in one process. Start it without torchrun.")
    if valid is None:
        raise SoftdexError("fit: --tune needs a validation part. Choose a split that has one.")
    if how.get("start") is not None:
        raise SoftdexError("fit: --tune trains from scratch. Leave --start out.")
    limits = {"settings": how["tune"], "max_memory": how.get("max_memory")}
    found = tune(name, train, valid, **limits, **plan.get("options", {}))
    say(str(found))
    if how.get("refit") and found.model.card.training is None:
        raise SoftdexError(f"fit: {name} is solved in one step: there is nothing to --refit.")
    plan["options"] = found.options
    plan["train"] = {n: v for n, v in how.items() if n != "tune"}
    out = Path(plan["out"])
    save_text(out / CONFIG, to_toml(plan))
    save_text(out / SETTINGS, json.dumps(plain(list(found.settings)), indent=1) + "\n")
    if not how.get("refit"):
        return found.model
    return refitted(name, found.model.options, train, valid, found.model)


def _check_recipe(name: str, plan: Plan) -> None:
    """Refuse wrong options before anything is read or written."""
    given, how = plan.get("options", {}), plan.get("train", {})
    if how.get("tune") is None:
        recipes.checked(name, given)
        return
    recipes.check_options(name, given)
    if how["tune"] < 1:
        raise SoftdexError(f"fit: expected --tune of at least 1, got {how['tune']}.")
    chosen = recipes.options(name) | given
    if how.get("refit") and ("epochs" not in chosen or "epochs" in recipes.unread(name, chosen)):
        raise SoftdexError(f"fit: {name} is solved in one step: there is nothing to --refit.")


def _check_folder(out: Path, *, force: bool, resume: bool) -> None:
    """Refuse to overwrite a model or a stopped run without --force."""
    stopped = (out / CHECKPOINT).exists()
    if stopped and not force and not resume:
        raise SoftdexError(
            f"fit: {out} holds a stopped run. Pass --resume to continue it, or --force to start "
            "again."
        )
    if (out / MODEL_FILE).exists() and not force and not (stopped and resume):
        raise SoftdexError(f"fit: {out} holds a model already. Pass --force to replace it.")


def _put_back(out: Path, had: list[str]) -> None:
    """Restore the folder as it was before a run that left nothing to resume."""
    for name in OWN:
        if name not in had:
            (out / name).unlink(missing_ok=True)
        elif (out / ASIDE.format(name)).exists():
            (out / ASIDE.format(name)).replace(out / name)


def _drop_aside(out: Path) -> None:
    for name in OWN:
        (out / ASIDE.format(name)).unlink(missing_ok=True)
