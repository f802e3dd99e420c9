"""The in-batch recipes by loops: each row against the items of the batch, resampled or not."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import softdex as sdx
from composition.loops import Leaves, Ran, check_run, check_step, close, trained
from composition.matrix import after_shuffles, batch_of, check_served, check_start
from composition.products import Pair, featured, living
from composition.proposals import books, cells_of, new_books
from composition.suite import Case, row
from softdex.solve.gradient import in_batch

SLOTS = 2**20  # of the hashed arrays, at most
PRIME = 2**31 - 1


class Resampled:
    """What was resampled in a run: log-weights, draws and counts of each call, and the generator
    after it."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, int, Tensor, Tensor]] = []
        self.plain = in_batch.resample_counts

    def __call__(self, log_weight: Tensor, draws: int, generator: torch.Generator) -> Tensor:
        counts = self.plain(log_weight, draws, generator)
        kept = log_weight.double().clone(), draws, counts.clone(), generator.get_state()
        self.calls.append(kept)
        return counts


def check(case: Case, log: sdx.Interactions | None = None) -> None:
    """Every step with its cache and its estimates, the order of the run, and what is served."""
    asked = case.options.get("features") or case.options.get("user_features")
    with patch.object(in_batch, "resample_counts", Resampled()) as resampled:
        ran = trained(case, featured() if asked else log)
    check_start(ran)
    check_run(ran, len(ran.facts.user))
    check_cache_start(ran)
    for number in range(len(ran.steps)):
        _check(ran, number, resampled)
    assert not resampled.calls
    state = dict(ran.steps[-1].after)
    if ran.options["features"] is None:  # items without events were never trained
        name = "model.scorer.items.weight"
        name = name if name in state else "model.encoder.items.weight"
        state[name] = state[name] * torch.tensor(ran.facts.counts).clamp(max=1)[:, None]
    check_served(ran, state)
    check_index(ran)


def log_p(ran: Ran) -> list[float]:
    """log of the probability of each item to be in a batch, by the option `popularity`."""
    kind, power = ran.options["popularity"], ran.options["power"]
    seen = [max(count, 0.5) for count in ran.facts.counts]
    weight = {
        "count": seen,
        "log": [math.log(1 + c) for c in seen],
        "power": [c**power for c in seen],
    }[kind]
    return [math.log(w / sum(weight)) for w in weight]


def _check(ran: Ran, number: int, resampled: Resampled) -> None:
    step, options = ran.steps[number], ran.options
    leaves, objective = Leaves(step), options["objective"]
    pair = Pair(ran, step.before, leaves, salts=step.after)
    generator = after_shuffles(ran, number)
    batch = batch_of(ran, number, generator)
    targets = [target for _, target, _ in batch]
    ids, law = targets + joined(ran, number, generator), []
    for n, item in enumerate(ids):
        law.append(log_of(ran, number, item, targets, own=n < len(targets)))
    queries = [
        pair.projected(pair.query(user, ran.facts.histories[user], target))
        for user, target, _ in batch
    ]
    scores = [torch.stack([pair.score(q, i) for i in ids]) for q in queries]
    out = [[excluded(options, b, n, ids) for n in range(len(ids))] for b in range(len(batch))]
    counts = [[0] * len(ids) for _ in batch]
    weights = [[0.0] * len(ids) for _ in batch]
    pools = pools_of(options, len(targets), len(ids))
    if objective in ("bir", "xir"):
        for start in range(0, len(batch), options["block"] or len(batch)):
            rows = range(len(batch))[start : start + (options["block"] or len(batch))]
            for pool, _, draws in pools:
                logw, asked, drawn, state = resampled.calls.pop(0)
                generator.set_state(state)
                assert asked == draws
                for place, b in enumerate(rows):
                    wanted = resampling_weights(scores[b], law, out[b], pool)
                    close(logw[place].exp(), wanted, f"weights of row {b}", scale=1)
                    assert int(drawn[place].sum()) == draws
                    for n, count in zip(pool, drawn[place].tolist(), strict=True):
                        counts[b][n] = 0 if out[b][n] else count
                        weights[b][n] = float(wanted[n - pool[0]])
    loss = torch.zeros((), dtype=torch.float64)
    for b, (_, _, weight) in enumerate(batch):
        own = scores[b][b]
        if objective not in ("bir", "xir"):
            pos, others = own - law[b], [n for n in range(len(ids)) if not out[b][n]]
            terms = [pos, *(scores[b][n] - law[n] for n in others)]
            loss = loss + weight * (torch.stack(terms).logsumexp(0) - pos)
            continue
        for pool, share, _ in pools:
            found = against(options, own, scores[b], counts[b], weights[b], pool)
            loss = loss + weight * share * found
    moving = [n.removeprefix("model.") for n in step.before if n.endswith(".salt")]
    if objective == "g_tower":
        moving += check_frequencies(ran, number, targets)
    if objective == "xir":
        totals = [sum(row[n] for row in counts) for n in range(len(ids))]
        moving += check_cache(ran, number, ids, totals, generator)
    check_step(ran, number, leaves, loss, moving)


def joined(ran: Ran, number: int, generator: torch.Generator) -> list[int]:
    """The candidates beside the batch's items: the cache, or uniform items."""
    step, objective = ran.steps[number], ran.options["objective"]
    if objective == "xir":
        return [int(i) for i in step.before["model.loss.cache.ids"]]
    if objective != "mns":
        return []
    warm, draws = living(ran), ran.options["negatives"] or len(step.at)
    return [warm[n] for n in torch.randint(len(warm), (draws,), generator=generator).tolist()]


def log_of(ran: Ran, number: int, item: int, targets: list[int], *, own: bool) -> float:
    """log p of a candidate, which is divided by it."""
    step, objective, logp = ran.steps[number], ran.options["objective"], log_p(ran)
    if objective == "ssl":
        return 0.0
    if objective == "g_tower":
        return -math.log(max(intervals(ran, number, item, targets.count(item))))
    if objective == "mns":
        uniform = ran.options["negatives"] or len(targets)
        share = len(targets) / (len(targets) + uniform)
        return math.log(share * math.exp(logp[item]) + (1 - share) / len(living(ran)))
    if objective == "xir" and not own and ran.options["cache_weight"] == "occurrence":
        return math.log(max(1, occurrences(ran, step.before, item)))
    return logp[item]


def excluded(options: dict[str, Any], b: int, n: int, ids: list[int]) -> bool:
    """Whether candidate n is no negative of row b."""
    own, hits = options["own"], options["hits"]
    if options["correction"] == "uniform" and options["objective"] in ("bir", "xir"):
        own = hits = "keep"
    if n == b:
        return bool(own == "drop")
    return bool(hits == "drop" and ids[n] == ids[b])


def pools_of(options: dict[str, Any], size: int, every: int) -> list[tuple[range, float, int]]:
    """What is resampled: places, weight of the loss, draws per row."""
    draws = options["negatives"] or size
    if options["objective"] != "xir":
        return [(range(size), 1.0, draws)]
    share, half = options["cache_share"], max(1, draws // 2)
    return [(range(size), 1 - share, half), (range(size, every), share, half)]


def resampling_weights(scores: Tensor, law: list[float], out: list[bool], pool: range) -> Tensor:
    """The probabilities to resample the candidates of a pool by."""
    terms = [-math.inf if out[n] else float(scores[n].detach()) - law[n] for n in pool]
    if max(terms) == -math.inf:  # nothing is left: any will do, and none of them counts
        return torch.full((len(terms),), 1 / len(terms), dtype=torch.float64)
    weights = [math.exp(t - max(terms)) for t in terms]
    return torch.tensor([w / sum(weights) for w in weights], dtype=torch.float64)


def against(
    options: dict[str, Any],
    own: Tensor,
    scores: Tensor,
    counts: list[int],
    weights: list[float],
    pool: range,
) -> Tensor:
    """The loss of a row against what was resampled of a pool."""
    drawn, total = [n for n in pool if counts[n]], sum(counts[n] for n in pool)
    if not drawn:
        return 0 * own
    each, c = scores[drawn], torch.tensor([float(counts[n]) for n in drawn])
    if options["correction"] == "uniform":
        return (c * each).sum() / total - own
    if options["correction"] == "proposal":
        c = c / total / torch.tensor([weights[n] for n in drawn])
    return torch.cat([own.view(1), each + c.double().log()]).logsumexp(0) - own


# memories -----------------------------------------------------------------------------------------


def slots_of(ran: Ran, item: int) -> list[int]:
    """The place of an item in each of the hashed arrays."""
    slots = min(SLOTS, 2 * ran.log.num_items)
    generator = torch.Generator().manual_seed(slots)
    factors = torch.randint(1, PRIME, (2, 5, 1), generator=generator)[:, :, 0].tolist()
    return [(item % PRIME * a + b) % PRIME % slots for a, b in zip(*factors, strict=True)]


def intervals(ran: Ran, number: int, item: int, times: int, state: str = "before") -> list[float]:
    """The interval between two visits of an item, as each array has it after this step."""
    before, rate = ran.steps[number].before, ran.options["rate"]
    now, found = int(before["model.loss.frequencies.now"]) + 1, []
    targets = [target for _, target, _ in batch_of(ran, number, after_shuffles(ran, number))]
    for h, slot in enumerate(slots_of(ran, item)):
        here = sum(slots_of(ran, other)[h] == slot for other in targets)
        gap = (now - int(before["model.loss.frequencies.last"][h, slot])) / here
        old = float(before["model.loss.frequencies.interval"][h, slot])
        found.append((1 - rate) * old + rate * gap)
    return found


def check_frequencies(ran: Ran, number: int, targets: list[int]) -> list[str]:
    """The estimates of popularity after a step; returns what moved."""
    step, head = ran.steps[number], "model.loss.frequencies."
    first = ran.log.num_items / ran.options["batch_size"]
    before = {n: step.before[head + n].clone() for n in ("interval", "last", "now")}
    if number == 0:
        close(before["interval"], torch.full_like(before["interval"], first), "first intervals")
    for item in set(targets):
        found = intervals(ran, number, item, targets.count(item))
        for h, slot in enumerate(slots_of(ran, item)):
            before["interval"][h, slot] = found[h]
            before["last"][h, slot] = int(step.before[head + "now"]) + 1
    before["now"] += 1
    for name, wanted in before.items():
        close(step.after[head + name], wanted, name)
    return [f"loss.frequencies.{name}" for name in before]


def check_cache_start(ran: Ran) -> None:
    """The first cache holds random items, by the seed."""
    if ran.options["objective"] != "xir":
        return
    warm, size = living(ran), ran.options["batch_size"]
    generator = torch.Generator().manual_seed(ran.options["seed"])
    ids = torch.randint(len(warm), (size,), generator=generator).tolist()
    found = ran.steps[0].before["model.loss.cache.ids"].tolist()
    assert found == [warm[n] for n in ids]


def occurrences(ran: Ran, state: dict[str, Tensor], item: int, later: int = 0) -> int:
    """How often an item was drawn, decayed to a step."""
    count = int(state["model.loss.cache.counts"][item])
    age = int(state["model.loss.cache.now"]) + later - int(state["model.loss.cache.last"][item])
    return int(count * ran.options["cache_decay"] ** age)


def check_cache(
    ran: Ran, number: int, ids: list[int], totals: list[int], generator: torch.Generator
) -> list[str]:
    """The cache after a step: drawn items by their occurrences; returns what moved."""
    before, after, head = ran.steps[number].before, ran.steps[number].after, "model.loss.cache."
    counts = before[head + "counts"].tolist()
    for item in set(ids):
        counts[item] = occurrences(ran, before, item, later=1)
        counts[item] += sum(t for i, t in zip(ids, totals, strict=True) if i == item)
    assert after[head + "counts"].tolist() == counts
    now = int(before[head + "now"]) + 1
    last = [now if i in ids else t for i, t in enumerate(before[head + "last"].tolist())]
    assert after[head + "last"].tolist() == last
    assert int(after[head + "now"]) == now
    drawn = [i for i, t in zip(ids, totals, strict=True) if t]
    weight = [counts[i] / drawn.count(i) if t else 0 for i, t in zip(ids, totals, strict=True)]
    points = torch.rand(len(before[head + "ids"]), generator=generator, dtype=torch.float64)
    for place, point in enumerate(points.tolist()):
        reached = 0.0
        for candidate, share in zip(ids, weight, strict=True):
            reached += share
            if point * sum(weight) < reached:
                assert int(after[head + "ids"][place]) == candidate
                break
    return [f"loss.cache.{name}" for name in ("ids", "counts", "last", "now")]


def check_index(ran: Ran) -> None:
    """The served index is that of the trained vectors."""
    state = ran.model.index.state()
    assert ran.model.index.searches == (ran.options["index"] == "imi")
    if ran.options["index"] != "imi":
        return
    first, last = (Pair(ran, s) for s in (ran.steps[0].before, ran.steps[-1].after))
    points = [torch.stack([p.direction(i) for i in range(p.items)]) for p in (first, last)]
    words = books(
        points[1], new_books(points[0], 4, ran.options["seed"], residual=True), 4, residual=True
    )
    close(state["words"], words, "the codebooks that serve")
    close(state["cell"], cells_of(points[1], words, residual=True), "the cells that serve")
    assert bool(state["alive"].all())


SLOW = {"lr": 0.03, "lr_end": 0.2, "decay": 0.5, "per_row": True}
MIX = {"encoder": "mix", "share": 0.3, "max_history": 2}
COSINE = {"temperature": 0.4, "prior": 0.3}
ALL = {"features": "all", "user_features": ["city"], "id_dropout": 0.4}
GENRE = {"features": ["genre"], "ids": "drop"}


def rows_of(recipe: str, *more: dict[str, Any]) -> list[Case]:
    """The rows of every in-batch recipe: its options of towers and training, then its own."""
    return [
        row(recipe, check, smooth=0.5, **MIX, **COSINE, **SLOW, **more[0]),
        row(
            recipe,
            check,
            index="imi",
            score="dot_bias",
            encoder="mix",
            lr=0.1,
            hits="keep",
            block=5,
            **more[1],
        ),
        row(recipe, check, **ALL, own="keep", block=3, **more[2]),
        row(recipe, check, **GENRE, encoder="history", score="dot", block=3, **more[3]),
    ]


LOG, POWER = {"popularity": "log"}, {"popularity": "power", "power": 0.8}
CASES = [
    *rows_of("ssl", {}, {}, {}, {}),
    *rows_of("ssl_pop", {}, LOG, POWER, {}),
    *rows_of("mns", {}, {"negatives": 5}, LOG, POWER),
    *rows_of("g_tower", {}, {}, {"rate": 0.3}, {"rate": 0.3}),
    *rows_of(
        "bir",
        {},
        {"negatives": 5, "correction": "proposal"},
        {"correction": "uniform"} | LOG,
        POWER,
    ),
    *rows_of(
        "xir",
        {"cache_weight": "occurrence", "cache_decay": 0.6},
        {
            "negatives": 5,
            "correction": "proposal",
            "cache_share": 0.6,
            "cache_weight": "occurrence",
        },
        {"correction": "uniform"} | LOG,
        {"cache_decay": 0.3} | POWER,
    ),
    row("bir", check, batch_size=14),  # the last batch of an epoch is a single row
    row("xir", check, batch_size=14),
    row("xir", check, block=3, own="keep", hits="keep"),
    row("ssl_pop", check, batch_size=14),
    row("ssl_pop", check, score="euclidean", lr=0.3, index="imi"),
    row("xir", check, score="euclidean", lr=0.3, encoder="history"),
]
