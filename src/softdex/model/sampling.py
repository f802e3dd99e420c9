"""Draw the lists of a request from a model's softmax instead of searching the best items.

Shapes: B users, I items.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softdex.errors import SoftdexError, choose
from softdex.index.contract import Filter, Index
from softdex.index.flat import Flat, permitted
from softdex.index.gumbel import CELL, Drawn, draw, streams_of
from softdex.model.kinds import TEMPERATURES
from softdex.model.recommendations import NOTE

if TYPE_CHECKING:
    from softdex.model.retriever import Retriever

MODES = ("best", "sample")
COLUMNS = ("log_prob", "propensity")  # of an answer that was drawn
BITS = 53  # of a seed that nobody chose: JSON keeps them all


class Drawing(NamedTuple):
    """Whether and how to draw lists, as the caller says it; see `Retriever.recommend`."""

    mode: str = "best"
    temperature: float | None = None
    seed: int | None = None


BEST = Drawing()


class Sampling(NamedTuple):
    """How lists are drawn.

    Attributes:
        seed: of the random numbers.
        temperature: divides the scores.
        candidates: number of items per user to draw from, those that a search finds; 0: all that
            are allowed.
        source: what is drawn from, in words.
        first: place of the first user, where these users are a part of a request.
        seeds: one per user (B,), who are the only ones of their requests; None: `seed` for all.
    """

    seed: int
    temperature: float
    candidates: int
    source: str
    first: int = 0
    seeds: np.ndarray | None = None

    def streams(self, places: np.ndarray) -> Tensor:
        """Return the stream of random numbers of the user in each place (B,)."""
        if self.seeds is None:
            return streams_of(self.seed, torch.from_numpy(places + self.first))
        return streams_of(torch.from_numpy(self.seeds[places]), torch.zeros(len(places)).long())

    @property
    def words(self) -> dict[str, Any]:
        """How lists were drawn, for those who read them."""
        return {"seed": self.seed, "temperature": self.temperature, "from": self.source}

    def note(self) -> dict[bytes, bytes]:
        """Return the metadata of a table of lists that were drawn."""
        return {NOTE: json.dumps(self.words).encode()}


def sampling(
    model: Retriever, method: str, mode: Any, temperature: Any, seed: Any, at_most: Any
) -> Sampling | None:
    """Check the arguments of `Retriever.recommend` that draw lists; None: the best items."""
    if choose(method, "mode", mode, MODES) == "best":
        for name, given in (("temperature", temperature), ("seed", seed)):
            if given is not None:
                raise SoftdexError(f"{method}: {name}= draws lists. Add mode='sample'.")
        return None
    if at_most:
        raise SoftdexError(
            f"{method}: lists with at_most= are not drawn. Leave it out, or choose mode='best'."
        )
    heat = model.temperature if temperature is None else temperature
    low, high = TEMPERATURES
    if isinstance(heat, bool) or not isinstance(heat, Real) or not low <= float(heat) <= high:
        raise SoftdexError(
            f"{method}: expected temperature from {low:g} to {high:g}, got {heat!r}."
        )
    seed = secrets.randbits(BITS) if seed is None else seed
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**63:
        raise SoftdexError(
            f"{method}: expected seed as a whole number from 0 to 2^63 - 1, got {seed!r}."
        )
    count = _candidates(model.index)
    source = f"the best {count:,} items of {type(model.index).__name__.lower()}" if count else "all"
    return Sampling(int(seed), float(heat), count, source)


@torch.inference_mode()
def drawn(
    index: Index,
    query: Any,
    k: int,
    filter: Filter,
    how: Sampling,
    places: np.ndarray,
    max_memory: int,
) -> Drawn:
    """Draw k items per query from the softmax over the items that the filter allows.

    Args:
        index: scores all items, or finds the candidates.
        query: B queries.
        k: items per query.
        filter: what may be drawn.
        how: temperature, seed and candidates.
        places: place of each query in the request (B,), which chooses its random numbers.
        max_memory: bytes of scores held at a time.
    """
    blocks = _blocks(index, query, k, filter, how.candidates, max_memory)
    return draw(blocks, k, how.temperature, how.streams(places))


# inside ------------------------------------------------------------------------------------------


def _candidates(index: Any) -> int:
    """Return how many items an approximate search looks for; 0 where it scores every item."""
    effort = getattr(index, "effort", math.inf)
    return 0 if not index.searches else int(min(effort, index.num_items))


def _blocks(
    index: Any, query: Any, k: int, filter: Filter, candidates: int, max_memory: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield ids and scores of the items to draw from."""
    if candidates:
        most = min(max(candidates, k + 1), index.num_items)
        yield index.search(query, most, filter=filter, max_memory=max_memory)
        return
    flat = Flat(index.scorer, index.alive)
    blocks = flat.blocks(query, max(1, max_memory * 12 // CELL))
    for start, scores in permitted(blocks, filter):
        ids = torch.arange(start, start + scores.shape[1], device=scores.device)
        yield ids, scores
