"""In-batch losses: the negatives of a row are the batch's items, or items of earlier batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from softdex import group
from softdex.gathered import gathered
from softdex.index.contract import Index
from softdex.objective.in_batch import (
    batch_softmax,
    exclusion_mask,
    mixture_log_prob,
    resampled_softmax,
    resampling_log_weights,
)
from softdex.objective.resample import resample_counts, row_seeds
from softdex.objective.sampled import MASKED_SCORE
from softdex.objective.stream import Cache, Frequencies
from softdex.share import draw, present

OBJECTIVES = ("ssl", "ssl_pop", "mns", "g_tower", "bir", "xir")
RESAMPLED = ("bir", "xir")
SLOTS = 2**20  # limit of the hashed array of a stream, which may hold any number of items


class Candidates(NamedTuple):
    """The candidates of a batch: ids (N,), vectors (N, D), offsets (N,) if any, log-probabilities
    (N,), and `own`, the number of them that are the batch's; those come first."""

    ids: Tensor
    vectors: Tensor
    offsets: Tensor | None
    logp: Tensor
    own: int


class Rows(NamedTuple):
    """Rows of a batch: queries (B, D), targets (B,), their scores (B,), their own places among the
    candidates (B,), and in a group the seeds by which each pool is resampled (pools, B)."""

    query: Tensor
    target: Tensor
    pos: Tensor
    place: Tensor
    seeds: Tensor | None


@final
class InBatch(nn.Module):
    """The loss per row against the batch. Its state (frequencies, cache) is saved with a run.

    Args:
        objective: one of OBJECTIVES.
        logp: log-probability per item of being in a batch (I,).
        batch: rows per batch.
        draws: candidates resampled per row (`bir`; `xir`: half of them from the cache), or uniform
            items that join the batch (`mns`). None: the number of rows.
        correction: of resampled items, see `resampled_softmax`.
        own, hits: see `exclusion_mask`; the `uniform` correction keeps both, else its gradient is
            not that of a softmax.
        cache_share: weight of the loss on the cache.
        cache_weight: divisor of a cached item's resampling weight: its popularity (`pop`), or its
            `occurrence` in the cache.
        cache_decay: fraction of an occurrence that remains after a step.
        rate: of the moving average of the streaming estimate.
        block: rows whose scores are held at a time; they are computed again for the gradient. 0
            holds all.
        padded: whether targets may be -1 (padding).
        seed: of the initial cache.
        warm: items that may be drawn, by `mns` and for the initial cache; None: all.
    """

    logp: Tensor
    warm: Tensor

    def __init__(
        self,
        objective: str,
        logp: Tensor,
        batch: int,
        *,
        draws: int | None = None,
        correction: str = "none",
        own: str = "drop",
        hits: str = "drop",
        cache_share: float = 0.5,
        cache_weight: str = "pop",
        cache_decay: float = 1.0,
        rate: float = 0.01,
        block: int = 0,
        padded: bool = False,
        seed: int = 0,
        warm: Tensor | None = None,
    ) -> None:
        super().__init__()
        if correction == "uniform" and objective in ("bir", "xir"):
            own = hits = "keep"
        self.objective, self.draws, self.correction = objective, draws, correction
        self.own, self.hits, self.block, self.padded = own, hits, block, padded
        self.cache_share, self.cache_weight = cache_share, cache_weight
        self.register_buffer("logp", logp, persistent=False)
        warm = torch.arange(len(logp)) if warm is None else warm
        self.register_buffer("warm", warm, persistent=False)
        if objective == "g_tower":
            self.frequencies = Frequencies(min(SLOTS, 2 * len(logp)), len(logp) / batch, rate)
        if objective == "xir":
            generator = torch.Generator().manual_seed(seed)
            first = warm[torch.randint(len(warm), (batch,), generator=generator)]
            self.cache = Cache(first, len(logp), cache_decay)

    def forward(
        self, index: Index, query: Tensor, target: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Loss (B,) of targets (B,). Padding (-1) has any loss, and is no row's candidate."""
        others, place = self._candidates(index.scorer, target, generator)
        query = index.scorer.project(query)
        pos = (query * others.vectors[place]).sum(1)
        pos = pos if others.offsets is None else pos + others.offsets[place]
        rows = Rows(query, target, pos, place, self._seeds(target, generator))
        if self.block:
            parts = _split(rows, self.block)
            counts = [self._drawn(part, others, generator) for part in parts]
            each = zip(parts, counts, strict=True)
            loss = torch.cat([_twice(self._against, p, others, c) for p, c in each])
        else:
            scores = _scores(rows, others)
            counts = [self._drawn(rows, others, generator, scores)]
            loss = self._against(rows, others, counts[0], scores)
        if self.objective == "xir":
            total = torch.stack([c.sum(0) for c in counts]).sum(0)
            total = total if present() is None else group.all_reduce_sum(total)
            self.cache.replace(others.ids.clamp(min=0), total, generator)
        return loss

    def _candidates(
        self, scorer: Any, target: Tensor, generator: torch.Generator
    ) -> tuple[Candidates, Tensor]:
        """The candidates of the batch of all ranks, and the place of each row of this one."""
        share, place = present(), torch.arange(len(target), device=target.device)
        if share is None:
            size, ids = len(target), self._ids(target, generator)
            vectors = scorer.vectors(ids)
        else:
            place = share.places.to(target.device)
            (found, targets, places), _ = gathered(scorer.vectors(target), target, place)
            order = places.argsort()
            size, ids = share.total, self._ids(targets[order], generator)
            vectors = torch.cat([found[order], scorer.vectors(ids[size:])])
        return Candidates(ids, vectors, scorer.offsets(ids), self._law(ids, size), size), place

    def _seeds(self, target: Tensor, generator: torch.Generator) -> Tensor | None:
        """The seeds of the rows in each pool (pools, B), as one process draws them; None alone."""
        if self.objective not in RESAMPLED or target.is_cuda or present() is None:
            return None
        pools = 2 if self.objective == "xir" else 1

        def whole(rows: int) -> Tensor:
            parts = torch.split(torch.arange(rows), self.block or max(1, rows))
            each = [
                torch.stack([row_seeds(len(part), generator) for _ in range(pools)])
                for part in parts
            ]
            return torch.cat(each, 1)

        return draw(len(target), whole, dim=1)

    def _ids(self, target: Tensor, generator: torch.Generator) -> Tensor:
        """The ids of all candidates: the batch's items, then those that join them."""
        if self.objective == "xir":
            return torch.cat([target, self.cache.ids])
        if self.objective != "mns":
            return target
        shape, device = (self.draws or len(target),), target.device
        more = torch.randint(len(self.warm), shape, generator=generator, device=device)
        return torch.cat([target, self.warm[more]])

    def _law(self, ids: Tensor, size: int) -> Tensor:
        """log p per candidate, up to a constant; the first `size` are the batch's own.

        Padding (-1) gets a value so large that it never counts.
        """
        return torch.where(ids < 0, -MASKED_SCORE, self._log_probability(ids, size))

    def _log_probability(self, ids: Tensor, size: int) -> Tensor:
        if self.objective == "g_tower":
            return self.frequencies(ids)
        logp = self.logp[ids]
        if self.objective == "ssl":
            return torch.zeros_like(logp)
        if self.objective == "mns":
            return mixture_log_prob(logp, (ids[:size] >= 0).sum(), len(ids) - size, len(self.warm))
        if self.objective == "xir" and self.cache_weight == "occurrence":
            came = self.cache.occurrences(ids[size:]).clamp(min=1).double().log()
            return torch.cat([logp[:size], came.to(logp)])
        return logp

    def _pools(self, others: Candidates) -> list[tuple[slice, float, int]]:
        """The pools that are resampled: candidates, weight of the loss, draws per row."""
        draws, here = self.draws or others.own, slice(0, others.own)
        if self.objective == "bir":
            return [(here, 1.0, draws)]
        half, there = max(1, draws // 2), slice(others.own, len(others.ids))
        return [(here, 1 - self.cache_share, half), (there, self.cache_share, half)]

    @torch.no_grad()
    def _drawn(
        self,
        rows: Rows,
        others: Candidates,
        generator: torch.Generator,
        scores: Tensor | None = None,
    ) -> Tensor:
        """Counts (B, N) of resampled candidates; (B, 0) where nothing is resampled."""
        if self.objective not in RESAMPLED:
            return rows.target.new_empty(len(rows.target), 0)
        scores = _scores(rows, others) if scores is None else scores
        out = self._left_out(rows, others)
        counts = torch.empty_like(scores, dtype=torch.int32)
        for number, (pool, _, draws) in enumerate(self._pools(others)):
            given = {} if rows.seeds is None else {"seeds": rows.seeds[number]}
            weight = _weight(scores, others, out, pool)
            counts[:, pool] = resample_counts(weight, draws, generator, **given)
        if out is not None:
            counts.masked_fill_(out, 0)
        return counts.mul_((rows.target >= 0).unsqueeze(1)) if self.padded else counts

    def _against(
        self, rows: Rows, others: Candidates, counts: Tensor, scores: Tensor | None = None
    ) -> Tensor:
        """Loss (B,) of these rows."""
        scores = _scores(rows, others) if scores is None else scores
        if self.objective not in RESAMPLED:
            own = others.logp[rows.place]
            return batch_softmax(rows.pos, scores, self._left_out(rows, others), others.logp, own)
        losses = []
        for pool, share, _ in self._pools(others):
            weight = None
            if self.correction == "proposal":
                weight = _weight(scores, others, self._left_out(rows, others), pool)
            kept = scores[:, pool], counts[:, pool], weight
            losses.append(share * resampled_softmax(rows.pos, *kept, correction=self.correction))
        return torch.stack(losses).sum(0)

    def _left_out(self, rows: Rows, others: Candidates) -> Tensor | None:
        out = exclusion_mask(
            rows.target, others.ids, own=self.own, hits=self.hits, offset=rows.place
        )
        if not self.padded:
            return out
        nobody = (others.ids < 0).expand(len(rows.target), -1)
        return nobody if out is None else out | nobody


def _split(rows: Rows, size: int) -> list[Rows]:
    pieces = [torch.split(t, size) for t in rows[:4]]
    seeds = [None] * len(pieces[0]) if rows.seeds is None else torch.split(rows.seeds, size, 1)
    return [Rows(*part) for part in zip(*pieces, seeds, strict=True)]


def _twice(function: Callable[..., Tensor], *given: Any) -> Tensor:
    """Compute now, and again for the gradient, so that nothing is kept in between."""
    found: Tensor = checkpoint(function, *given, use_reentrant=False, preserve_rng_state=False)
    return found


def _scores(rows: Rows, others: Candidates) -> Tensor:
    scores = rows.query @ others.vectors.T
    return scores if others.offsets is None else scores + others.offsets


def _weight(scores: Tensor, others: Candidates, out: Tensor | None, pool: slice) -> Tensor:
    """Log-weights (B, N) by which the candidates of a pool are resampled."""
    out = None if out is None else out[:, pool]
    return resampling_log_weights(scores[:, pool], others.logp[pool], out)
