"""Estimate: what a model says of p(item | user), as the softmax of its scores over a temperature.

Shapes: B queries, N items asked for, D numbers a vector, I items.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.functional import embedding_bag

from softdex.data.holdout import Holdout
from softdex.data.keys import Keys, as_list, find
from softdex.data.ragged import Ragged, group
from softdex.encode.history import padded
from softdex.errors import DataError, SoftdexError
from softdex.model.export import with_vectors
from softdex.model.kinds import TEMPERATURES
from softdex.objective.softmax import log_mass
from softdex.score.contract import Product
from softdex.score.product import Dot

SAMPLE = 2000  # users that a temperature is fitted on
ROWS = 64  # users whose masked items are scored at a time
ACCURACY = 1e-4  # of the logarithm of a temperature

Queries = Iterable[tuple[np.ndarray, Tensor]]
"""Blocks of (which of the users asked about, their queries)."""


class Model(Protocol):
    """What of a `Retriever` makes its estimate."""

    recipe: str
    items: Keys
    index: Any
    info: dict[str, Any]


@final
@dataclass(frozen=True, eq=False)
class Softmax:
    """p(item | query) = exp(score / temperature) over its sum for all living items.

    Attributes:
        scorer: of the model.
        living: vectors of the items, and offsets over the temperature, -inf for removed items.
        temperature: above 0.
    """

    scorer: Product
    living: Dot
    temperature: float

    @torch.inference_mode()
    def log_prob(self, query: Tensor, ids: Tensor) -> Tensor:
        """Log-probabilities (B, N) of ids (N,) or (B, N); never holds the scores of all items."""
        query = self.scaled(query)
        return self.living(query, ids) - log_mass(query, *self.living.everything())[:, None]

    @torch.inference_mode()
    def log_probs(self, query: Tensor) -> Tensor:
        """Log-probabilities (B, I) of all items."""
        return self.living(self.scaled(query), slice(None)).log_softmax(1)

    def scaled(self, query: Tensor) -> Tensor:
        """What the vectors are multiplied with, (B, D)."""
        return self.scorer.project(query) / self.temperature


@torch.inference_mode()
def softmax_of(model: Model, where: str, temperature: float | None = None) -> Softmax:
    """The estimate of a model, at the temperature it was calibrated to or at another one."""
    scorer = with_vectors(model, where)
    if temperature is None:
        temperature = float(model.info.get("temperature", 1.0))
    vectors, offsets = scorer.everything()
    alive = model.index.alive
    if alive is not None and not alive.all():
        offsets = vectors.new_zeros(len(vectors)) if offsets is None else offsets
        offsets = offsets.masked_fill(~alive.to(offsets.device), -torch.inf)
    bias = None if offsets is None else offsets / temperature
    return Softmax(scorer, Dot(vectors, bias).eval(), temperature)


def asked(items: Keys, keys: Any, users: int) -> np.ndarray:
    """Rows of the items asked for: (N,) for everybody, or (B, N) where each user has a list."""
    if keys is None:
        return np.arange(len(items))
    cells = as_list(keys)
    lists = [list(c) for c in cells if isinstance(c, Iterable) and not isinstance(c, (str, bytes))]
    if not lists:
        return find(items, cells, "log_prob", "items")
    if len(lists) != len(cells) or len({len(given) for given in lists}) > 1:
        raise SoftdexError(
            "log_prob: expected items=[item, ...] for everybody, or one list per user, all of the "
            "same length."
        )
    if len(lists) != users:
        raise SoftdexError(f"log_prob: {users} users but {len(lists)} lists of items.")
    flat = [key for given in lists for key in given]
    return find(items, flat, "log_prob", "items").reshape(users, -1)


def log_prob(softmax: Softmax, queries: Queries, rows: np.ndarray) -> np.ndarray:
    """Log-probabilities (B, N) of item rows (N,) or (B, N), float32."""
    ids = torch.from_numpy(rows).to(softmax.living.everything()[0].device)
    blocks = (softmax.log_prob(q, ids if ids.ndim == 1 else ids[part]) for part, q in queries)
    return np.concatenate([block.float().cpu().numpy() for block in blocks])


def distributions(softmax: Softmax, queries: Queries) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of (which of the users asked about, log-probabilities (b, I) of all items)."""
    for part, query in queries:
        yield part, softmax.log_probs(query).float().cpu().numpy()


def sample(valid: Holdout, alive: Tensor | None) -> Holdout:
    """Users of whom something is known, with those of their targets that live."""
    targets = valid.targets
    if alive is not None:
        targets = targets.where(alive.cpu().numpy()[targets.ids])
    users = np.flatnonzero((targets.lengths > 0) & (valid.history.lengths > 0))
    if not len(users):
        raise DataError(
            "calibrate: no user of the holdout has both a history and a target that the model can "
            "recommend. Give users more events."
        )
    users = np.sort(np.random.default_rng(0).permutation(users)[:SAMPLE])
    return replace(valid, targets=targets).take(users)


@torch.inference_mode()
def likeliest(softmax: Softmax, query: Tensor, targets: Ragged, masked: Ragged) -> float:
    """The temperature at which the targets are likeliest, each counting the same.

        mean over targets y of  log sum_i exp(score_i / temperature) - score_y / temperature

    over the items i that a target could be: not those that are masked. (Where users take nothing
    twice, what they have had scores high and is never the target: with it in the sum every
    temperature would come out too high.) Where it has no minimum (every target scores best, or no
    better than chance) the answer is a temperature at the end of those looked at.

    Args:
        softmax: at the temperature 1.
        query: (B, D).
        targets: item rows, a list for each query.
        masked: item rows that are no targets, likewise.
    """
    query = softmax.scaled(query)
    vectors, offsets = softmax.living.everything()
    share = torch.from_numpy(targets.lengths / len(targets.ids)).to(query.device)
    score = _mean_score(query, vectors, offsets, targets)
    had = _scores_of(softmax.living, query, masked)

    def loss(log_temperature: float) -> float:
        rate = math.exp(-log_temperature)
        mass = log_mass(query * rate, vectors, None if offsets is None else offsets * rate)
        mass = _without(mass, had * rate)
        return float(share @ mass.double()) - score * rate

    low, high = map(math.log, TEMPERATURES)
    options = {"xatol": ACCURACY}
    found = minimize_scalar(loss, bounds=(low, high), method="bounded", options=options)
    return math.exp(found.x) if found.fun < loss(0.0) else 1.0


def _scores_of(living: Dot, query: Tensor, lists: Ragged) -> Tensor:
    """Scores (B, L) of each query's list, every item once; -inf behind its end."""
    cells = np.unique(lists.cells(living.num_items))
    row, ids = np.divmod(cells, living.num_items)
    once = group(row, ids, len(lists))
    wide = padded(once, max(1, int(once.lengths.max(initial=0)))).to(query.device)
    parts = zip(torch.split(query, ROWS), torch.split(wide, ROWS), strict=True)
    scores = torch.cat([living(part, some.clamp(min=0)) for part, some in parts])
    return scores.masked_fill(wide < 0, -torch.inf)


def _without(mass: Tensor, scores: Tensor) -> Tensor:
    """log of a sum of exponentials (B,) without those of these scores (B, L)."""
    share = (scores.logsumexp(1) - mass).clamp(max=-1e-6)  # what is left is more than nothing
    return mass + torch.log(-torch.expm1(share))


def _mean_score(query: Tensor, vectors: Tensor, offsets: Tensor | None, targets: Ragged) -> float:
    """What targets score on average."""
    ids = torch.from_numpy(targets.ids.astype(np.int64)).to(query.device)
    starts = torch.from_numpy(targets.indptr[:-1]).to(query.device)
    sums = embedding_bag(ids, vectors, starts, mode="sum")
    score = float((query.double() * sums).sum()) / len(ids)
    return score if offsets is None else score + float(offsets[ids].double().mean())
