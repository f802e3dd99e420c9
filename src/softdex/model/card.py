"""Record how a model was made and what it scored. A card never changes; a result makes another."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import pyarrow as pa
import scipy
import torch

from softdex import notebook
from softdex.data.holdout import Holdout
from softdex.data.interactions import Interactions

ENTRIES = (
    "recipe", "options", "data", "card", "metrics", "training", "refitted", "selected", "warnings",
    "origins", "events",
)  # fmt: skip
"""Names of a card's entries in a manifest."""


@final
@dataclass(frozen=True)
class Card:
    """How a model was made and what it scored; saved with it, readable without softdex.

    Attributes:
        recipe: name of the recipe.
        options: value of every option of the recipe.
        data: SHA-256 of the events of the training log, in any order, or None. Events of equal time
            keep the order of their rows, and some recipes train on that order.
        split: card of the split that the log is the training part of, or None.
        metrics: metrics per part of the split: `metrics["valid"]["recall@20"]`.
        training: `best_epoch`, counted from 1, `history`, one record per epoch, and `cut` if time
            ended it. None for recipes that are solved in one step.
        refitted: whether the model was trained again on train and validation together.
        selected: identity of the holdout that the epoch or the options were chosen by, "" if there
            was none. None in files of earlier versions, whose hashes cannot be compared with ours.
        warnings: what to know before trusting the metrics.
        origins: per model that this one took vectors or a tree over from (`start=`, `leaves=`), and
            per model that those did: hashes of the log it was trained on (`data`), of the log of
            its split (`log`) and of its split (`split`), `selected` and `refitted`.
        events: what the log has from an event file, as `Interactions.events`, or None.
        notes: entries of a model file that this version does not know; they are kept.
    """

    recipe: str
    options: Mapping[str, Any] = field(default_factory=dict)
    data: str | None = None
    split: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] | None = None
    refitted: bool = False
    selected: str | None = None
    warnings: Sequence[str] = ()
    origins: Sequence[Mapping[str, Any]] = ()
    events: Mapping[str, Any] | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)

    def measured(self, part: str, metrics: Mapping[str, float]) -> Card:
        """Return this card with the metrics of a part (`valid`, `test`) added or replaced."""
        return replace(self, metrics={**self.metrics, part: dict(metrics)})

    def chosen_by(self, holdout: Holdout) -> Card:
        """Return this card with the holdout that epoch and options are chosen by."""
        return replace(self, selected=holdout.card.identity)

    def started_from(self, cards: Sequence[Card]) -> Card:
        """Return this card with the models that vectors or a tree were taken over from."""
        found = [*self.origins]
        for card in cards:
            found += [each for each in (_origin(card), *card.origins) if each not in found]
        return replace(self, origins=tuple(found))

    def entries(self) -> dict[str, Any]:
        """Return the card as entries of a manifest."""
        entries = {
            **self.notes,
            "recipe": self.recipe,
            "options": self.options,
            "card": self.split,
            "metrics": self.metrics,
        }
        if self.data is not None:
            entries["data"] = self.data
        if self.training is not None:
            entries["training"] = self.training
        if self.refitted:
            entries["refitted"] = True
        if self.selected is not None:
            entries["selected"] = self.selected
        if self.warnings:
            entries["warnings"] = list(self.warnings)
        if self.origins:
            entries["origins"] = list(self.origins)
        if self.events is not None:
            entries["events"] = dict(self.events)
        return entries


def card_of(recipe: str, options: Mapping[str, Any], log: Interactions) -> Card:
    """Return the card of a model that is about to be trained on a log."""
    split = None if log.card is None else log.card.json()
    return Card(recipe, options, log.sha256, split, selected="", events=log.events)


def card_from(manifest: Mapping[str, Any], notes: Mapping[str, Any]) -> Card:
    """Read a card back from a manifest; `notes` are its other entries."""
    return Card(
        manifest["recipe"],
        manifest["options"],
        manifest.get("data"),
        manifest.get("card"),
        manifest.get("metrics", {}),
        manifest.get("training"),
        manifest.get("refitted", False),
        manifest.get("selected"),
        manifest.get("warnings", ()),
        tuple(manifest.get("origins", ())),
        manifest.get("events"),
        notes,
    )


def _origin(card: Card) -> dict[str, Any]:
    """Return what is kept of the card of a model that another started from; a file of an earlier
    version has no hashes that can be compared."""
    known = card.selected is not None
    split = (card.split or {}) if known else {}
    return {
        "data": (card.data or "") if known else "",
        "log": split.get("data_sha256", ""),
        "split": split.get("sha256", ""),
        "selected": card.selected or "",
        "refitted": card.refitted,
    }


def versions() -> dict[str, str]:
    """Return the versions of softdex, Python and the libraries that decide a model's numbers."""
    from softdex import __version__

    return {
        "softdex": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "pyarrow": pa.__version__,
    }


def as_html(card: Card) -> str:
    """Return what a model is and how good, for a notebook."""
    from softdex.recipes.catalogue import names, options  # loads every recipe

    defaults = options(card.recipe) if card.recipe in names() else {}
    own = {n: v for n, v in card.options.items() if n not in defaults or defaults[n] != v}
    known = {"options": ", ".join(f"{name} {value}" for name, value in own.items()) or "defaults"}
    if card.training is not None:
        best, count = card.training["best_epoch"], len(card.training["history"])
        known["epochs"] = f"{count}, best {best}"
    parts = card.metrics.values()
    shown = [name for part in parts for name in part if name.startswith(("recall@", "ndcg@"))]
    order = sorted(dict.fromkeys(shown), key=lambda name: (name[0], int(name.partition("@")[2])))
    rows = [[name, *(part.get(name) for part in parts)] for name in order]
    measured = notebook.table(["", *card.metrics], rows) if rows else ""
    return notebook.facts(known) + measured + notebook.notes(card.warnings)
