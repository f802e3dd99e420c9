"""Matrix factorisation by gradient descent: one table of users, one of items, many objectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softdex.encode.history import Mixed, padded
from softdex.encode.table import Users
from softdex.errors import SoftdexError, choose
from softdex.index.contract import Index
from softdex.index.popularity import Popularity
from softdex.index.uniform import Uniform
from softdex.interactions import Interactions
from softdex.objective.binary import bce
from softdex.objective.pairwise import bpr
from softdex.objective.sampled import sampled_softmax
from softdex.objective.softmax import blocked_softmax
from softdex.score import Cosine, Dot
from softdex.solve.loop import Schedule
from softdex.solve.sgd import Composition, Job, Settings

ABOUT = {
    "softmax": "Vectors by the full softmax over all items: the best loss, cost grows with them.",
    "ssm": "Vectors by sampled softmax: nearly as good, cost does not grow. Start here.",
    "bpr": "Vectors by Bayesian personalised ranking: each target above random items.",
    "bce": "Vectors by binary cross-entropy against random items.",
    "mf": "What the four above are variants of, with every option.",
}
WORDS = {
    "objective": ("softmax", "ssm", "bpr", "bce"),
    "encoder": ("user", "history", "mix"),
    "score": ("cosine", "dot", "dot_bias"),
    "index": ("uniform", "popularity"),
    "correct": ("draws", "all"),
    "precision": ("float32", "bf16"),
}
POSITIVE = ("dim", "negatives", "epochs", "batch_size", "lr", "temperature", "max_history")
SPACE = {"lr": (0.002, 0.05), "temperature": (0.05, 0.3), "prior": [0.0, 0.5, 0.7, 1.0]}
VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"objective": "softmax", "lr": 0.005, "batch_size": 4096},
    "ssm": {"objective": "ssm"},
    "bpr": {"objective": "bpr", "negatives": 100},
    "bce": {"objective": "bce", "score": "dot", "lr": 0.002, "negatives": 20, "decay": 0.1},
}
FIXED = dict.fromkeys(VARIANTS, ("objective",))
SPACES = {"bce": {"lr": (0.0005, 0.05), "decay": (0.001, 1.0), "negatives": [5, 20, 100]}}


def mf(
    train: Interactions,
    *,
    objective: str = "ssm",
    encoder: str = "user",
    score: str = "cosine",
    dim: int = 64,
    temperature: float = 0.1,
    prior: float = 0.7,
    share: float = 0.5,
    max_history: int = 50,
    negatives: int = 2000,
    index: str = "uniform",
    power: float = 0.5,
    correct: str = "draws",
    epochs: int = 200,
    batch_size: int | None = None,
    lr: float = 0.01,
    decay: float = 0.0,
    patience: int = 5,
    seed: int = 0,
    device: str = "auto",
    precision: str = "float32",
) -> Job:
    """Learn a vector for each user and item by a softmax, or by what stands in for it.

    Args:
        objective: `softmax` (all items), `ssm` (sampled softmax), `bpr` or `bce`.
        encoder: a user is a vector of their own (`user`), the mean of their history (`history`),
            or both (`mix`); the last two also serve users never seen.
        score: `cosine` (with temperature), `dot`, or `dot_bias`.
        dim: length of the vectors.
        temperature: of the cosine.
        prior: the cosine's score gets prior * log(count + 1), so that popularity need not be
            written into directions; 0 leaves it out.
        share: weight of the own vector in `mix`.
        max_history: how many of the latest items the history holds.
        negatives: draws a step, shared by the batch.
        index: what proposes them: `uniform` or `popularity`.
        power: of the counts, for `popularity`.
        correct: how `ssm` corrects for the proposal: `draws` or `all`.
        epochs: at most so many passes over the log.
        batch_size: events a step; None: 8192, or fewer on a small log (64 steps an epoch).
        lr: learning rate.
        decay: touched rows shrink by lr * decay.
        patience: epochs without a better validation metric before stopping; 0 never stops.
        seed: of initial vectors, order and draws.
        device: `auto`, `cpu`, `cuda`.
        precision: `float32` or `bf16`.
    """
    batch_size = min(8192, max(128, len(train) // 64)) if batch_size is None else batch_size
    _check(locals())
    generator = torch.Generator().manual_seed(seed)
    scale = 0.3 if score == "cosine" else 0.1
    users, items = (
        torch.randn(n, dim, generator=generator) * (scale / dim**0.5)
        for n in (train.num_users, train.num_items)
    )
    scorer = _scorer(score, items, temperature, prior * np.log1p(train.item_counts))
    made = _encoder(encoder, train, users, scorer, share, max_history)
    proposal = _proposal(index, scorer, train, power)
    loss = _loss(objective, scorer, proposal, negatives, correct)
    settings = Settings(batch_size, lr, decay, seed, precision)
    schedule = Schedule(epochs, patience, device)
    draws = 0 if objective == "softmax" else negatives
    return Job(Composition(made, scorer, proposal, loss, draws), settings, schedule)


def _check(given: Mapping[str, Any]) -> None:
    """Refuse what makes no sense, before any work is done."""
    for name, known in WORDS.items():
        choose("mf", name, given[name], known)
    for name in POSITIVE:
        if given[name] <= 0:
            raise SoftdexError(f"mf: expected {name} > 0, got {given[name]}.")
    for name in ("seed", "decay", "patience", "share"):
        if given[name] < 0 or (name == "share" and given[name] > 1):
            least = "from 0 to 1" if name == "share" else "of at least 0"
            raise SoftdexError(f"mf: expected {name} {least}, got {given[name]}.")


def _scorer(score: str, items: Tensor, temperature: float, prior: np.ndarray) -> Dot | Cosine:
    if score == "cosine":
        known = torch.from_numpy(prior.astype(np.float32)) if prior.any() else None
        return Cosine(items, torch.tensor(temperature), known)
    return Dot(items, torch.zeros(len(items)) if score == "dot_bias" else None)


def _encoder(
    encoder: str,
    train: Interactions,
    users: Tensor,
    scorer: Dot | Cosine,
    share: float,
    length: int,
) -> nn.Module:
    if encoder == "user":
        return Users(users)
    weight = torch.tensor(share if encoder == "mix" else 0.0)
    past = padded(train.histories, length)
    return Mixed(users, weight, torch.tensor(length), scorer.items, past)


def _proposal(index: str, scorer: Dot | Cosine, train: Interactions, power: float) -> Index:
    if index == "uniform":
        return Uniform(scorer)
    return Popularity(scorer, torch.tensor(train.item_counts), power=power)


def _loss(
    objective: str, scorer: Dot | Cosine, proposal: Index, negatives: int, correct: str
) -> Callable[..., Tensor]:
    """The loss of a batch: (index, query, target, generator) -> (B,)."""

    def full(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        vectors = scorer.items.all()
        if isinstance(scorer, Cosine):
            query = normalize(query, dim=-1) / scorer.temperature
            return blocked_softmax(query, normalize(vectors, dim=-1), target, scorer.prior)
        bias = None if scorer.bias is None else scorer.bias.all()[:, 0]
        return blocked_softmax(query, vectors, target, bias)

    def drawn(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        draws = index.sample(query, negatives, generator=generator, shared=True)
        own = target[:, None]
        pos, neg = scorer(query, own)[:, 0], scorer(query, draws.ids)
        hit = draws.ids == own
        if objective == "ssm":
            logq = index.log_prob(query, own)[:, 0]
            return sampled_softmax(pos, neg, draws.logq, logq, hit, correct=correct)
        return bpr(pos, neg, hit) if objective == "bpr" else bce(pos, neg, hit)

    return full if objective == "softmax" else drawn
