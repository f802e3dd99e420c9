"""The losses of a row against its draws by loops, and the numbers that some of them train."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from composition.loops import Leaves, Ran
from composition.products import Pair

softplus = torch.nn.functional.softplus


class Row(NamedTuple):
    """A row of a step: its user and projected query, the target, the draws and log q of all."""

    user: int
    query: Tensor
    target: int
    ids: list[int]
    law: Sequence[float]


def row_loss(ran: Ran, pair: Pair, leaves: Leaves, row: Row) -> Tensor:
    """The loss of a row against its draws, without those that are its target."""
    options, target, law = ran.options, row.target, row.law
    objective, ids = options["objective"], row.ids
    if objective == "sml":
        return _metric(ran, pair, leaves, row)
    each = {i: pair.score(row.query, i) for i in {*ids, target}}
    own, others = each[target], torch.stack([each[i] for i in ids])
    logq = torch.tensor([law[i] for i in ids], dtype=torch.float64)
    misses = [n for n, i in enumerate(ids) if i != target]
    kept = others[misses]
    if objective == "ssm" and options["correct"] == "all":
        corrected = own - law[target]
        return torch.cat([corrected.view(1), others - logq]).logsumexp(0) - corrected
    if objective == "bce":
        return softplus(-own) + softplus(kept).sum() / max(1, len(kept))
    if objective == "uib":
        border = leaves.tables["loss.boundary"][row.user][0]
        wrong = _hinge if options["link"] == "hinge" else softplus
        return wrong(border - own) + sum(wrong(o - border) for o in kept) / max(1, len(kept))
    if not misses:
        return 0 * own
    if objective == "ssm":
        rest = math.log1p(-math.exp(law[target])) - math.log(len(misses))
        return torch.cat([own.view(1), kept - logq[misses] + rest]).logsumexp(0) - own
    if objective == "bpr":
        return softplus(kept - own).mean()
    if objective == "dns":
        return softplus(kept.max() - own)
    if objective == "warp":
        return _first_violator(ran, own, kept, [ids[n] for n in misses], row)
    if objective == "sparsemax":
        return sparsemax(own, [own, *kept])
    assert objective in ("self_adversarial", "pris")
    unlikely = logq[misses] if objective == "pris" else 0.0
    return ((kept.detach() - unlikely).softmax(0) * softplus(kept - own)).sum()


def _hinge(x: Tensor) -> Tensor:
    return (x + 1).clamp(min=0)


def _first_violator(ran: Ran, own: Tensor, others: Tensor, ids: list[int], row: Row) -> Tensor:
    """A hinge against the first draw within the margin, by the rank that the trials suggest."""
    margin, least = ran.options["margin"], float(own.detach()) - ran.options["margin"]
    for trial, (item, score) in enumerate(zip(ids, others, strict=True), 1):
        if float(score.detach()) <= least:
            continue
        likely = math.exp(row.law[item])
        rank = max(1, math.floor((1 - math.exp(row.law[row.target])) / likely / trial + 1e-6))
        harmonic = sum(1 / r for r in range(1, rank + 1))
        weight = math.log(rank) if ran.options["rank_weight"] == "log" else harmonic
        return weight * (margin - own + score)
    return 0 * own


def sparsemax(own: Tensor, scores: Sequence[Tensor]) -> Tensor:
    """The sparsemax loss: as many of the best scores count as exceed the threshold they give."""
    ranked = sorted(scores, key=lambda o: -float(o.detach()))
    sizes = [float(o.detach()) for o in ranked]
    most = max(n for n, o in enumerate(sizes, 1) if n * o > sum(sizes[:n]) - 1)
    support = torch.stack(ranked[:most])
    level = (support.sum() - 1) / most
    return (support**2 - level**2).sum() / 2 + 0.5 - own


def _metric(ran: Ran, pair: Pair, leaves: Leaves, row: Row) -> Tensor:
    """Draws farther than the target from the user, and from the target, by a margin of each."""
    options, mine = ran.options, row.query / 2
    points = {i: pair.direction(i) for i in {*row.ids, row.target}}
    own, kept = points[row.target], [i for i in row.ids if i != row.target]
    near = (mine - own).square().sum()
    margins = [
        options["most_margin"] / (1 + (-leaves.tables[f"loss.{name}"][n][0]).exp())
        for name, n in (("of_users", row.user), ("of_items", row.target))
    ]
    found = -options["reward"] * (margins[0] + margins[1])
    for centre, margin, share in zip((mine, own), margins, (1.0, options["symmetry"]), strict=True):
        for i in kept:
            excess = near + margin - (centre - points[i]).square().sum()
            found = found + share * excess.clamp(min=0) / len(kept)
    return found


def numbers_of(ran: Ran) -> dict[str, Tensor]:
    """What losses train beside vectors, before the first step."""
    users, items = torch.zeros(ran.log.num_users, 1), torch.zeros(ran.log.num_items, 1)
    made: dict[str, dict[str, Tensor]] = {
        "uib": {"loss.boundary.weight": users},
        "sml": {"loss.of_users.weight": users, "loss.of_items.weight": items},
    }
    return made.get(ran.options["objective"], {})
