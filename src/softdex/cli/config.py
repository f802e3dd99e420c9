"""The config of a run: a TOML file, overridden by the options of the command line."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from softdex.cli.arguments import cutoffs, pairs, words
from softdex.cli.options import LogOptions
from softdex.plan import SECTIONS, Plan, read_config

OPTIONAL = ("time", "rating", "weight")
COLUMNS = ("user", "item", *OPTIONAL)


def plan_of(log: LogOptions, config: Path | None) -> Plan:
    """Return the plan of a config file, overridden by the options of the command line."""
    plan = read_config(config) if config else {}
    data, known = plan.setdefault("data", {}), SECTIONS["data"] or {}
    if log.events is not None:
        data.pop("events_until", None)
    for name, value in asdict(log).items():
        if name in known and value is not None:
            data[name] = _column(name, value) if name in COLUMNS else value
    if log.item_columns is not None:
        data["item_columns"] = words(log.item_columns, "--item-columns")
    split = plan.setdefault("split", {})
    if log.split_name:
        plan["split"] = split = {"name": log.split_name}
    split.update(pairs(log.split_option, "--split-option"))
    rules = {"k": cutoffs(log.k), "max_memory": log.max_memory}
    plan.setdefault("evaluate", {}).update({n: v for n, v in rules.items() if v})
    return plan


def _column(role: str, text: str) -> str | int | bool:
    """Parse a column: a name, a number, or `false` for none."""
    if role in OPTIONAL and text.lower() == "false":
        return False
    return int(text) if text.isdecimal() else text
