"""Store: trained models with their seconds and validation metrics, in memory or in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from softdex.data.holdout import Split
from softdex.errors import SoftdexError
from softdex.files import save_text
from softdex.model.artifact import plain
from softdex.model.retriever import Retriever
from softdex.model.saving import MODEL_FILE, load
from softdex.solve.checkpoint import FILE as CHECKPOINT

LEDGER = "compare.json"


@final
class Store:
    """Models of a comparison: each as `NAME/model.sdx` in a folder, or in memory without one.

    Args:
        folder: also holds `compare.json`, and checkpoints of what is being trained.
        split: what recipes are trained on; a folder that began with another one is refused.
        options: values of all options, per recipe; a folder with others is refused.
    """

    def __init__(
        self, folder: Path | None, split: Split, options: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.folder, self.split = folder, _identity(split)
        self.options: dict[str, Any] = {n: plain(dict(given)) for n, given in options.items()}
        self.models: dict[str, Retriever] = {}
        self.entries: dict[str, dict[str, Any]] = {}
        if folder is not None:
            self.entries = self._read(folder)
            self._write()

    def place(self, name: str) -> Path | None:
        """The folder of a recipe."""
        return None if self.folder is None else self.folder / name

    def can_resume(self, name: str) -> bool:
        """Whether a checkpoint of the recipe is there."""
        place = self.place(name)
        return place is not None and (place / CHECKPOINT).exists()

    def trained(self) -> list[str]:
        """The recipes asked for that have a model, in the order asked."""
        return [name for name in self.options if "seconds" in self.entries.get(name, {})]

    def is_done(self, name: str, budget: float) -> bool:
        """Whether a recipe is trained, as far as this budget can take it."""
        entry = self.entries.get(name, {})
        cut: float | None = entry.get("cut")
        return "seconds" in entry and (cut is None or budget <= cut)

    def spent(self) -> float:
        """Seconds of training and validation so far, and those that the test part will take."""
        entries = [self.entries[name] for name in self.trained()]
        return sum(entry["seconds"] + 2 * entry["measuring"] for entry in entries)

    def begin(self, name: str) -> None:
        """Note with which options a recipe is trained."""
        self.entries[name] = {"options": self.options[name], **self.entries.get(name, {})}
        self._write()

    def keep(self, name: str, model: Retriever, **entry: Any) -> None:
        """Keep a trained model.

        Args:
            name: of the recipe.
            model: what it trained.
            entry: `seconds` of training, `measuring` on validation, the metric there (`valid`), the
                budget that ended it (`cut`), or None, and bytes of `memory` where they are known.
        """
        self.save(name, model)
        self.entries[name] = {"options": self.options[name], **entry}
        self._write()
        place = self.place(name)
        if place is not None and entry["cut"] is None:
            (place / CHECKPOINT).unlink(missing_ok=True)

    def save(self, name: str, model: Retriever) -> None:
        """Replace a model, which has another card now."""
        place = self.place(name)
        if place is None:
            self.models[name] = model
        else:
            model.save(place / MODEL_FILE)

    def model(self, name: str) -> Retriever:
        """The model of a recipe."""
        place = self.place(name)
        return self.models[name] if place is None else load(place)

    def _write(self) -> None:
        if self.folder is not None:
            ledger = {"split": self.split, "recipes": self.entries}
            save_text(self.folder / LEDGER, json.dumps(ledger, indent=1) + "\n")

    def _read(self, folder: Path) -> dict[str, dict[str, Any]]:
        """What a folder holds already; raises if it is not of this comparison."""
        path = folder / LEDGER
        if not path.exists():
            taken = [name for name in self.options if (folder / name / MODEL_FILE).exists()]
            if taken:
                raise SoftdexError(
                    f"compare: {folder / taken[0]} holds a model of another run. Choose another "
                    "folder."
                )
            return {}
        try:
            ledger = json.loads(path.read_text(encoding="utf-8"))
            entries = {name: dict(entry) for name, entry in ledger["recipes"].items()}
            options = {name: dict(entry["options"]) for name, entry in entries.items()}
            split = ledger["split"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise SoftdexError(
                f"compare: {path} is damaged ({str(error)[:100]}). Choose another folder."
            ) from None
        if split != self.split:
            raise SoftdexError(
                f"compare: {folder} holds a comparison on other data or another split (its split "
                f"is {str(split)[:8]}, now it is {self.split[:8]}). Use those, or another folder."
            )
        for name, given in self.options.items():
            before = options.get(name, given)
            changed = [o for o in {**given, **before} if given.get(o) != before.get(o)]
            if changed:
                raise SoftdexError(
                    f"compare: {folder / name} was trained with other options "
                    f"({', '.join(changed)}). Use the same ones, or another folder."
                )
        return entries


def _identity(split: Split) -> str:
    """The hash of a split, or of parts that were put together by hand."""
    cards = [None if part is None else part.card for part in split]
    hashes = {card.sha256 for card in cards if card is not None}
    if split.train.card is not None and len(hashes) == 1:
        return split.card.sha256
    whole = f"{split.train.sha256} {[card and card.identity for card in cards[1:]]}"
    return hashlib.sha256(whole.encode()).hexdigest()
