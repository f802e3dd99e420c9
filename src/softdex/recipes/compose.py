"""Compose: encoder and scorer, negatives and loss, by the words that recipes take."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

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
from softdex.index.proposals import PROPOSALS, ProposalOptions
from softdex.machine import pick_device
from softdex.messages import say
from softdex.objective.contract import Loss
from softdex.objective.sampled import sampled_softmax
from softdex.objective.softmax import log_mass
from softdex.objective.table import ON_DRAWS, OVER_ALL, LossOnDraws, Mass
from softdex.options import below_1, count, few, from_0_to_1, one_of, only, unit, up_to, width
from softdex.recipes.loss_numbers import LossNumbers
from softdex.score.contract import Product, Scorer
from softdex.score.product import Cosine, Dot, Euclidean
from softdex.solve.gradient.composition import Negatives

CPU_WORK, GPU_WORK = 1e9, 1e11  # multiplications of a full softmax that a sampled step costs
MANY = 1_000_000
IMI = ("imi_uniform", "imi_popularity", "imi_exact")
REFITTED = ("kernel", "factor_ranks", *IMI)
SHARING = tuple(name for name, proposal in PROPOSALS.items() if proposal.shared)
BY_POPULARITY = ("auto", "popularity", "imi_popularity")


@dataclass(frozen=True)
class Towers:
    """A tower for users and one for items: how queries are made and scored.

    Attributes:
        encoder: a user is a vector of their own (`user`), the mean of the vectors of their history
            (`history`), or both (`mix`); the last two also serve users without a vector.
        score: `cosine` (over a temperature), `dot`, `dot_bias`, or `euclidean` (the negative
            squared distance of points in the unit ball).
        dim: length of the vectors.
        temperature: of the cosine.
        prior: a cosine's score gets prior * log(count + 1), so that directions need not encode
            popularity; 0 leaves it out.
        share: weight of the user's own vector in `mix`.
        max_history: number of the latest items in the history.
        features: columns of the item table that item vectors are made of, or `all`; new items are
            then served by their columns.
        user_features: columns of the user table, likewise; not with encoder="history".
        ids: whether items and users also have a vector of their own: `add` or `drop`.
        id_dropout: fraction of the steps in which that vector is left out.
    """

    encoder: Literal["user", "history", "mix"] = "user"
    score: Literal["cosine", "dot", "dot_bias", "euclidean"] = "cosine"
    dim: Annotated[int, width] = 64
    temperature: Annotated[float, unit, only(score="cosine")] = 0.1
    prior: Annotated[float, up_to(1e6), only(score="cosine")] = 0.7
    share: Annotated[float, from_0_to_1, only(encoder="mix")] = 0.5
    max_history: Annotated[int, count, only(encoder=("history", "mix"))] = 50
    features: list[str] | str | None = None
    user_features: list[str] | str | None = None
    ids: Literal["add", "drop"] = "add"
    id_dropout: Annotated[float, below_1] = 0.1

    def build(self, train: Interactions, seed: int) -> tuple[nn.Module, Dot | Cosine | Euclidean]:
        """An encoder and a scorer with random vectors."""
        if self.encoder == "history" and self.user_features is not None:
            raise SoftdexError(
                "fit: with encoder='history' users have no vector to make of user_features=. Use "
                "encoder='user' or 'mix'."
            )
        generator = torch.Generator().manual_seed(seed)
        scale = (0.1 if self.score.startswith("dot") else 0.3) / self.dim**0.5
        own = Ids(self.ids, self.id_dropout)
        users = vectors_of(train, "user", self.dim, scale, self.user_features, own, generator)
        items = vectors_of(train, "item", self.dim, scale, self.features, own, generator)
        scorer: Dot | Cosine | Euclidean
        if self.score == "cosine":
            known = (self.prior * np.log1p(train.item_counts)).astype(np.float32)
            if isinstance(items, Tower):  # no popularity is known of cold items: the average one
                known[train.item_counts == 0] = known[train.item_counts > 0].mean()
            offsets = torch.from_numpy(known) if known.any() else None
            scorer = Cosine(items, torch.tensor(self.temperature), offsets)
        elif self.score == "euclidean":
            scorer = Euclidean(items)
        else:
            bias = torch.zeros(train.num_items) if self.score == "dot_bias" else None
            scorer = Dot(items, bias)
        if self.encoder == "user":
            return Users(users), scorer
        weight = torch.tensor(self.share if self.encoder == "mix" else 0.0)
        past, length = latest(train.histories, self.max_history), torch.tensor(self.max_history)
        return Mixed(users, weight, length, scorer.items, past), scorer


@dataclass(frozen=True)
class Sampling:
    """Draws from a proposal, for sampled objectives.

    Attributes:
        index: the proposal: `uniform`, `popularity`, `imi_uniform`, `imi_popularity` or
            `imi_exact` (the multi-index), `kernel`, or `factor_ranks` (the head of a factor that
            matters to the query); `full` takes all items, `auto` chooses by the number of items and
            says why.
        negatives: draws per batch where they are shared, else per query. None: 2000 shared, 100 of
            their own.
        shared: whether one set of draws serves the whole batch, so that a step needs few item
            vectors; false: each query has its own. None: `ssm` shares draws that do not depend on
            the query, the losses on draws never do.
        popularity: weight of an item of this count, for a proposal by popularity: count^power
            (`power`), log(1 + count) (`log`, as in FastVAE) or the `count`; an item without events
            has a weight too.
        power: of the counts, for popularity="power".
        codewords: per codebook of the multi-index.
        rank_scale: of the ranks of `factor_ranks`: most draws are among the first few times as many
            items of a factor.
        refit_every: steps between two refits of the index to the present vectors.
    """

    index: Annotated[str, one_of("auto", *PROPOSALS, "full")] = "uniform"
    negatives: Annotated[int | None, count, only(index=("auto", *PROPOSALS))] = None
    shared: Annotated[bool | None, only(index=("auto", *SHARING))] = None
    popularity: Annotated[Literal["power", "log", "count"], only(index=BY_POPULARITY)] = "power"
    power: Annotated[float, up_to(10), only(index=BY_POPULARITY), only(popularity="power")] = 0.5
    codewords: Annotated[int, few, only(index=("auto", *IMI))] = 64
    rank_scale: Annotated[float, count, only(index="factor_ranks")] = 500.0
    refit_every: Annotated[int, count, only(index=("auto", *REFITTED))] = 500

    def against(
        self,
        objective: str,
        scorer: Product,
        train: Interactions,
        *,
        correct: str = "draws",
        seed: int = 0,
        numbers: LossNumbers = LossNumbers(),
    ) -> Negatives:
        """An objective on draws of the index, or on all items.

        Args:
            objective: `softmax`, `ssm`, `uib`, `sml`, or a name of ON_DRAWS.
            scorer: an inner product.
            train: for the events per item.
            correct: how `ssm` corrects for the proposal, `draws` or `all`.
            seed: of the codebooks.
            numbers: what the losses take beside scores.
        """
        all_items = objective == "softmax" or self.index == "full"
        proposal = PROPOSALS["uniform" if all_items else self.index]
        given = ProposalOptions(self.power, self.codewords, self.popularity, seed, self.rank_scale)
        made = proposal.build(scorer, torch.tensor(train.item_counts), given)
        cold = torch.from_numpy(cold_items(scorer, train))
        some_cold = len(cold) > 0
        if some_cold:
            made = made.delete(cold)
        if all_items:
            loss = softmax_loss(scorer, OVER_ALL[objective], some_cold=some_cold)
            return Negatives(made, loss, 0, refit_every=self.refit_every)
        shared = proposal.shared and objective == "ssm" if self.shared is None else self.shared
        draws = self.negatives or (2000 if shared else 100)
        loss = numbers.module(objective, train, draws, shared=shared) or drawn_loss(
            numbers.bound(objective), scorer, draws, shared=shared, correct=correct
        )
        return Negatives(made, loss, draws, shared, refit_every=self.refit_every)

    def chosen(
        self, items: int, dim: int, batch: int, device: str, objective: str = "ssm"
    ) -> Sampling:
        """These options with `auto` replaced by what `automatic` chooses."""
        if self.index != "auto":
            return self
        shared = False if self.shared is None and objective != "ssm" else self.shared
        name = automatic(
            items, dim, batch, pick_device(device), softmax=objective in OVER_ALL, shared=shared
        )
        return replace(self, index=name)


class Ids(NamedTuple):
    """Whether rows with features also have a vector of their own, `add` or `drop`, and in which
    fraction of the steps it is left out."""

    own: str = "add"
    dropout: float = 0.0


def vectors_of(
    train: Interactions,
    what: str,
    dim: int,
    scale: float,
    features: list[str] | str | None,
    ids: Ids,
    generator: torch.Generator,
) -> Tensor | Tower:
    """Random vectors of items or users: a table, or a tower over the columns of their table."""
    items = what == "item"
    table, counts = (
        (train.item_table, train.item_counts) if items else (train.user_table, train.user_counts)
    )
    if features is None:
        if ids.own == "drop" and items:
            raise SoftdexError("fit: ids='drop' leaves items nothing. Give features= as well.")
        return torch.randn(len(counts), dim, generator=generator) * scale
    if table is None:
        option = "features" if items else "user_features"
        raise SoftdexError(
            f"fit: {option}= reads columns of the {what} table, and the log has none. Read it with "
            f"{what}s=, or --{what}s."
        )
    names = None if features == "all" else features
    columns = learn_columns(table, [names] if isinstance(names, str) else names)
    return tower(
        table, columns, dim, scale=scale, generator=generator, counts=counts,
        own=ids.own == "add", dropout=ids.dropout,
    )  # fmt: skip


def automatic(
    items: int,
    dim: int,
    batch: int,
    device: torch.device,
    *,
    softmax: bool = True,
    shared: bool | None = None,
) -> str:
    """The cheapest `index` word for this number of items and batch; it says why.

    All items while their scores, gradients and updates cost no more than a sampled step; then
    uniform draws, if the batch is large enough to share them or need not; else, and where a few
    thousand random items no longer show the good ones, the multi-index, whose draws cannot be
    shared. Without `softmax` all items are no choice.
    """
    gpu = device.type == "cuda"
    work, most = items * dim * (batch + 30), GPU_WORK if gpu else CPU_WORK
    if work <= most and softmax:
        name, why = "full", f"{items:,} items are few enough for the full softmax"
    elif shared is False and items <= MANY:
        name, why = "uniform", f"{items:,} items, each row with its own draws"
    elif shared or (batch >= 1024 and items <= MANY) or work <= most:
        name, why = "uniform", f"{items:,} items, and a batch of {batch:,} to share the draws"
    else:
        name, why = "imi_popularity", f"{items:,} items, a batch of {batch:,}: cost without items"
    say(f"index: {name} ({why})")
    return name


def cold_items(scorer: Product, train: Interactions) -> np.ndarray:
    """Return the items with features and without events: they are served, but no negatives."""
    none = np.flatnonzero(train.item_counts == 0)
    return none if isinstance(scorer.items, Tower) else none[:0]


def softmax_loss(scorer: Product, mass: Mass = log_mass, *, some_cold: bool = False) -> Loss:
    """Against all items, by their `mass`; with `some_cold` only those in the index."""

    def loss(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):
            query = query.float()
            vectors, offsets = scorer.everything()
            if some_cold:
                start = vectors.new_zeros(len(vectors)) if offsets is None else offsets
                offsets = start.masked_fill(~index.alive, -torch.inf)
            total = mass(scorer.project(query), vectors, offsets)
            own = scorer(query, target.view(len(query), -1))
            return (total.unsqueeze(1) - own).view(target.shape)

    return loss


def drawn_loss(
    objective: str | LossOnDraws,
    scorer: Scorer,
    negatives: int,
    *,
    shared: bool,
    correct: str = "draws",
) -> Loss:
    """An objective on draws of the index.

    Args:
        objective: `ssm`, a name of ON_DRAWS, or a function like those.
        scorer: of targets and draws.
        negatives: draws per query, or per batch if `shared`.
        shared: whether one set of draws serves the whole batch.
        correct: how `ssm` corrects for the proposal; with `all`, several targets per row share the
            draws.
    """
    plain = ON_DRAWS.get(objective) if isinstance(objective, str) else objective
    reads = () if plain is None else inspect.signature(plain).parameters

    def loss(index: Index, query: Tensor, target: Tensor, generator: torch.Generator) -> Tensor:
        draws = index.sample(query, negatives, generator=generator, shared=shared)
        own = target.view(len(query), -1)
        pos, neg = scorer(query, own), scorer(query, draws.ids)
        if plain is not None:
            more = {"logq": draws.logq} if "logq" in reads else {}
            if "pos_logq" in reads:
                more["pos_logq"] = index.log_prob(query, own)[:, 0]
            return plain(pos[:, 0], neg, draws.ids == own, **more)
        logq = index.log_prob(query, own.clamp(min=0))
        hit = draws.ids == own if correct == "draws" else None
        flat = pos[:, 0] if target.ndim == 1 else pos
        return sampled_softmax(flat, neg, draws.logq, logq.view(target.shape), hit, correct=correct)

    return loss
