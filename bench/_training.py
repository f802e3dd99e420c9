"""Runs of a recipe for a file of lines: skipped if there, trained with a clock, written."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import softdex as sdx
from softdex.fit import refitted, train_once
from softdex.solve.checkpoint import LOG


class Trained(NamedTuple):
    """A model and its training.

    Attributes:
        model: the model.
        history: a record per epoch; `trained` in it is the training seconds so far, without those
            of measuring. A search of settings leaves no seconds.
        seconds: of the search and the training; of the training alone where that was `timed`.
    """

    model: sdx.Retriever
    history: list[dict[str, Any]]
    seconds: float

    def figures(self) -> dict[str, Any]:
        """What every line says of a training."""
        return {
            "recipe": self.model.recipe,
            "options": self.model.options,
            "validation": max((h["metric"] for h in self.history if "metric" in h), default=None),
            "best_epoch": (self.model.card.training or {}).get("best_epoch"),
            "history": self.history,
            "seconds": round(self.seconds, 1),
            "seconds_per_epoch": round(self.seconds / max(1, len(self.history)), 3),
        }


def key_of(path: Path, asked: list[Any]) -> str | None:
    """The key of the run that these words ask for; None, said, if the file has it already."""
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    if path.exists() and key in path.read_text():
        print(f"this run is already in {path}")
        return None
    return key


def trained(
    recipe: str,
    train: sdx.Interactions,
    valid: sdx.Holdout | None,
    options: dict[str, Any],
    *,
    tune: int | None = None,
    timed: bool = False,
    refit: bool = False,
) -> Trained:
    """Train a recipe.

    Args:
        recipe, train, valid, options: as in `fit`.
        tune: settings of the other options to try on validation first.
        timed: let the seconds per epoch be those of a process that has trained before: train one
            epoch first, or after a search the best setting again.
        refit: train again on train and validation; the history is that of the first training.
    """
    began = time.perf_counter()
    if tune is not None:
        if valid is None:
            raise sdx.DataError(f"tune={tune}: there is no validation part to tune on")
        found = sdx.tune(recipe, train, valid, settings=tune, **options)
        if not timed and not refit:
            history = (found.model.card.training or {"history": []})["history"]
            return Trained(found.model, history, time.perf_counter() - began)
        options = dict(found.options)
    chosen = sdx.recipes.options(recipe) | sdx.recipes.checked(recipe, options)
    if timed and tune is None and "epochs" in chosen:
        train_once(recipe, chosen | {"epochs": 1}, train, valid)
    began = time.perf_counter() if timed else began
    with TemporaryDirectory() as folder:
        model = train_once(recipe, chosen, train, valid, folder=Path(folder))
        log = Path(folder, LOG)
        lines = log.read_text().splitlines() if log.exists() else []
    history = [json.loads(line) for line in lines]
    if valid is not None:
        model.card = model.card.measured("valid", model.evaluate(valid))  # as `fit` does
    if refit and valid is not None:
        if model.card.training is None:
            raise sdx.DataError(
                f"{recipe} has no epochs to choose. Pass a task that ends in -valid"
            )
        model = refitted(recipe, chosen, train, valid, model, start=None, max_memory=None)
    return Trained(model, history, time.perf_counter() - began)


def write(path: Path, line: dict[str, Any], shown: dict[str, Any]) -> None:
    """Append a line to a file, and print what of it is shown."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(shown | {"file": str(path)}), flush=True)
