"""Training: the records of the epochs, from the log of the run folder or from the model's card."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from softdex.messages import METRIC
from softdex.serve.study import Study

LOG = "log.jsonl"
MOST = 10_000  # records, at most


def training(study: Study) -> dict[str, Any]:
    """Return the records of a training, one per epoch, which was kept, and by which metric."""
    card = study.model.card.training or {}
    file = None if study.folder is None else study.folder / LOG
    logged = [] if file is None else records(file)
    return {
        "source": LOG if logged else "card" if card.get("history") else None,
        "recipe": study.model.recipe,
        "metric": METRIC,
        "best_epoch": card.get("best_epoch"),
        "records": [_plain(each) for each in (logged or card.get("history") or [])[-MOST:]],
    }


def records(file: Path) -> list[dict[str, Any]]:
    """Return the records of a log, without lines that are none: a run may be writing one."""
    found = []
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


# inside ------------------------------------------------------------------------------------------


def _plain(record: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a record."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, (int, float)) and math.isfinite(value)
    }
