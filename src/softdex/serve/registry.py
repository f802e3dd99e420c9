"""Models by name, and their hot swap: read, check, build, warm up, then swap one reference.

A request ends on the model that it began with. If anything fails, the old model stays and the
reason is kept.
"""

from __future__ import annotations

import hashlib
import stat
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, final

import numpy as np
import pyarrow as pa

from softdex.data.holdout import Holdout
from softdex.errors import SoftdexError, did_you_mean
from softdex.machine import free_memory
from softdex.messages import silence
from softdex.model.retriever import Retriever
from softdex.model.saving import MODEL_FILE
from softdex.serve.answers import Asked, group_of, recommend, similar
from softdex.serve.batcher import settled
from softdex.serve.events import Events
from softdex.serve.live import Live
from softdex.serve.pace import Pace
from softdex.serve.problems import Problem
from softdex.serve.served import Served, of_memory, read
from softdex.serve.study import Study
from softdex.serve.words import Key, Recommend, Similar

SHARED = 0.5  # of the served items must be in the next model
COPIES = 3  # of its file that a model needs while it is loaded
MEASURE = 0.2  # seconds per batch size
REASON = 300  # characters


class Swap(NamedTuple):
    """A swap that was done."""

    name: str
    old: str
    new: str
    seconds: float


@final
class Registry:
    """The served models.

    Args:
        models: the first is the default.
        shares: per model, its share of the users; requests that name no model go by them.
        note: is told the name and the result of each reload.
        events: live events, which the lists of all models follow; or None.
        holdout: what was held out of the training of the models that it fits, or None.
    """

    def __init__(
        self,
        models: Sequence[Served],
        shares: Mapping[str, float] | None = None,
        note: Callable[[str, str], None] = lambda name, result: None,
        events: Events | None = None,
        holdout: Holdout | None = None,
    ) -> None:
        self.models, self.events = {each.name: each for each in models}, events
        self.holdout = holdout
        if len(self.models) < len(models):
            raise SoftdexError(
                "serve: two models have the same name. Name them: NAME=PATH NAME=PATH."
            )
        self.default = models[0].name
        self.shares = _checked(dict(shares or {}), self.models)
        self.troubles: dict[str, str] = {}
        self._note, self._loading = note, threading.Lock()

    def of(self, name: str | None, user: object = None) -> Served:
        """Return the model of a name; without one, the variant of the user or the default."""
        if name is None:
            return self.models[self._variant(user)]
        found = self.models.get(name)
        if found is None:
            raise Problem(404, f"No model {name!r} is served. {did_you_mean(name, self.models)}")
        return found

    def _variant(self, user: object) -> str:
        if not self.shares or user is None:
            return self.default
        digest = hashlib.blake2b(str(user).encode("utf-8", "surrogatepass"), digest_size=8).digest()
        point = int.from_bytes(digest, "big") / 2**64
        for name, share in self.shares.items():
            point -= share
            if point < 0:
                return name
        return self.default

    def reload(
        self,
        name: str,
        path: Path | None = None,
        *,
        other_catalogue: bool = False,
        new: bool = False,
    ) -> Swap:
        """Load a model and swap it in; on failure the old one stays. Not in the event loop.

        Args:
            name: of a served model.
            path: its next file or run folder; None reads the same again.
            other_catalogue: whether most served items may be missing in it.
            new: whether the name may be a new one.
        """
        if not self._loading.acquire(blocking=False):
            raise Problem(409, "Another model is being loaded. Try again when it is done.")
        began = time.perf_counter()
        try:
            old = self.models.get(name)
            if old is None and not new:
                self.of(name)  # raises
            path = path if path is not None or old is None else old.path
            if path is None:
                raise SoftdexError(
                    f"reload: {name} was served from memory. Give the path of a file."
                )
            _check_file(path)
            found = read(name, path)
            _follow(found, self.events)
            found.study = study_of(found, self.holdout)
            if old is not None:
                _check_catalogue(old, found, other_catalogue=other_catalogue)
                found.recent = old.recent
            warm_up(found)
            self.models = {**self.models, name: found}
            self.troubles = {n: text for n, text in self.troubles.items() if n != name}
        except Exception as error:
            if not isinstance(error, Problem):
                self._fail(name, error)
            raise
        finally:
            self._loading.release()
        self._note(name, "ok")
        seconds = round(time.perf_counter() - began, 3)
        return Swap(name, "" if old is None else old.seal, found.seal, seconds)

    def _fail(self, name: str, error: Exception) -> None:
        when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        known = isinstance(error, (SoftdexError, OSError, MemoryError))
        text = str(error) if known else f"{type(error).__name__}: {error}"
        self.troubles = {**self.troubles, name: f"{when} {text[:REASON]}"}
        self._note(name, "failed")


def registry_of(
    models: Mapping[str, Retriever | Path],
    shares: Mapping[str, float] | None = None,
    note: Callable[[str, str], None] = lambda name, result: None,
    events: Events | None = None,
    holdout: Holdout | None = None,
) -> Registry:
    """Load and warm up models, and return their registry."""
    found = []
    for name, each in models.items():
        if isinstance(each, Path):
            _check_file(each)
        found.append(read(name, each) if isinstance(each, Path) else of_memory(name, each))
        _follow(found[-1], events)
        found[-1].study = study_of(found[-1], holdout)
        warm_up(found[-1])
    return Registry(found, shares, note, events, holdout)


def study_of(served: Served, holdout: Holdout | None) -> Study:
    """Return the study of a model, on a holdout if that is of the model's log."""
    if holdout is not None:
        try:
            served.model.check(holdout)
        except SoftdexError:
            holdout = None
    return Study(served.model, served.path, holdout)


def warm_up(served: Served) -> None:
    """Replay recent requests and measure the pace; a fault raises, a refusal does not."""
    requests = [*served.recent] or _examples(served.model)
    for words in requests:
        _replay(served, [words])
    examples = [w for w in requests if isinstance(w, Recommend)] or _examples(served.model)
    if not examples:
        return
    first = group_of(served, examples[0])
    alike = [w for w in examples if group_of(served, w) == first]
    _replay(served, alike[:1])
    one = _seconds(served, alike, 1)
    few = _seconds(served, alike, 8)
    served.pace = Pace(one, few, 8)
    if served.pace.most > 8:
        served.pace = Pace(one, _seconds(served, alike, served.pace.most), served.pace.most)


# inside ------------------------------------------------------------------------------------------


def _follow(served: Served, events: Events | None) -> None:
    served.live = None if events is None else Live(served.model, events)


def _replay(served: Served, words: Sequence[Recommend | Similar]) -> None:
    """Answer requests, into nothing; raise what is no refusal."""
    recent, lists, fallbacks = served.recent, served.lists, served.fallbacks
    served.recent, served.lists = type(recent)(maxlen=1), type(lists)(maxlen=1)
    try:
        work = similar if isinstance(words[0], Similar) else recommend
        asked = [Asked(served, each, "warm-up", time.perf_counter()) for each in words]
        with silence():
            answers = settled(work, asked)
        for found in answers:
            if isinstance(found, Exception) and not isinstance(found, SoftdexError):
                raise found
    finally:
        served.recent, served.lists, served.fallbacks = recent, lists, fallbacks


def _seconds(served: Served, examples: Sequence[Recommend], users: int) -> float:
    """Return the seconds of a batch: the median, within a limit of time."""
    times: list[float] = []
    while sum(times) < MEASURE and len(times) < 5:
        first = len(times) * users
        began = time.perf_counter()
        _replay(served, [examples[i % len(examples)] for i in range(first, first + users)])
        times.append(time.perf_counter() - began)
    return float(np.median(times))


def _examples(model: Retriever) -> list[Recommend]:
    """Return requests for users with events, evenly spaced."""
    rows = np.flatnonzero(model.seen.lengths)
    rows = rows[:: max(1, len(rows) // 64)][:64]
    users = [Recommend(user=key) for key in _plain(model.users.take(rows))]
    if not model.encoder.reads_history:
        return users
    histories = [_plain(model.items.take(ids)) for ids in (model.seen.take(rows[-1:]).ids,)]
    return [*users, *(Recommend(history=history) for history in histories)]


def _plain(keys: pa.Array) -> list[Key]:
    return [key if isinstance(key, (str, int)) else str(key) for key in keys.to_pylist()]


def _check_file(path: Path) -> None:
    """Refuse what is no file, and a model that does not fit beside what is here."""
    try:
        file = path / MODEL_FILE if path.is_dir() else path
        state = file.stat()
    except FileNotFoundError:
        return  # which `load` refuses
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise SoftdexError(f"reload: cannot read {str(path)[:100]!r} ({why}).") from None
    if not stat.S_ISREG(state.st_mode):
        raise SoftdexError(f"reload: {path} is not a file. Expected a model file or run folder.")
    need, free = COPIES * state.st_size, free_memory()
    if need > free:
        raise SoftdexError(
            f"reload: {path} needs about {need / 2**20:,.0f} MiB while it is loaded, and "
            f"{free / 2**20:,.0f} MiB are free. Stop other work, or start a new process for it."
        )


def _check_catalogue(old: Served, new: Served, *, other_catalogue: bool) -> None:
    """Refuse a model of other items."""
    items = old.model.items.all()
    shared = float((new.model.items.lookup(items) >= 0).mean()) if len(items) else 1.0
    if shared < SHARED and not other_catalogue:
        raise SoftdexError(
            f"reload: {new.path} knows {shared:.0%} of the items of {old.name}, so it seems to be "
            "of another catalogue. Pass other_catalogue=true to swap all the same."
        )


def _checked(shares: dict[str, float], models: Mapping[str, Served]) -> dict[str, float]:
    """Return shares that sum to one; every model has one, or none."""
    for name, share in shares.items():
        if name not in models:
            raise SoftdexError(f"serve: share of {name!r}. {did_you_mean(name, models)}")
        if not isinstance(share, (int, float)) or not 0 <= share < float("inf"):
            raise SoftdexError(f"serve: expected a share of at least 0 for {name}, got {share!r}.")
    without = [name for name in models if shares and name not in shares]
    if without:
        raise SoftdexError(
            f"serve: expected a share for every model, got none for {', '.join(without)}. "
            "With 0 a model answers only those who name it."
        )
    whole = sum(shares.values())
    if shares and not whole:
        raise SoftdexError("serve: expected shares that sum to more than 0.")
    return {name: share / whole for name, share in shares.items()}
