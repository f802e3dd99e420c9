"""A model that is served: its name, its seal, its pace and what it listed lately."""

from __future__ import annotations

import copy
import hashlib
import os
import time
from collections import deque
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from softdex.model.artifact import DIGEST, plain
from softdex.model.kinds import kind_of, saved_index, saved_tensors
from softdex.model.retriever import Retriever
from softdex.model.saving import MODEL_FILE, load
from softdex.serve.finder import Finder
from softdex.serve.live import Live
from softdex.serve.pace import Pace
from softdex.serve.study import Study

RECENT = 256  # requests that warm up the next model
LISTS = 200  # blocks of lists that coverage and popularity are taken over


@final
class Served:
    """A model under a name. It never changes; a swap makes another one.

    Attributes:
        name: what requests call it.
        model: answers.
        seal: SHA-256 of its file.
        path: its file or run folder, or None.
        pace: how long its lists take.
        loaded: when, in seconds since 1970.
        recent: latest requests, which warm up the next model.
        fallbacks: number of lists of the most popular items.
        lists: rows of items listed lately.
        live: the events of users since the model was trained, or None.
        study: what is measured of it for the page.
    """

    live: Live | None = None

    def __init__(self, name: str, model: Retriever, seal: str, path: Path | None) -> None:
        self.name, self.model, self.seal, self.path = name, model, seal, path
        self.short_seal = seal[:16]
        self.headers = (
            (b"x-model", _header(name)),
            (b"x-model-seal", self.short_seal.encode()),
        )
        self.pace, self.loaded = Pace(), time.time()
        self._paces: dict[str, Pace] = {}
        self.recent: deque[Any] = deque(maxlen=RECENT)
        self.fallbacks = 0
        self.lists: deque[np.ndarray] = deque(maxlen=LISTS)
        self.study = Study(model, path, None)

    def pace_of(self, work: str) -> Pace:
        """Return how long work other than lists for users takes, at first as long as these."""
        if work not in self._paces:
            self._paces[work] = copy.copy(self.pace)
        return self._paces[work]

    def entry(self) -> dict[str, Any]:
        """Return what a list of models says of it."""
        return {
            "name": self.name,
            "seal": self.seal,
            "recipe": self.model.recipe,
            "users": len(self.model.users),
            "items": len(self.model.items),
            "path": None if self.path is None else str(self.path),
            "loaded": round(self.loaded, 3),
            "capacity": round(self.pace.capacity),
        }

    def card(self) -> dict[str, Any]:
        """Return the model card."""
        model = self.model
        parts = {
            "encoder": kind_of(model.encoder),
            "scorer": kind_of(model.index.scorer),
            "index": kind_of(model.index),
            "temperature": model.temperature,
            "added": model.added,
            "removed": model.removed,
        }
        pace = {
            "requests_per_second": round(self.pace.capacity),
            "milliseconds_of_one": round((self.pace.fixed + self.pace.each) * 1e3, 3),
            "users_per_batch": self.pace.most,
        }
        found: dict[str, Any] = plain({**self.entry(), **model.card.entries(), **parts})
        if self.live is not None:
            found["live"] = {"reads": self.live.reads, "how": self.live.how}
        return found | {"capacity": pace}

    def listed(self) -> tuple[float, float]:
        """Return coverage, the share of items listed lately, and the mean popularity of the lists:
        0 for the rarest item, 1 for the most popular."""
        blocks = [*self.lists]
        if not blocks:
            return 0.0, 0.0
        rows = np.concatenate(blocks)
        coverage = len(np.unique(rows)) / len(self._ranks)
        return coverage, float(self._ranks[rows].mean()) if len(rows) else 0.0

    @cached_property
    def finder(self) -> Finder:
        """Finds users and items."""
        return Finder(self.model, self.study.facts["title"])

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Share of the items that are at most as popular, per item (I,)."""
        counts = self.model.item_counts
        at = np.searchsorted(np.sort(counts), counts, side="right")
        return (at / len(counts)).astype(np.float32)


def read(name: str, path: Path) -> Served:
    """Load a model under a name."""
    while True:
        before, model = seal_of(path), load(path)
        if before == (seal := seal_of(path)):  # else it was replaced meanwhile
            return Served(name, model, seal, path)


def seal_of(path: Path) -> str:
    """Return the seal of a file or run folder; without a file, nothing."""
    file = path / MODEL_FILE if path.is_dir() else path
    if not file.is_file():
        return ""
    with file.open("rb") as opened:
        opened.seek(max(0, opened.seek(0, os.SEEK_END) - DIGEST))
        return opened.read().decode("ascii", "replace")


def of_memory(name: str, model: Retriever) -> Served:
    """Serve a model that has no file; its seal is a hash of its keys and tensors."""
    digest = hashlib.sha256((model.users.sha256 + model.items.sha256).encode())
    tensors = saved_tensors(model.encoder, model.index.scorer) | saved_index(model.index)
    for key, tensor in sorted(tensors.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(key.encode())
        digest.update(flat.numpy().data)
    return Served(name, model, digest.hexdigest(), None)


def name_of(path: Path) -> str:
    """Return the name of a model that was given none: its file's or run folder's."""
    return path.resolve().name.removesuffix(".sdx") or "model"


def _header(text: str) -> bytes:
    return text.encode("ascii", "replace").translate(None, bytes(range(32)) + b"\x7f")
