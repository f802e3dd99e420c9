"""Runs: from a plan (command line or TOML) to a folder with config, metrics and model."""

from __future__ import annotations

import json
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from softdex import recipes
from softdex.data import split as splits
from softdex.data.holdout import Holdout, Split
from softdex.data.interactions import Interactions
from softdex.data.keys import as_list
from softdex.data.read import read
from softdex.errors import DataError, SoftdexError, choose
from softdex.evaluate.metrics import CONVENTIONS
from softdex.evaluate.result import Result
from softdex.files import write_atomically
from softdex.fit import fit as train_model
from softdex.fit import refitted
from softdex.machine import parse_bytes
from softdex.messages import say
from softdex.model.artifact import plain
from softdex.model.retriever import MODEL_FILE, Retriever, load
from softdex.options import check, kinds
from softdex.solve.checkpoint import FILE as CHECKPOINT
from softdex.tune import tune

CONFIG, METRICS, SETTINGS = "config.toml", "metrics.json", "settings.json"
ASIDE = f"{CHECKPOINT}.before"  # of a stopped run, until another has one
PREPARE = {"min_rating": float | None, "k_core": int | None}
PATHS = dict.fromkeys(
    ("source", "items", "users"), str | list[str]
)  # a file has no tables in memory
RULES = {**CONVENTIONS, "index": ("served", "exact", "both")}
MEASURE = {n: k for n, k in kinds(Retriever.evaluate).items() if n not in ("self", "holdout")}
SECTIONS: dict[str, dict[str, Any] | None] = {
    "data": {n: k for n, k in kinds(read).items() if n != "quiet"} | PREPARE | PATHS,
    "split": None,
    "options": None,
    "train": {"refit": bool, "max_memory": int | str | None, "start": str | None, "tune": int},
    "evaluate": MEASURE,
}
Plan = dict[str, Any]


def read_config(path: Path) -> Plan:
    """A plan from a TOML file; unknown names are errors that name the nearest known one."""
    try:
        plan = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SoftdexError(f"config: cannot read {path} ({error.strerror}).") from None
    except (ValueError, RecursionError) as error:
        raise SoftdexError(f"config: {path} is not valid TOML ({error}).") from None
    check(f"config {path}", {"recipe": str, "out": str} | dict.fromkeys(SECTIONS, dict), plan)
    for section, known in SECTIONS.items():
        if known is not None:
            check(f"config {path} [{section}]", known, plan.get(section, {}))
    return plan


def to_toml(plan: Plan) -> str:
    """A plan as TOML text."""
    lines = [f"{k} = {_toml(v)}" for k, v in plan.items() if k not in SECTIONS]
    for name in SECTIONS:
        entries = {k: v for k, v in plan.get(name, {}).items() if v is not None}
        if entries:
            lines += ["", f"[{name}]", *(f"{k} = {_toml(v)}" for k, v in entries.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """JSON is TOML for what a plan holds, but for one control character."""
    return json.dumps(plain(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def prepare(plan: Plan) -> tuple[Interactions, Split]:
    """Read the log of a plan and split it; what can be wrong with the plan is found before."""
    data, arguments = dict(plan.get("data", {})), dict(plan.get("split", {}))
    if not data.get("source"):
        raise SoftdexError("expected a log: a path, or source = ... under [data] in the config.")
    name = arguments.pop("name", None)
    if name is not None:
        _check_split(name, arguments)
    _check_measure(plan.get("evaluate", {}))
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
    if log.rating is not None and min_rating is None:
        say("note: ratings are not used, every row counts; --min-rating keeps the high ones")
    for warning in log.lint():
        say(f"note: {warning}")
    if name is None:
        name = _default_split(log)
        _check_split(name, arguments)
    plan["split"] = {"name": name, **arguments}
    return log, splits.by_name(name, log, **arguments)


def _check_split(name: Any, arguments: Mapping[str, Any]) -> None:
    known = kinds(splits.SPLITS[choose("split", "split", name, list(splits.SPLITS))])
    known = {"name": str, **known}
    check(f"split.{name}", {n: k for n, k in known.items() if n != "log"}, arguments)


def _check_measure(rules: Mapping[str, Any]) -> None:
    check("evaluate", MEASURE, rules)
    for name, known in RULES.items():
        if rules.get(name) is not None:
            choose("evaluate", f"value of {name}", rules[name], known)
    cutoffs = as_list(rules.get("k", 1))
    if not cutoffs or min(cutoffs) < 1:
        raise SoftdexError(f"evaluate: expected cut-offs of at least 1, got {cutoffs}.")
    if "max_memory" in rules:
        parse_bytes(rules["max_memory"])


def _default_split(log: Interactions) -> str:
    if "test" in log.extra:
        name, why = "given", "the log has a column 'test'"
    elif log.time is not None:
        name, why = "leave_last", "the log has times"
    else:
        name, why = "per_user", "the log has no time"
    say(f"split: {name}, because {why}; --split chooses another")
    return name


def fit(plan: Plan, *, force: bool = False, resume: bool = False) -> tuple[Retriever, Result, Path]:
    """Train the recipe of a plan, measure it on the test part, and write the run folder.

    Config, log and checkpoints are in the folder from the start, so a run that is stopped can go
    on with `resume`.
    """
    name = plan.get("recipe")
    if name is None:
        raise SoftdexError(f"fit: expected a recipe. Known: {', '.join(recipes.names())}.")
    _check_recipe(name, plan)
    out = Path(plan.setdefault("out", f"runs/{name}"))
    stopped = (out / CHECKPOINT).exists()
    _check_folder(out, stopped=stopped, force=force, resume=resume)
    _, (train, valid, test) = prepare(plan)
    _check_writable(out)
    began = time.perf_counter()
    fitting = {"folder": out, "resume": resume, **plan.get("train", {})}
    before = (out / CONFIG).read_bytes() if (out / CONFIG).exists() else None
    (out / ASIDE).unlink(missing_ok=True)
    if stopped and not resume:
        (out / CHECKPOINT).replace(out / ASIDE)
    try:
        if not (resume and stopped):
            save_text(out / CONFIG, to_toml(plan))
        if fitting.get("start") is not None:
            fitting["start"] = load(fitting["start"])
        if fitting.get("tune") is not None:
            model = _tune(plan, train, valid)
        else:
            model = train_model(name, train, valid=valid, **fitting, **plan.get("options", {}))
    except BaseException as error:
        if not (out / CHECKPOINT).exists():  # nothing to go on with: leave the folder as it was
            _put_back(out, before)
        elif isinstance(error, KeyboardInterrupt):
            say(f"stopped. Go on with: softdex fit --out {out} --resume")
        raise
    say(f"trained {name} in {time.perf_counter() - began:.1f} s")
    model.save(out / MODEL_FILE)  # nothing that goes wrong from here on loses the training
    result = model.evaluate(test, **plan.get("evaluate", {}))
    model.info["metrics"]["test"] = dict(result)
    model.save(out / MODEL_FILE)
    save_text(out / METRICS, json.dumps(plain(summary(name, result)), indent=2) + "\n")
    for left in (CHECKPOINT, ASIDE):
        (out / left).unlink(missing_ok=True)
    return model, result, out


def _check_folder(out: Path, *, stopped: bool, force: bool, resume: bool) -> None:
    """Refuse to write over what was not given up."""
    if stopped and not force and not resume:
        raise SoftdexError(
            f"fit: {out} holds a run that was stopped. Pass --resume to go on with it, or --force "
            "to start again."
        )
    if (out / MODEL_FILE).exists() and not force and not (stopped and resume):
        raise SoftdexError(f"fit: {out} holds a model already. Pass --force to replace it.")
    if out.exists() and not out.is_dir():
        raise SoftdexError(f"fit: {out} is a file. Expected a folder for the run.")


def _check_recipe(name: str, plan: Plan) -> None:
    """Refuse what is wrong with the options before anything is read or written."""
    given, how = plan.get("options", {}), plan.get("train", {})
    if how.get("tune") is None:
        recipes.checked(name, given)
        return
    recipes.check_options(name, given)
    if how["tune"] < 1:
        raise SoftdexError(f"fit: expected --tune of at least 1, got {how['tune']}.")
    chosen = recipes.options(name) | given
    if how.get("refit") and ("epochs" not in chosen or "epochs" in recipes.unread(name, chosen)):
        raise SoftdexError(f"fit: {name} is found in one step: there is nothing to --refit.")


def _tune(plan: Plan, train: Interactions, valid: Holdout | None) -> Retriever:
    """The model of the best of many settings, which becomes the plan's."""
    how, name = plan["train"], plan["recipe"]
    if valid is None:
        raise SoftdexError("fit: --tune needs a validation part. Choose a split that has one.")
    if how.get("start") is not None:
        raise SoftdexError("fit: --tune looks for settings from scratch. Leave --start out.")
    limits = {"settings": how["tune"], "max_memory": how.get("max_memory")}
    found = tune(name, train, valid, **limits, **plan.get("options", {}))
    say(str(found))
    if how.get("refit") and "training" not in found.model.info:
        raise SoftdexError(f"fit: {name} is found in one step: there is nothing to --refit.")
    plan["options"] = found.options
    plan["train"] = {n: v for n, v in how.items() if n != "tune"}
    out = Path(plan["out"])
    save_text(out / CONFIG, to_toml(plan))
    save_text(out / SETTINGS, json.dumps(plain(list(found.settings)), indent=1) + "\n")
    if not how.get("refit"):
        return found.model
    return refitted(name, found.model.options, train, valid, found.model)


def _put_back(out: Path, config: bytes | None) -> None:
    """What was there before a fit that came to nothing, or no folder at all."""
    if (out / ASIDE).exists():
        (out / ASIDE).replace(out / CHECKPOINT)
    if config is not None:
        write_atomically(out / CONFIG, lambda file: file.write(config))
        return
    for name in (CONFIG, SETTINGS):
        (out / name).unlink(missing_ok=True)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()


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
        plan.setdefault("data", {})["source"] = source
    plan["evaluate"] = {**plan.get("evaluate", {}), **overrides}
    _, (_, _, test) = prepare(plan)
    trained = (model.info.get("card") or {}).get("sha256")
    if trained != test.card.sha256:
        raise DataError(
            f"evaluate: the data has changed since {folder} was trained (its split is "
            f"{str(trained)[:8]}, now it is {test.card.sha256[:8]}). Train again, or pass --data."
        )
    return model, model.evaluate(test, **plan["evaluate"])


def _check_writable(folder: Path) -> None:
    """Find out before training, not after."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except (OSError, ValueError) as error:
        raise SoftdexError(f"fit: cannot write into {folder} ({error}).") from None


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
    write_atomically(path, lambda file: file.write(text.encode(errors="surrogateescape")))


def save_table(path: Path, table: pa.Table) -> None:
    """Write a Parquet file whole or not at all."""
    write_atomically(path, lambda file: pq.write_table(table, file))
