"""The proposals by name: recipes take their words from this table, so a new proposal is one row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from softdex.index.contract import Index
from softdex.index.factor_ranks import FactorRanks
from softdex.index.imi.books import popularity_weight
from softdex.index.imi.index import build
from softdex.index.kernel import Kernel
from softdex.index.popularity import Popularity
from softdex.index.uniform import Uniform
from softdex.score.contract import Product


@dataclass(frozen=True)
class ProposalOptions:
    """What proposals are made of, beside a scorer and the events per item.

    Attributes:
        power: of the counts, for popularity="power".
        codewords: per codebook of the multi-index.
        popularity: weight of an item, for `popularity`, and inside its cell for `imi_popularity`:
            by its `count`, its `log` or its `power`.
        seed: of the codebooks.
        rank_scale: of the exponential law of ranks, for `factor_ranks`.
    """

    power: float = 0.5
    codewords: int = 64
    popularity: str = "power"
    seed: int = 0
    rank_scale: float = 500.0


class Proposal(NamedTuple):
    """How to build an index that proposes negatives, and whether a batch can share its draws."""

    build: Callable[[Product, Tensor, ProposalOptions], Index]
    shared: bool = False


def _imi(last: str) -> Callable[[Product, Tensor, ProposalOptions], Index]:
    def built(scorer: Product, counts: Tensor, given: ProposalOptions) -> Index:
        by_count = last == "popularity"
        weight = popularity_weight(counts, given.popularity, given.power) if by_count else None
        generator = torch.Generator().manual_seed(given.seed)
        return build(
            scorer, codewords=given.codewords, last=last, weight=weight,
            residual=scorer.items.dim < 2, generator=generator,
        )  # fmt: skip

    return built


def _popularity(scorer: Product, counts: Tensor, given: ProposalOptions) -> Popularity:
    power = given.power if given.popularity == "power" else 1.0
    return Popularity(scorer, counts, power=power, log=given.popularity == "log")


PROPOSALS: dict[str, Proposal] = {
    "uniform": Proposal(lambda scorer, counts, given: Uniform(scorer), shared=True),
    "popularity": Proposal(_popularity, shared=True),
    "imi_uniform": Proposal(_imi("uniform")),
    "imi_popularity": Proposal(_imi("popularity")),
    "imi_exact": Proposal(_imi("exact")),
    "kernel": Proposal(lambda scorer, counts, given: Kernel(scorer)),
    "factor_ranks": Proposal(
        lambda scorer, counts, given: FactorRanks(scorer, scale=given.rank_scale)
    ),
}
