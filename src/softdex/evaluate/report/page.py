"""Page: a report as one HTML file that loads nothing, runs nothing and works when it is mailed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from softdex.drawing import esc
from softdex.errors import in_number
from softdex.evaluate.report.answer import answer
from softdex.evaluate.report.curves import curves
from softdex.evaluate.report.duels import duels
from softdex.evaluate.report.front import front
from softdex.evaluate.report.groups import groups
from softdex.evaluate.report.parts import bdi, folded, section
from softdex.evaluate.report.shelves import shelves
from softdex.evaluate.report.study import Study
from softdex.evaluate.report.users import users
from softdex.style import style
from softdex.tables import cell as plain

VIEWS = (
    ("answer", "The answer"), ("duels", "Who beats whom"), ("front", "Training time"),
    ("groups", "Where it works"), ("lists", "Lists"), ("users", "Users"), ("training", "Training"),
    ("protocol", "Protocol"),
)  # fmt: skip
SECTIONS = (answer, duels, front, groups, shelves, users, curves)
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # of the browser: load and run nothing
FOLDED = ("Options",)  # facts that are long


def build(title: str, lead: str, study: Study) -> str:
    """Return a report as HTML.

    Args:
        title, lead: the heading and the sentence below it.
        study: what it is made of.
    """
    below = f"<p class='lead'>{esc(lead)}</p>" if lead else ""
    body = "".join(each(study) for each in SECTIONS) + _card(study)
    own = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>"
        f"<title>{esc(title)}</title><style>{style()}{own}</style></head>"
        f"<body><main class='page report'><h1>{esc(title)}</h1>{below}{_facts(study)}"
        f"{_contents(body)}{body}</main>"
        "</body></html>\n"
    )


# inside ------------------------------------------------------------------------------------------


def _facts(study: Study) -> str:
    """Return the size of the comparison."""
    best = study.best
    events = int(best.item_counts.sum())
    facts = {
        "models": len(study.names), "users asked": best.num_users, "items": len(best.item_counts),
        "training events": events,
    }  # fmt: skip
    entries = "".join(
        f"<div><dt>{in_number(v, n)}</dt><dd>{v:,}</dd></div>" for n, v in facts.items()
    )
    split = f"<div><dt>split {esc(best.card.sha256[:8])}</dt><dd>{esc(best.card.name)}</dd></div>"
    return f"<dl class='facts'>{entries}{split}</dl>"


def _contents(body: str) -> str:
    """Return links to the sections that there are."""
    there = ((name, title) for name, title in VIEWS if f"<section id='{name}'>" in body)
    links = "".join(f"<a href='#{name}'>{title}</a>" for name, title in there)
    return f"<nav aria-label='Sections'>{links}</nav>"


def _card(study: Study) -> str:
    """Return the protocol card."""
    card = study.best.card
    rule = {"rule": card.name, **card.arguments, "conventions": study.best.conventions}
    hashes = {"log sha256": card.data_sha256, "split sha256": card.sha256}
    parts = [
        _sheet("Split", rule | hashes | {f"note {i}": n for i, n in enumerate(card.notes, 1)}),
        _sheet("Counts", card.counts),
        *(_sheet(each, values) for each, values in study.facts.items() if each not in FOLDED),
    ]
    more = (folded(n, _sheet(n, study.facts[n])) for n in FOLDED if study.facts.get(n))
    sheets = f"<div class='sheets'>{''.join(parts)}</div>"
    return section("protocol", "Protocol card", sheets, *more)


def _sheet(title: str, values: Mapping[str, Any]) -> str:
    """Return facts as a list of terms."""
    shown = {k: v for k, v in values.items() if v not in ([], {}, "", None)}
    rows = "".join(f"<dt>{esc(k)}</dt><dd>{bdi(_words(v))}</dd>" for k, v in shown.items())
    return f"<div class='sheet'><h3>{esc(title)}</h3><dl>{rows}</dl></div>" if rows else ""


def _words(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_words(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_words(v) for v in value)
    return plain(value)
