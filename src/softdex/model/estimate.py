"""Estimate p(item | user) as the softmax of a model's scores over a temperature.

Shapes: B queries, N items asked about, D numbers per vector, I items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, final

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from softdex.data.holdout import Holdout
from softdex.data.keys import Keys, as_list, find, sound
from softdex.data.ragged import Ragged, group
from softdex.encode.history import padded
from softdex.errors import DataError, SoftdexError, choose
from softdex.evaluate.evaluate import OF_MODELS
from softdex.index.contract import MAX_MEMORY
from softdex.model.asking import batch_size, queries, who
from softdex.model.export import with_vectors
from softdex.model.honest import audit
from softdex.model.kinds import TEMPERATURES
from softdex.objective.softmax import log_mass
from softdex.score.contract import Product
from softdex.score.product import Dot

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever

LEAK = (
    "Calibrate on the validation part of the split that the model was trained on, or pass "
    "leak='allow' to do it all the same."
)
SAMPLE = 2000  # users a temperature is fitted on, at most
ROWS = 64  # users whose masked items are scored at a time
ACCURACY = 1e-4  # of the logarithm of a temperature


@final
@dataclass(frozen=True, eq=False)
class Softmax:
    """p(item | query) = exp(score / temperature) / sum of the same over all items.

    Attributes:
        scorer: scorer of the model.
        candidates: item vectors, and offsets divided by the temperature: -inf for removed items.
        temperature: above 0.
    """

    scorer: Product
    candidates: Dot
    temperature: float

    @torch.inference_mode()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        """Return log-probabilities (B, N) of ids (N,) or (B, N); never holds the scores of all."""
        query = self.scaled(query)
        return self.candidates(query, ids) - log_mass(query, *self.candidates.everything())[:, None]

    @torch.inference_mode()
    def log_probs(self, query: Tensor) -> Tensor:
        """Return log-probabilities (B, I) of all items."""
        return self.candidates(self.scaled(query), slice(None)).log_softmax(1)

    def scaled(self, query: Tensor) -> Tensor:
        """Return projected queries divided by the temperature, (B, D)."""
        return self.scorer.project(query) / self.temperature


@torch.inference_mode()
def softmax_of(model: Retriever, method: str, temperature: float) -> Softmax:
    """Return the softmax of a model's scores; refuse a model without item vectors."""
    scorer, index = with_vectors(model, method), cast(Any, model.index)
    vectors, offsets = scorer.everything()
    alive = index.alive
    if not alive.all():
        offsets = vectors.new_zeros(len(vectors)) if offsets is None else offsets
        offsets = offsets.masked_fill(~alive.to(offsets.device), -torch.inf)
    bias = None if offsets is None else offsets / temperature
    return Softmax(scorer, Dot(vectors, bias).eval(), temperature)


def log_prob(model: Retriever, users: Any, items: Any, history: Any) -> np.ndarray:
    """Return log-probabilities (B, N), float32; see `Retriever.log_prob`."""
    softmax = softmax_of(model, "log_prob", model.temperature)
    asked = who(model, "log_prob", users, history)
    rows = rows_of(model.items, items, len(asked.rows), "log_prob")
    ids = torch.from_numpy(rows).to(softmax.candidates.items.device)
    cells = ids.shape[-1] * (1 if ids.ndim == 1 else softmax.candidates.items.dim)
    size = batch_size(model.encoder, MAX_MEMORY, cells)
    blocks = (
        softmax.log_prob(query, ids if ids.ndim == 1 else ids[part])
        for part, query in queries(model, asked.rows, asked.history, size)
    )
    return np.concatenate([block.float().cpu().numpy() for block in blocks])


def distributions(
    model: Retriever, users: Any, history: Any, max_memory: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Iterate over users and their log-probabilities (b, I); see `Retriever.distributions`."""
    softmax = softmax_of(model, "distributions", model.temperature)
    asked = who(model, "distributions", users, history)
    size = batch_size(model.encoder, max_memory, len(model.items))
    found = queries(model, asked.rows, asked.history, size)
    return ((part, softmax.log_probs(query).float().cpu().numpy()) for part, query in found)


def calibrated(model: Retriever, valid: Holdout, leak: str) -> float:
    """Return the maximum-likelihood temperature on a holdout; see `Retriever.calibrate`."""
    softmax = softmax_of(model, "calibrate", 1.0)
    choose("calibrate", "value of leak", leak, OF_MODELS["leak"])
    model.check(valid, "calibrate")
    audit("calibrate", model.card, model.seen, valid, leak, LEAK)
    part = sample(valid, model.index.alive)
    size = batch_size(model.encoder, MAX_MEMORY, 1)
    query = torch.cat([query for _, query in queries(model, part.users, part.history, size)])
    return fit_temperature(softmax, query, part.targets, part.masked)


def rows_of(items: Keys, keys: Any, users: int, method: str) -> np.ndarray:
    """Find the rows of items: (N,) for all users, or (B, N) for one list per user."""
    if keys is None:
        return np.arange(len(items))
    cells = sound(as_list(keys), method, "items")
    lists = [
        list(sound(c, method, "items"))
        for c in cells
        if isinstance(c, Iterable) and not isinstance(c, (str, bytes))
    ]
    if not lists:
        return find(items, cells, method, "items")
    if len(lists) != len(cells) or len({len(given) for given in lists}) > 1:
        raise SoftdexError(
            f"{method}: expected items=[item, ...] for all users, or one list per user, all of the "
            "same length."
        )
    if len(lists) != users:
        raise SoftdexError(f"{method}: {users} users but {len(lists)} lists of items.")
    flat = [key for given in lists for key in given]
    return find(items, flat, method, "items").reshape(users, -1)


def sample(valid: Holdout, alive: Tensor) -> Holdout:
    """Draw up to 2000 users with a history and a target that is not removed, the same in every
    call."""
    targets = valid.targets
    targets = targets.where(alive.cpu().numpy()[targets.ids])
    users = np.flatnonzero((targets.lengths > 0) & (valid.history.lengths > 0))
    if not len(users):
        raise DataError(
            "calibrate: no user of the holdout has both a history and a target that the model can "
            "recommend. Split a log with more events per user."
        )
    users = np.sort(np.random.default_rng(0).permutation(users)[:SAMPLE])
    return replace(valid, targets=targets).take(users)


@torch.inference_mode()
def fit_temperature(softmax: Softmax, query: Tensor, targets: Ragged, masked: Ragged) -> float:
    """Return the maximum-likelihood temperature of the targets, which minimises

        mean over targets y of  log sum_i exp(score_i / temperature) - score_y / temperature

    over the items i that can be a target: masked items are excluded. (In a log without repeats the
    items of the history score high and are never the target; counting them would raise every
    temperature.) If there is no minimum, because every target scores best or none better than
    chance, the result is the lowest or the highest temperature allowed.

    Args:
        softmax: at temperature 1.
        query: queries (B, D).
        targets: item rows per query; every target weighs the same.
        masked: item rows per query that cannot be targets.
    """
    query = softmax.scaled(query)
    vectors, offsets = softmax.candidates.everything()
    share = torch.from_numpy(targets.lengths / len(targets.ids)).to(query.device)
    score = _mean_score(query, vectors, offsets, targets)
    seen = _scores_of(softmax.candidates, query, masked)

    def loss(log_temperature: float) -> float:
        rate = math.exp(-log_temperature)
        mass = log_mass(query * rate, vectors, None if offsets is None else offsets * rate)
        mass = _without(mass, seen * rate)
        return float(share @ mass.double()) - score * rate

    from scipy.optimize import minimize_scalar  # takes a while to import

    low, high = map(math.log, TEMPERATURES)
    options = {"xatol": ACCURACY}
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options=options)
    return math.exp(found.x) if found.fun < loss(0.0) else 1.0


def _scores_of(items: Dot, query: Tensor, lists: Ragged) -> Tensor:
    """Score the items of each query's list once, (B, L), padded with -inf."""
    cells = np.unique(lists.cells(items.num_items))
    row, ids = np.divmod(cells, items.num_items)
    once = group(row, ids, len(lists))
    wide = padded(once, max(1, int(once.lengths.max(initial=0)))).to(query.device)
    parts = zip(torch.split(query, ROWS), torch.split(wide, ROWS), strict=True)
    scores = torch.cat([items(part, some.clamp(min=0)) for part, some in parts])
    return scores.masked_fill(wide < 0, -torch.inf)


def _without(mass: Tensor, scores: Tensor) -> Tensor:
    """Take the terms of these scores (B, L) out of a log-sum-exp (B,)."""
    share = (scores.logsumexp(1) - mass).clamp(max=-1e-6)  # keep the rest above 0
    return mass + torch.log(-torch.expm1(share))


def _mean_score(query: Tensor, vectors: Tensor, offsets: Tensor | None, targets: Ragged) -> float:
    """Return the mean score of the targets."""
    ids = torch.from_numpy(targets.ids.astype(np.int64)).to(query.device)
    starts = torch.from_numpy(targets.indptr[:-1]).to(query.device)
    sums = embedding_bag(ids, vectors, starts, mode="sum")
    score = float((query.double() * sums).sum()) / len(ids)
    return score if offsets is None else score + float(offsets[ids].double().mean())
