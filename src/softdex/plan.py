"""Plans: what a run reads, trains and evaluates, as the TOML file of its folder says."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softdex.data import split as splits
from softdex.data.holdout import Holdout, Split
from softdex.data.interactions import Interactions
from softdex.data.read import read
from softdex.errors import DataError, SoftdexError, choose
from softdex.evaluate.evaluate import check_rules
from softdex.messages import say
from softdex.model.artifact import plain
from softdex.model.retriever import Retriever
from softdex.options import check, kinds

CONFIG = "config.toml"
PREPARE = {"min_rating": float | None, "k_core": int | None}
PATHS = dict.fromkeys(("source", "items", "users"), str | list[str])  # TOML holds no tables
PATHS["events"] = str
EVALUATE = {n: k for n, k in kinds(Retriever.evaluate).items() if n not in ("self", "holdout")}
SECTIONS: dict[str, dict[str, Any] | None] = {
    "data": {n: k for n, k in kinds(read).items() if n != "quiet"} | PREPARE | PATHS,
    "split": None,
    "options": None,
    "train": {
        "refit": bool,
        "max_memory": int | str | None,
        "start": str | None,
        "tune": int,
        "shard": bool,
    },
    "evaluate": EVALUATE,
}
Plan = dict[str, Any]


def read_config(path: Path) -> Plan:
    """Read a plan from a TOML file; refuse unknown names, with the nearest known one."""
    if path.exists() and not path.is_file():
        raise SoftdexError(f"config: {path} is no file. Expected a TOML file.")
    try:
        plan = tomllib.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
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
    """Return a plan as TOML text."""
    lines = [f"{k} = {_toml(v)}" for k, v in plan.items() if k not in SECTIONS]
    for name in SECTIONS:
        entries = {k: v for k, v in plan.get(name, {}).items() if v is not None}
        if entries:
            lines += ["", f"[{name}]", *(f"{k} = {_toml(v)}" for k, v in entries.items())]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    """Format a value as JSON, which is TOML except for one control character."""
    return json.dumps(plain(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def prepare(plan: Plan) -> tuple[Interactions, Split]:
    """Read the log of a plan and split it, after checking all that needs no data."""
    data, arguments = dict(plan.get("data", {})), dict(plan.get("split", {}))
    if not data.get("source"):
        raise SoftdexError("expected a log: a path, or source = ... under [data] in the config.")
    name = arguments.pop("name", None)
    if name is not None:
        _check_split(name, arguments)
    check_rules(plan.get("evaluate", {}))
    min_rating, k_core = (data.pop(name, None) for name in PREPARE)
    whole = read(data.pop("source"), **data)
    if whole.events is not None:  # a server may append to it meanwhile
        plan["data"]["events_until"] = whole.events["until"]
    log = _filtered(whole, min_rating, k_core)
    check_rules(plan.get("evaluate", {}), log.num_items)
    if name is None and log.time is None and "test" not in log.extra:
        raise DataError(
            "split: the log has no time, so the last events of a user are not known. Name its "
            "column with --time, or ask for a random split with --split random."
        )
    if name is None:
        name, why = splits.default_name(log)
        say(f"split: {name}, because {why}; --split chooses another")
        _check_split(name, arguments)
    plan["split"] = {"name": name, **arguments}
    return log, splits.by_name(name, log, **arguments)


def tested(model: Retriever, plan: Plan, folder: Path) -> Holdout:
    """Return the test part of a plan, if it is that of the split that a model was trained with.

    Args:
        model: of the run.
        plan: of the run; `leak="allow"` under [evaluate] takes another split all the same.
        folder: of the run, for the message.
    """
    _, (_, _, test) = prepare(plan)
    trained = (model.card.split or {}).get("sha256")
    comparable = model.card.selected is not None  # its hashes are of this version
    allowed = plan.get("evaluate", {}).get("leak") == "allow"
    if not comparable or allowed or trained == test.card.sha256:
        return test
    if (model.card.split or {}).get("data_sha256") == test.card.data_sha256:
        raise DataError(
            f"evaluate: the rows are in another order than when {folder} was trained, and its "
            "split depends on it (events of equal time, or drawn at random). Train again, pass "
            "the file in its first order as --data, or --leak allow to evaluate all the same."
        )
    raise DataError(
        f"evaluate: the data has changed since {folder} was trained (its split is "
        f"{str(trained)[:8]}, now it is {test.card.sha256[:8]}). Train again, pass --data, or "
        "--leak allow to evaluate on it all the same."
    )


def _filtered(log: Interactions, min_rating: float | None, k_core: int | None) -> Interactions:
    """Drop rows by rating and by count, and print what the log warns of."""
    if min_rating is not None:
        log = log.min_rating(min_rating)
        say(f"min_rating {min_rating:g} -> {log!r}")
    if k_core is not None:
        log = log.k_core(k_core)
        say(f"{k_core}-core -> {log!r}")
    if not len(log):
        raise DataError("no row is left after min_rating and k_core. Lower them.")
    if log.rating is not None and min_rating is None:
        say("note: ratings are ignored, every row counts; --min-rating keeps the high ones")
    for warning in log.lint():
        say(f"note: {warning}")
    return log


def _check_split(name: Any, arguments: Mapping[str, Any]) -> None:
    known = kinds(splits.SPLITS[choose("split", "split", name, list(splits.SPLITS))])
    known = {"name": str, **known}
    check(f"split.{name}", {n: k for n, k in known.items() if n != "log"}, arguments)
