"""In-batch objectives on positions of sequences, by loops: rows are targets, some are padding."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from composition.loops import Ran, close
from composition.towers import (
    Resampled,
    against,
    check_cache,
    excluded,
    log_p,
    pools_of,
    resampling_weights,
    slots_of,
)

DEFAULTS: dict[str, Any] = {
    "negatives": None, "own": "drop", "hits": "drop", "correction": "none", "cache_share": 0.2,
    "cache_weight": "pop", "cache_decay": 1.0, "rate": 0.01, "popularity": "count", "power": 0.5,
}  # fmt: skip
Chosen = list[tuple[int, Tensor, int, float]]
"""Of each row that has a target: its place, query, target and weight."""


def losses(
    ran: Ran,
    number: int,
    warm: list[int],
    item: Any,
    chosen: Chosen,
    rows: int,
    generator: torch.Generator,
    resampled: Resampled,
) -> tuple[list[Tensor], list[str]]:
    """The losses of the rows, and what moved beside the tables."""
    o, step = ran.options | DEFAULTS, ran.steps[number]
    ran = ran._replace(options=o)
    targets = [-1] * rows
    for row, _, target, _ in chosen:
        targets[row] = target
    ids = list(targets)
    if o["objective"] == "mns":
        ids += [warm[n] for n in torch.randint(len(warm), (rows,), generator=generator).tolist()]
    if o["objective"] == "xir":
        ids += step.before["model.loss.cache.ids"].tolist()
        if number == 0:
            _check_first(ran, warm, ids[rows:])
    law, moving = _law(ran, number, targets, ids, len(chosen) / (len(chosen) + rows), warm)
    vectors = [item(i) if i >= 0 else None for i in ids]
    pools, found, totals = pools_of(o, rows, len(ids)), [], [0] * len(ids)
    for row, query, target, _ in chosen:
        zero = torch.zeros((), dtype=torch.float64)
        scores = torch.stack([zero if v is None else query @ v for v in vectors])
        out = [i < 0 or excluded(o, row, n, ids) for n, i in enumerate(ids)]
        own = query @ item(target)
        if o["objective"] not in ("bir", "xir"):
            pos, kept = own - law[row], [n for n in range(len(ids)) if not out[n]]
            terms = [pos, *(scores[n] - law[n] for n in kept)]
            found.append(torch.stack(terms).logsumexp(0) - pos)
            continue
        calls = resampled.calls[number * len(pools) : (number + 1) * len(pools)]
        loss = zero
        for (pool, share, draws), (logw, asked, drawn, _) in zip(pools, calls, strict=True):
            assert asked == draws
            wanted = resampling_weights(scores, law, out, pool)
            close(logw[row].exp(), wanted, f"weights of row {row}", scale=20.0)
            counts = [0] * len(ids)
            for n, count in zip(pool, drawn[row].tolist(), strict=True):
                counts[n] = 0 if out[n] else count
                totals[n] += counts[n]
            loss = loss + share * against(o, own, scores, counts, [], pool)
        generator.set_state(calls[-1][3])
        found.append(loss)
    if o["objective"] == "xir":
        moving += check_cache(ran, number, [max(i, 0) for i in ids], totals, generator)
    return found, moving


def _law(
    ran: Ran, number: int, targets: list[int], ids: list[int], share: float, warm: list[int]
) -> tuple[list[float], list[str]]:
    """log p of the candidates, and what moved to find it."""
    objective, known = ran.options["objective"], log_p(ran)
    if objective == "g_tower":
        return _frequencies(ran, number, targets)
    if objective == "ssl":
        return [0.0] * len(ids), []
    if objective != "mns":
        return [known[i] for i in ids], []
    mixed = [share * math.exp(known[i]) + (1 - share) / len(warm) for i in ids]
    return [math.log(p) for p in mixed], []


def _check_first(ran: Ran, warm: list[int], found: list[int]) -> None:
    """The first cache: random items, as many as there are positions."""
    generator = torch.Generator().manual_seed(ran.options["seed"])
    drawn = torch.randint(len(warm), (ran.options["positions"],), generator=generator).tolist()
    assert found == [warm[n] for n in drawn]


def _frequencies(ran: Ran, number: int, targets: list[int]) -> tuple[list[float], list[str]]:
    """log p of the targets by the intervals between their visits, which move."""
    step, head, rate = ran.steps[number], "model.loss.frequencies.", ran.options["rate"]
    last, interval = (step.before[head + n].clone() for n in ("last", "interval"))
    now = int(step.before[head + "now"]) + 1
    if number == 0:
        first = ran.log.num_items / ran.options["positions"]
        close(interval, torch.full_like(interval, first), "first intervals")
    spare = interval.shape[1] - 1
    slots = [[spare] * 5 if i < 0 else slots_of(ran, i) for i in targets]
    longest = [0.0] * len(targets)
    for h in range(5):
        here = [each[h] for each in slots]
        for slot in set(here):
            gap = (now - int(last[h, slot])) / here.count(slot)
            interval[h, slot] = (1 - rate) * interval[h, slot] + rate * gap
            last[h, slot] = now
        longest = [max(x, float(interval[h, s])) for x, s in zip(longest, here, strict=True)]
    for name, wanted in (("last", last), ("interval", interval), ("now", torch.tensor(now))):
        close(step.after[head + name], wanted, name)
    names = [f"loss.frequencies.{name}" for name in ("last", "interval", "now")]
    return [-math.log(x) for x in longest], names
