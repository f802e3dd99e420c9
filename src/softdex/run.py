"""Runs: from a plan (command line or TOML) to a folder with config, metrics and model."""

from __future__ import annotations

import inspect
import json
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softdex import recipes
from softdex import split as splits
from softdex.artifact import write_atomically
from softdex.errors import DataError, SoftdexError, choose
from softdex.evaluate import Result
from softdex.holdout import Split
from softdex.interactions import Interactions
from softdex.read import read
from softdex.retrieve import MODEL_FILE, Retriever, load
from softdex.tables import say

CONFIG, METRICS = "config.toml", "metrics.json"
PREPARE = ("min_rating", "k_core")
SECTIONS: dict[str, list[str] | None] = {
    "data": [*(n for n in inspect.signature(read).parameters if n != "quiet"), *PREPARE],
    "split": None,
    "options": None,
    "evaluate": ["k", "index", "empty", "repeats", "ideal", "max_memory"],
}
Plan = dict[str, Any]


def read_config(path: Path) -> Plan:
    """A plan from a TOML file; unknown names are errors that name the nearest known one."""
    try:
        plan = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SoftdexError(f"config: cannot read {path} ({error.strerror}).") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SoftdexError(f"config: {path} is not valid TOML ({error}).") from None
    for name, value in plan.items():
        choose(f"config {path}", "entry", name, ["recipe", "out", *SECTIONS])
        if name in SECTIONS:
            if not isinstance(value, dict):
                raise SoftdexError(f"config {path}: expected a table [{name}], got {value!r}.")
            for key in value if SECTIONS[name] is not None else ():
                choose(f"config {path} [{name}]", "entry", key, SECTIONS[name] or [])
    return plan


def to_toml(plan: Plan) -> str:
    """A plan as TOML text."""
    lines = [f"{k} = {json.dumps(v)}" for k, v in plan.items() if k not in SECTIONS]
    for name in SECTIONS:
        entries = {k: v for k, v in plan.get(name, {}).items() if v is not None}
        if entries:
            lines += ["", f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in entries.items())]
    return "\n".join(lines) + "\n"


def prepare(plan: Plan) -> tuple[Interactions, Split]:
    """Read the log of a plan and split it."""
    data = dict(plan["data"])
    if not data.get("source"):
        raise SoftdexError("expected a log: a path, or source = ... under [data] in the config.")
    min_rating, k_core = (data.pop(name, None) for name in PREPARE)
    log = read(data.pop("source"), **data)
    if min_rating is not None:
        log = log.min_rating(min_rating)
        say(f"min_rating {min_rating:g} -> {log!r}")
    if k_core is not None:
        log = log.k_core(k_core)
        say(f"{k_core}-core -> {log!r}")
    if not len(log):
        raise DataError("no row is left after min_rating and k_core. Lower them.")
    for warning in log.lint():
        say(f"note: {warning}")
    arguments = dict(plan.get("split", {}))
    name = arguments.pop("name", None) or _default_split(log)
    plan["split"] = {"name": name, **arguments}
    return log, splits.by_name(name, log, **arguments)


def _default_split(log: Interactions) -> str:
    if "test" in log.extra:
        name, why = "given", "the log has a column 'test'"
    elif log.time is not None:
        name, why = "leave_last", "the log has times"
    else:
        name, why = "per_user", "the log has no time"
    say(f"split: {name}, because {why}; --split chooses another")
    return name


def fit(plan: Plan, *, force: bool = False) -> tuple[Retriever, Result, Path]:
    """Train the recipe of a plan, measure it on the test part, and write the run folder."""
    name = plan.get("recipe")
    if name is None:
        raise SoftdexError(f"fit: expected a recipe. Known: {', '.join(recipes.names())}.")
    check_options(name, plan.get("options", {}))
    out = Path(plan.setdefault("out", f"runs/{name}"))
    if (out / MODEL_FILE).exists() and not force:
        raise SoftdexError(f"fit: {out} holds a model already. Pass --force to replace it.")
    if out.exists() and not out.is_dir():
        raise SoftdexError(f"fit: {out} is a file. Expected a folder for the run.")
    _, (train, valid, test) = prepare(plan)
    began = time.perf_counter()
    model = recipes.fit(name, train, valid=valid, **plan.get("options", {}))
    say(f"trained {name} in {time.perf_counter() - began:.1f} s")
    result = model.evaluate(test, **plan.get("evaluate", {}))
    model.info["metrics"]["test"] = dict(result)
    save_text(out / CONFIG, to_toml(plan))
    save_text(out / METRICS, json.dumps(summary(name, result), indent=2) + "\n")
    model.save(out / MODEL_FILE)
    return model, result, out


def evaluate(
    folder: Path, overrides: Mapping[str, Any], source: str | None
) -> tuple[Retriever, Result]:
    """Measure the model of a run folder again, on the very split it was trained with."""
    if folder.is_file():
        raise SoftdexError(f"evaluate: {folder} is a file. Expected the run folder it is in.")
    if not (folder / CONFIG).exists():
        raise SoftdexError(f"evaluate: {folder} is not a run folder (it has no {CONFIG}).")
    model, plan = load(folder), read_config(folder / CONFIG)
    if source:
        plan["data"]["source"] = source
    _, (_, _, test) = prepare(plan)
    trained = (model.info.get("card") or {}).get("sha256")
    if trained != test.card.sha256:
        raise DataError(
            f"evaluate: the data has changed since {folder} was trained (its split is "
            f"{str(trained)[:8]}, now it is {test.card.sha256[:8]}). Train again, or pass --data."
        )
    return model, model.evaluate(test, **{**plan.get("evaluate", {}), **overrides})


def check_options(name: str, given: Mapping[str, Any]) -> None:
    """Refuse options a recipe does not have, before any work is done."""
    known = list(recipes.options(name))
    for option in given:
        choose(name, "option", option, known)


def summary(name: str, result: Result) -> dict[str, Any]:
    """A result as plain values."""
    errors = {n: result.standard_error(n) for n in result.per_user}
    return {
        "recipe": name,
        "users": len(result.users),
        "metrics": dict(result),
        "standard_errors": {n: e for n, e in errors.items() if e == e},
        "conventions": result.conventions,
        "card": result.card.json(),
    }


def save_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    write_atomically(path, lambda file: file.write(text.encode()))
