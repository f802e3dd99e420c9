"""Save a model as one file, and load it; `model.artifact` has the format of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from softdex.data.keys import restore
from softdex.data.ragged import Ragged, empty
from softdex.errors import SoftdexError
from softdex.model import artifact
from softdex.model.card import ENTRIES, card_from, versions
from softdex.model.kinds import (
    NOT_INFO,
    check_parts,
    kind_of,
    rebuild,
    rebuilt_tower,
    saved_index,
    saved_tensors,
    saved_tower,
)
from softdex.model.parts import Known, Parts
from softdex.model.retriever import Retriever

MODEL_FILE = "model.sdx"  # of a run folder
CHANGES = {"temperature": (int, float), "added": dict, "removed": int, "drift": (int, float)}
"""What may change after training, and its type; a file has only what did change."""

ORIGIN = {"data": str, "log": str, "split": str, "selected": str, "refitted": bool}
EVENTS = {"store": str, "until": int, "events": int}
RECORDS = {"refitted": bool, "selected": str, "warnings": list, "origins": list, "events": dict}
"""Of the card."""


def save(model: Retriever, path: Path) -> None:
    """Write a model as one file; a failure leaves an older file as it was, and what `load` would
    refuse is not written."""
    kinds = {
        "encoder": kind_of(model.encoder),
        "scorer": kind_of(model.index.scorer),
        "index": kind_of(model.index),
    }
    try:
        check_parts(model.encoder, model.index)
    except ValueError as error:
        raise SoftdexError(f"save: a file of this model could not be loaded ({error}).") from None
    tensors = saved_tensors(model.encoder, model.index.scorer) | saved_index(model.index)
    towers: dict[str, Any] = {}
    for what, tower in (("tower", model.tower), ("user_tower", model.user_tower)):
        found, entry = saved_tower(tower, what)
        tensors, towers = tensors | found, towers | entry
    tensors["seen.indptr"] = torch.tensor(model.seen.indptr.astype(np.int64))
    tensors["seen.ids"] = torch.tensor(model.seen.ids.astype(np.int32))
    tensors["item_counts"] = torch.tensor(model.item_counts.astype(np.int64))
    manifest = {
        **model.card.entries(),
        **changes(model),
        **towers,
        **kinds,
        "softdex": versions(),
    }
    items = pa.table({"key": model.items.all()})
    if model.item_table is not None:
        for name in model.item_table.column_names:
            items = items.append_column(name, model.item_table[name])
    users = pa.table({"key": model.users.all()})
    artifact.write(path, artifact.Contents(manifest, tensors, users, items))


def changes(model: Retriever) -> dict[str, Any]:
    """Return what has changed since a model was trained, as entries of its manifest."""
    found = {
        "temperature": (model.temperature, 1.0),
        "added": (model.added, {}),
        "removed": (model.removed, 0),
        "drift": (model.drift, 0.0),
    }
    return {name: now for name, (now, before) in found.items() if now != before}


def load(path: str | Path) -> Retriever:
    """Load a model.

    Loading never runs code from the file, and refuses a file that is damaged, foreign, or written
    by a newer version.

    Args:
        path: a file written by `Retriever.save`, or the run folder of `softdex fit`.
    """
    path = Path(path)
    with artifact.refused(path):
        contents = artifact.read(path / MODEL_FILE if path.is_dir() else path)
        model = _rebuilt(contents)
        model.search(np.zeros(1, np.int64), empty(1), 1)  # encoder and scorer fit together
    return model


def _rebuilt(contents: artifact.Contents) -> Retriever:
    """Rebuild the model of a file, once everything in it is known to fit together."""
    encoder, index = rebuild(contents)
    manifest, tensors, users, items = contents
    _check_changes(manifest)
    encoder.eval()
    index.scorer.eval()
    towers = (rebuilt_tower(contents, what) for what in ("tower", "user_tower"))
    known = Known(
        restore(users["key"]),
        restore(items.column(0)),
        Ragged(tensors["seen.indptr"].numpy(), tensors["seen.ids"].numpy()),
        tensors["item_counts"].numpy(),
        items.remove_column(0),
    )
    named = {*NOT_INFO, *ENTRIES, *CHANGES}
    card = card_from(manifest, {n: value for n, value in manifest.items() if n not in named})
    model = Retriever(card, Parts(encoder, index, *towers), known)
    model.temperature = float(manifest.get("temperature", 1.0))
    model.added = manifest.get("added", {})
    model.removed, model.drift = manifest.get("removed", 0), manifest.get("drift", 0.0)
    return model


def _check_changes(manifest: dict[str, Any]) -> None:
    """Refuse changes that cannot have happened."""
    artifact.check_kinds(manifest, CHANGES | RECORDS, needed=False)
    artifact.check_kinds(manifest.get("added", {}), {"users": int, "items": int}, needed=False)
    if "events" in manifest:
        artifact.check_kinds(manifest["events"], EVENTS, needed=True)
    for origin in manifest.get("origins", []):
        artifact.check_kinds({"origin": origin}, {"origin": dict}, needed=True)
        artifact.check_kinds(origin, ORIGIN, needed=True)
