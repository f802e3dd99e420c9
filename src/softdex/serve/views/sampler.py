"""Sampler: proposals of negatives beside the softmax that they stand for, for one user.

    p(i) = softmax of score / temperature over living items
    KL(q || p) = sum_i q(i) (log q(i) - log p(i))
    effective draws of n = n / sum_i p(i)^2 / q(i)

The latter is the limit of (sum w)^2 / sum w^2, w = p / q, over many draws. Shapes: I items.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from softdex.errors import did_you_mean
from softdex.index.contract import Index
from softdex.index.divergence import divergence
from softdex.index.imi.books import codewords_for
from softdex.index.imi.index import Imi
from softdex.index.proposals import PROPOSALS, ProposalOptions
from softdex.index.tree.tree import Tree, as_tree
from softdex.model.asking import Asked, query_of
from softdex.model.estimate import Softmax, calibrated, softmax_of
from softdex.score.counting import Constant
from softdex.serve.problems import Problem
from softdex.serve.study import Study, some

LARGE = 200_000  # items that a model without vectors scores for a view, at most
SHARED = ("uniform", "popularity")  # the same for all users
BUILT = (*SHARED, "imi_uniform", "imi_popularity")
WALKS = "tree"
FITTED = 20_000_000  # scores that a temperature is fitted to, for this many users at least and most
LEAST_FITTED, MOST_FITTED = 20, 500
BINS = 72  # of the curves
SHOWN = 50  # draws that are listed
LEAVES = 4096  # scored at a time
NOBODY = torch.empty(1, 0)  # one query of a scorer that reads none


class Law(NamedTuple):
    """The softmax of a user: scores over the temperature and log p, (I,) in float64."""

    scores: Tensor
    logp: Tensor


class Made(NamedTuple):
    """Proposals of a model by name, the one that it was trained with or "", and the temperature
    at which they are shown by default: that of the model or, if it has no proposal, the one fitted
    to what was held out."""

    indexes: dict[str, Any]
    own: str
    temperature: float
    fitted: bool


def made(study: Study) -> Made:
    """Return the proposals of a model; refuse one whose scores are no softmax."""
    return study.once("sampler", lambda: _made(study))


def sampler(study: Study, asked: Asked, temperature: float | None) -> dict[str, Any]:
    """Return the proposals of a user beside the softmax: curves, divergence, effective draws."""
    proposals, law, laws = _laws(study, asked, temperature)
    order = law.logp.sort(descending=True, stable=True).indices
    order = order[torch.isfinite(law.logp[order])]
    edges = _edges(len(order))
    p = law.logp.exp()
    rows = []
    for name, logq in laws.items():
        kl, share = divergence(logq, law.logp)
        rows.append(
            {
                "name": name,
                "own": name == proposals.own,
                "kl": kl,
                "effective": share,
                "q": _means(logq.exp()[order], edges),
            }
        )
    return {
        "temperature": _temperature(proposals, temperature),
        "default": proposals.temperature,
        "fitted": proposals.fitted,
        "scales": as_tree(study.model.index) is None,
        "negatives": study.model.options.get("negatives"),
        "items": len(order),
        "perplexity": math.exp(float(torch.special.entr(p).sum())),
        "ranks": [[int(a) + 1, int(b)] for a, b in itertools.pairwise(edges)],
        "p": _means(p[order], edges),
        "proposals": rows,
    }


def draws(
    study: Study, asked: Asked, name: str, n: int, seed: int, temperature: float | None
) -> dict[str, Any]:
    """Draw from a proposal: the draws with log q and weights, and what they estimate.

    The normaliser log sum_i exp(score_i / temperature) is estimated by the logarithm of the mean of
    exp(score / temperature) / q over the draws.
    """
    proposals, law, laws = _laws(study, asked, temperature, only=name)
    scorer, query = _scorer(study, asked, _temperature(proposals, temperature))
    index = _over(proposals, name, scorer, _temperature(proposals, temperature))
    generator = torch.Generator(_device(study, name)).manual_seed(seed)
    with torch.inference_mode():
        asks = NOBODY if name in SHARED else query
        found = index.sample(asks, n, generator=generator)
    ids, logq = found.ids[0].cpu(), found.logq[0].double().cpu()
    weight = law.scores[ids] - logq
    share = (law.logp[ids] - logq).softmax(0)
    sums, counts = weight.logcumsumexp(0), torch.arange(1, n + 1).double()
    at = np.unique(np.geomspace(1, n, min(n, BINS)).round().astype(int))
    keys = study.keys(ids[:SHOWN].numpy())
    columns = ids[:SHOWN].tolist(), logq.tolist(), law.logp[ids].tolist(), share.tolist()
    return {
        "proposal": name,
        "n": n,
        "distinct": len(ids.unique()),
        "effective": float(1 / (share**2).sum()),
        "expected": n * divergence(laws[name], law.logp)[1],
        "normaliser": float(law.scores.logsumexp(0)),
        "estimates": [[int(i), float(sums[i - 1] - counts[i - 1].log())] for i in at],
        "draws": [
            {"item": key, "log_q": q, "log_p": p, "weight": w}
            for key, (_, q, p, w) in zip(keys, zip(*columns, strict=False), strict=False)
        ],
    }


def walks(tree: Tree, query: Any) -> Tensor:
    """Return the log-probability (I,) that a walk ends at each item, by every node of the tree."""
    above = torch.zeros(1, dtype=torch.float64, device=tree.full.device)
    for level in range(1, tree.depth + 1):
        scores = tree.scores(tree.seen(query, level), level)[0].double()
        siblings = scores.view(-1, tree.arity) if level > 1 else scores[None]
        local = siblings.log_softmax(1).nan_to_num(-torch.inf, neginf=-torch.inf)
        above = (above[:, None] + local).flatten()
    slot = tree.slot_of
    return above[slot.clamp(min=0)].masked_fill((slot < 0) | ~tree.alive, -torch.inf)


# inside ------------------------------------------------------------------------------------------


def _made(study: Study) -> Made:
    model: Any = study.model
    index, scorer, options = model.index, model.index.scorer, dict(model.options)
    items, counts = len(model.items), torch.from_numpy(model.item_counts.astype(np.int64))
    given = _options(items, options if "index" in options else {})
    nobody: Any = Constant(torch.zeros(items))
    found = {
        name: _living(PROPOSALS[name].build(nobody, counts, given), index.alive.cpu())
        for name in SHARED
    }
    if as_tree(index) is not None:
        if items > LARGE:
            text = f"sampler: {model.recipe} would score all {items:,} items for each user."
            raise Problem(404, f"{text} The view is for up to {LARGE:,} items, or item vectors.")
        own = WALKS if options.get("sampling") == "tree" else ""
        return Made(found | {WALKS: index}, own, float(model.temperature), False)
    if not scorer.is_product:
        text = f"sampler: {model.recipe} has no item vectors to draw by."
        raise Problem(404, f"{text} Fit a model that has, such as fastvae, sasrec or rg2.")
    own = f"imi_{index.last}" if isinstance(index, Imi) else options.get("index") or ""
    own = own if own in PROPOSALS else ""
    candidates: Any = softmax_of(model, "sampler", 1.0).candidates
    for name in dict.fromkeys([*BUILT, *([own] if own else [])]):
        if name not in SHARED:
            found[name] = _living(PROPOSALS[name].build(candidates, counts, given), index.alive)
    if isinstance(index, Imi):
        found[own] = index.over(candidates, np.arange(items))
    fits = not own and model.temperature == 1.0 and study.has_holdout
    temperature = _fitted(study) if fits else float(model.temperature)
    return Made(found, own, temperature, fits)


def _fitted(study: Study) -> float:
    """Return the temperature at which what was held out is likeliest, for some users."""
    held = study.holdout
    users = min(MOST_FITTED, max(LEAST_FITTED, FITTED // len(study.model.items)))
    rows = some(np.flatnonzero((held.targets.lengths > 0) & (held.history.lengths > 0)), users)
    return calibrated(study.model, held.take(rows), "allow")


def _options(items: int, given: Mapping[str, Any]) -> ProposalOptions:
    """Return the options of a recipe with proposals, or the defaults."""
    return ProposalOptions(
        power=given.get("power", 0.5),
        codewords=given.get("codewords", codewords_for(items)),
        popularity=given.get("popularity", "power"),
        rank_scale=given.get("rank_scale", 500.0),
    )


def _living(index: Index, alive: Tensor) -> Index:
    dead = (~alive).nonzero()[:, 0]
    return index.delete(dead) if len(dead) else index


def _device(study: Study, name: str) -> torch.device:
    return torch.device("cpu") if name in SHARED else study.model.index.alive.device


def _temperature(proposals: Made, given: float | None) -> float:
    return proposals.temperature if given is None else given


def _scorer(study: Study, asked: Asked, temperature: float) -> tuple[Softmax | None, Any]:
    """Return the softmax of a model with item vectors, and the query that proposals take."""
    query = query_of(study.model, asked.rows, asked.history)
    if as_tree(study.model.index) is not None:
        return None, query
    softmax = softmax_of(study.model, "sampler", temperature)
    with torch.inference_mode():
        return softmax, softmax.scaled(query)


def _over(proposals: Made, name: str, softmax: Softmax | None, temperature: float) -> Any:
    """Return a proposal over the scores of a temperature."""
    if name not in proposals.indexes:
        hint = did_you_mean(name, proposals.indexes)
        raise Problem(422, f"draws: no proposal {name!r}. {hint}", field="proposal")
    index = proposals.indexes[name]
    if softmax is None or name in SHARED or temperature == 1.0:
        return index
    every = np.arange(index.num_items)
    moved = index.over(softmax.candidates, every)
    return moved.update(torch.from_numpy(every)) if isinstance(moved, Imi) else moved


def _laws(
    study: Study, asked: Asked, given: float | None, only: str | None = None
) -> tuple[Made, Law, dict[str, Tensor]]:
    """Return the softmax of a user, and log q of every item by the name of the proposal."""
    proposals = made(study)
    temperature = _temperature(proposals, given)
    softmax, query = _scorer(study, asked, temperature)
    names = [*proposals.indexes] if only is None else [only]
    device = study.model.index.alive.device
    every, laws = torch.arange(len(study.model.items)), dict[str, Tensor]()
    with torch.inference_mode():
        scores = _scores(study, softmax, query, temperature)
        for name in names:
            index = _over(proposals, name, softmax, temperature)
            if isinstance(index, Tree):
                laws[name] = walks(index, query).cpu()
            elif name in SHARED:
                laws[name] = index.log_prob(NOBODY, every)[0].double()
            else:
                laws[name] = index.log_prob(query, every.to(device))[0].double().cpu()
    return proposals, Law(scores, scores.log_softmax(0)), laws


def _scores(study: Study, softmax: Softmax | None, query: Any, temperature: float) -> Tensor:
    """Return scores over the temperature (I,) in float64, -inf for removed items."""
    model: Any = study.model
    if softmax is not None:
        return softmax.candidates(query, slice(None))[0].double().cpu()
    tree: Tree = model.index
    seen = tree.seen_by_items(query)
    parts = torch.split(torch.arange(len(model.items), device=tree.alive.device), LEAVES)
    scores = torch.cat([tree.item_scores(seen, ids)[0].double() for ids in parts]) / temperature
    return scores.masked_fill(~tree.alive | (tree.slot_of < 0), -torch.inf).cpu()


def _edges(items: int) -> np.ndarray:
    """Return where the bins of ranks begin and the last one ends: equal on a logarithmic scale."""
    return np.unique(np.append(0, np.geomspace(1, items, BINS).round().astype(np.int64)))


def _means(values: Tensor, edges: np.ndarray) -> list[float]:
    """Return the mean of the values in each bin."""
    sums = np.concatenate([[0.0], np.cumsum(values.numpy())])[edges]
    return [float(each) for each in np.diff(sums) / np.diff(edges)]
