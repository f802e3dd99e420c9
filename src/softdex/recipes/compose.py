"""Compose: towers, what proposes the negatives, and the loss that uses them, by name."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from softdex.data.interactions import Interactions
from softdex.encode.features.columns import learn_columns
from softdex.encode.features.tower import Tower, tower
from softdex.encode.history import Mixed, latest
from softdex.encode.table import Users
from softdex.errors import SoftdexError
from softdex.index.contract import Index
from softdex.index.imi.books import popularity_weight
from softdex.index.imi.index import build
from softdex.index.kernel import Kernel
from softdex.index.popularity import Popularity
from softdex.index.uniform import Uniform
from softdex.messages import say
from softdex.objective.binary import bce
from softdex.objective.contract import Loss
from softdex.objective.pairwise import bpr, dns, self_adversarial
from softdex.objective.sampled import sampled_softmax
from softdex.objective.softmax import log_mass
from softdex.score.contract import Product
from softdex.score.product import Cosine, Dot

CPU_WORK, GPU_WORK = 1e9, 1e11  # multiplications of a full softmax that a sampled step costs
MANY = 1_000_000
IMI = ("imi_uniform", "imi_popularity", "imi_exact")
PROPOSALS = ("uniform", "popularity", *IMI, "kernel")
IDS = ("add", "drop")
ENCODERS = ("user", "history", "mix")
SCORES = ("cosine", "dot", "dot_bias")
READ_BY_TOWERS = (
    ("temperature", "score", ("cosine",)),
    ("prior", "score", ("cosine",)),
    ("share", "encoder", ("mix",)),
    ("max_history", "encoder", ("history", "mix")),
)
READ_BY_INDEX = (
    ("negatives", "index", ("auto", *PROPOSALS)),
    ("power", "index", ("auto", "popularity", "imi_popularity")),
    ("codewords", "index", ("auto", *IMI)),
    ("refit_every", "index", ("auto", "kernel", *IMI)),
)


class Features(NamedTuple):
    """What items or users are made of: columns of their table (`all`; None: no features), whether
    a vector of their own is added (`add` or `drop`), and in which share of the steps it is not."""

    columns: list[str] | str | None = None
    ids: str = "add"
    dropout: float = 0.0


def vectors_of(
    train: Interactions,
    what: str,
    dim: int,
    scale: float,
    features: Features,
    generator: torch.Generator,
) -> Tensor | Tower:
    """Random vectors of items or users: a table, or a tower over the columns of theirs."""
    items = what == "item"
    table, counts = (
        (train.item_table, train.item_counts) if items else (train.user_table, train.user_counts)
    )
    if features.columns is None:
        if features.ids == "drop" and items:
            raise SoftdexError("fit: ids='drop' leaves items nothing. Give features= as well.")
        return torch.randn(len(counts), dim, generator=generator) * scale
    if table is None:
        option = "features" if items else "user_features"
        raise SoftdexError(
            f"fit: {option}= reads columns of the {what} table, and the log has none. Read it with "
            f"{what}s=, or --{what}s."
        )
    names = None if features.columns == "all" else features.columns
    columns = learn_columns(table, [names] if isinstance(names, str) else names)
    return tower(
        table, columns, dim, scale=scale, generator=generator, counts=counts,
        own=features.ids == "add", dropout=features.dropout,
    )  # fmt: skip


def towers(
    train: Interactions,
    encoder: str,
    score: str,
    *,
    dim: int,
    temperature: float,
    prior: float,
    share: float,
    max_history: int,
    seed: int,
    features: Features,
    user_features: Features,
) -> tuple[nn.Module, Dot | Cosine]:
    """Random vectors of users and items as an encoder and a scorer of these names."""
    if encoder == "history" and user_features.columns is not None:
        raise SoftdexError(
            "fit: with encoder='history' users have no vector to make of user_features=. Use "
            "encoder='user' or 'mix'."
        )
    generator = torch.Generator().manual_seed(seed)
    scale = 0.3 if score == "cosine" else 0.1
    users = vectors_of(train, "user", dim, scale / dim**0.5, user_features, generator)
    items = vectors_of(train, "item", dim, scale / dim**0.5, features, generator)
    scorer: Dot | Cosine
    if score == "cosine":
        known = (prior * np.log1p(train.item_counts)).astype(np.float32)
        offsets = torch.from_numpy(known) if known.any() else None
        scorer = Cosine(items, torch.tensor(temperature), offsets)
    else:
        scorer = Dot(items, torch.zeros(train.num_items) if score == "dot_bias" else None)
    if encoder == "user":
        return Users(users), scorer
    weight = torch.tensor(share if encoder == "mix" else 0.0)
    past = latest(train.histories, max_history)
    return Mixed(users, weight, torch.tensor(max_history), scorer.items, past), scorer


def proposal(
    name: str,
    scorer: Product,
    train: Interactions,
    *,
    codewords: int = 64,
    popularity: str = "log",
    power: float = 0.5,
    seed: int = 0,
) -> Index:
    """The index of this name over a scorer's items."""
    counts = torch.tensor(train.item_counts)
    if name == "uniform":
        return Uniform(scorer)
    if name == "popularity":
        return Popularity(scorer, counts, power=power)
    if name == "kernel":
        return Kernel(scorer)
    last = name.removeprefix("imi_")
    weight = popularity_weight(counts, popularity, power) if last == "popularity" else None
    generator = torch.Generator().manual_seed(seed)
    return build(
        scorer, codewords=codewords, last=last, weight=weight, residual=scorer.items.dim < 2,
        generator=generator,
    )  # fmt: skip


class Against(NamedTuple):
    """What targets are trained against: the index that proposes, the loss, draws a query (0: all
    items), and whether a batch shares them."""

    proposed: Index
    loss: Loss
    draws: int
    shared: bool


def against(
    name: str,
    objective: str,
    scorer: Product,
    train: Interactions,
    negatives: int,
    *,
    correct: str = "draws",
    **options: Any,
) -> Against:
    """An objective against draws of the index of this name, or all items.

    Args:
        name: one of PROPOSALS, or `full`.
        objective: `softmax`, `ssm`, `bpr`, `bce`, `dns` or `self_adversarial`.
        scorer: an inner product.
        train: for how often items occur.
        negatives: draws.
        correct: how `ssm` corrects for the proposal.
        options: of `proposal`.
    """
    made = proposal("uniform" if name == "full" else name, scorer, train, **options)
    if objective == "softmax" or name == "full":
        return Against(made, softmax_loss(scorer), 0, True)
    shared = is_shared(name)
    loss = drawn_loss(objective, scorer, negatives, shared=shared, correct=correct)
    return Against(made, loss, negatives, shared)


def is_shared(name: str) -> bool:
    """Whether the draws of this proposal can serve a whole batch."""
    return name in ("uniform", "popularity", "full")


def automatic(
    items: int, dim: int, batch: int, device: torch.device, *, softmax: bool = True
) -> str:
    """What to train against, by what a step would cost, with the reason said.

    All items while their scores, gradients and updates cost no more than a sampled step; then
    draws that the whole batch shares, if the batch is large; else, and where a few thousand
    random items no longer show the good ones, the multi-index. Without `softmax` all items are no
    choice.
    """
    gpu = device.type == "cuda"
    work, most = items * dim * (batch + 30), GPU_WORK if gpu else CPU_WORK
    if work <= most and softmax:
        name, why = "full", f"{items:,} items are few enough for the full softmax"
    elif (batch >= 1024 and items <= MANY) or work <= most:
        name, why = "uniform", f"{items:,} items, and a batch of {batch:,} to share the draws"
    else:
        name, why = "imi_popularity", f"{items:,} items, a batch of {batch:,}: cost without items"
    say(f"index: {name} ({why})")
    return name


def softmax_loss(scorer: Product) -> Loss:
    """Against all items."""

    def loss(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            query = query.float()
            mass = log_mass(scorer.project(query), *scorer.everything())
            own = scorer(query, target.view(len(query), -1))
            return (mass.unsqueeze(1) - own).view(target.shape)

    return loss


def drawn_loss(
    objective: str, scorer: Product, negatives: int, *, shared: bool, correct: str = "draws"
) -> Loss:
    """Against draws of the index; several targets a row (`correct="all"`) share them."""
    pairwise = {"bpr": bpr, "bce": bce, "dns": dns, "self_adversarial": self_adversarial}

    def loss(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        draws = index.sample(query, negatives, generator=generator, shared=shared)
        own = target.view(len(query), -1)
        pos, neg = scorer(query, own), scorer(query, draws.ids)
        if objective == "ssm":
            logq = index.log_prob(query, own.clamp(min=0))
            hit = draws.ids == own if correct == "draws" else None
            flat = pos[:, 0] if target.ndim == 1 else pos
            return sampled_softmax(
                flat, neg, draws.logq, logq.view(target.shape), hit, correct=correct
            )
        return pairwise[objective](pos[:, 0], neg, draws.ids == own)

    return loss
