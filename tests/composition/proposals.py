"""Proposals by loops: the probability of every item, and what an index is after a refit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from composition.loops import Ran, close

FLOOR = 14.0  # no weight in a cell is more than exp(14) times smaller than the largest
ALPHA = 100.0  # of the kernel
SIGMAS = 6.0  # of the number of times an item is drawn


def shared(ran: Ran) -> bool:
    """Whether a batch shares its draws."""
    given = ran.options["shared"]
    if given is not None:
        return bool(given)
    sampled_softmax = ran.options.get("objective", "ssm") == "ssm"  # an autoencoder's, too
    return sampled_softmax and ran.options["index"] in ("uniform", "popularity")


def draws_of(ran: Ran) -> int:
    """The number of draws, per batch or per query."""
    return int(ran.options["negatives"] or (2000 if shared(ran) else 100))


def log_law(
    ran: Ran,
    index: dict[str, Tensor],
    query: Tensor,
    directions: Tensor,
    offsets: Sequence[float],
    living: Sequence[int],
) -> list[float]:
    """log q of every item for one projected query; `index` is the state of the index."""
    word, counts = ran.options["index"], ran.facts.counts
    if word == "kernel":
        return _kernel(index["gram"], query, directions, living)
    if word == "factor_ranks":
        return _factor_ranks(ran, index, query, living)
    weight = dict.fromkeys(living, 0.0)
    for i in living:
        if word == "popularity":
            weight[i] = _log_popularity(ran, counts[i])
        elif word == "imi_exact":
            weight[i] = float(query @ directions[i]) + offsets[i]
        elif word.startswith("imi"):
            words, size = index["words"], index["words"].shape[1]
            first, second = divmod(int(index["cell"][i]), size)
            weight[i] = float(query @ (words[0, first] + words[1, second]) + index["logw"][i])
        else:
            assert word == "uniform"
    level = max(weight.values())
    mass = level + math.log(sum(math.exp(w - level) for w in weight.values()))
    return [weight[i] - mass if i in weight else -math.inf for i in range(len(counts))]


def _kernel(gram: Tensor, z: Tensor, directions: Tensor, living: Sequence[int]) -> list[float]:
    """A block by its mass as of the last refit, then an item of it by its kernel."""
    items, dim = directions.shape
    size = min(2 * dim, items)
    pairs = [(a, b) for a in range(dim) for b in range(a, dim)]
    mass = []
    for row, start in zip(gram, range(0, items, size), strict=True):
        products = sum(
            float(g * z[a] * z[b]) * (1 if a == b else 2)
            for g, (a, b) in zip(row, pairs, strict=True)
        )
        mass.append(ALPHA * products + sum(start <= i < start + size for i in living))
    kernel = {i: ALPHA * float(z @ directions[i]) ** 2 + 1 for i in living}
    inside = [sum(k for i, k in kernel.items() if i // size == b) for b in range(len(mass))]
    return [
        math.log(mass[i // size] / sum(mass) * kernel[i] / inside[i // size])
        if i in kernel
        else -math.inf
        for i in range(items)
    ]


def _factor_ranks(
    ran: Ran, index: dict[str, Tensor], query: Tensor, living: Sequence[int]
) -> list[float]:
    """A factor by its part in the score as of the last refit, then a rank, from the end that the
    query likes."""
    scale, spread = ran.options["rank_scale"], index["spread"].tolist()
    z = [*query.tolist(), 1.0][: len(spread)]  # offsets are a factor that every query likes
    part = [abs(a) * s for a, s in zip(z, spread, strict=True)]
    chance = [math.exp(-rank / scale) for rank in range(len(living))]
    found = [-math.inf] * ran.log.num_items
    for i in living:
        place = zip(z, index["place"][i].tolist(), strict=True)
        rank = [at if a >= 0 else len(living) - 1 - at for a, at in place]
        q = sum(w * chance[r] for w, r in zip(part, rank, strict=True))
        found[i] = math.log(q / sum(part) / sum(chance))
    return found


def _log_popularity(ran: Ran, count: int, *, smooth: bool = True) -> float:
    """The log of the weight of an item by its count; powers are of smoothed counts, but for those
    in cells."""
    word, seen = ran.options["popularity"], max(count, 0.5)
    if word == "log":
        return math.log(math.log1p(seen))
    power = ran.options["power"] if word == "power" else 1.0
    return float(power * math.log(count + 1 if smooth else seen))


def check_frequencies(counts: Sequence[float], laws: Sequence[tuple[int, list[float]]]) -> None:
    """Items are drawn as often as they should: `laws` has the number of draws and log q of each."""
    for item, count in enumerate(counts):
        chances = [(n, math.exp(law[item])) for n, law in laws]
        mean = sum(n * q for n, q in chances)
        deviation = math.sqrt(sum(n * q * (1 - q) for n, q in chances))
        assert abs(count - mean) <= SIGMAS * deviation + 1e-9, f"item {item}: {count}, not {mean}"


# refits -------------------------------------------------------------------------------------------


def check_index(
    ran: Ran,
    directions: Callable[[dict[str, Tensor]], Tensor],
    offsets: Callable[[dict[str, Tensor]], list[float] | None],
    living: Sequence[int],
) -> None:
    """The index of every step is that of the last refit: before the first step, and then after
    every `refit_every` steps, on the vectors of that moment. A multi-index serves, refitted once
    more and with every item.

    Args:
        ran: the training.
        directions: item vectors (I, D) as they are scored, of a state.
        offsets: per item, of a state; None: there are none.
        living: the items in the index.
    """
    steps, served = ran.steps, ran.model.index

    def refit(old: dict[str, Tensor], state: dict[str, Tensor], items: Sequence[int]) -> Any:
        return _refit(ran, old, directions(state), offsets(state), items)

    start = steps[0].before
    wanted = refit(_built(ran, directions(start)), start, living)
    for number, step in enumerate(steps, 1):
        _compare(step.before, "index.", wanted, living, f"in step {number}")
        if number % ran.options["refit_every"] == 0:
            wanted = refit(wanted, step.after, living)
    assert served.searches == ran.options["index"].startswith("imi")
    if served.searches:
        every = range(ran.log.num_items)
        _compare(served.state(), "", refit(wanted, steps[-1].after, every), every, "that serves")


def _compare(
    state: dict[str, Tensor], head: str, wanted: dict[str, Tensor], living: Sequence[int], when: str
) -> None:
    assert state[f"{head}alive"].nonzero()[:, 0].tolist() == list(living)
    for name, tensor in wanted.items():
        close(state[head + name], tensor, f"{name} of the index {when}", scale=1e-3)


def _built(ran: Ran, points: Tensor) -> dict[str, Tensor]:
    """The codebooks before the first refit: 25 rounds from some of the items, by the seed."""
    if not ran.options["index"].startswith("imi"):
        return {}
    return {"words": new_books(points, ran.options["codewords"], ran.options["seed"])}


def _refit(
    ran: Ran,
    old: dict[str, Tensor],
    points: Tensor,
    given: list[float] | None,
    living: Sequence[int],
) -> dict[str, Tensor]:
    """An index after a refit to these vectors and offsets."""
    word = ran.options["index"]
    if word == "kernel":
        return {"gram": _grams(points, living)}
    if word == "factor_ranks":
        return _ranks(ran, points, given, living)
    if not word.startswith("imi"):
        return {}
    words = books(points, old["words"], 4)
    if word == "imi_popularity":
        given = [_log_popularity(ran, count, smooth=False) for count in ran.facts.counts]
    weights = [0.0] * len(points) if given is None else given
    floor = max(weights[i] for i in living) - FLOOR
    logw = torch.tensor([max(w, floor) for w in weights])
    return {"words": words, "cell": cells_of(points, words), "logw": logw}


def _ranks(
    ran: Ran, points: Tensor, given: list[float] | None, living: Sequence[int]
) -> dict[str, Tensor]:
    """The place of every item in each factor, offsets being one more, and the deviations."""
    factors = points.T.tolist() + ([] if given is None else [given])
    place = torch.zeros(len(points), len(factors))
    for f, values in enumerate(factors):
        for rank, i in enumerate(sorted(living, key=lambda i, v=values: -v[i])):
            place[i, f] = rank
    mean = [sum(v[i] for i in living) / len(living) for v in factors]
    squares = [
        sum((v[i] - m) ** 2 for i in living) / len(living)
        for v, m in zip(factors, mean, strict=True)
    ]
    scale = torch.tensor(ran.options["rank_scale"])
    return {"place": place, "spread": torch.tensor(squares).sqrt(), "scale": scale}


def _grams(points: Tensor, living: Sequence[int]) -> Tensor:
    """The sums of x x^T over blocks of 2 D items, their upper triangles row by row."""
    items, dim = points.shape
    size = min(2 * dim, items)
    rows = []
    for start in range(0, items, size):
        inside = [points[i] for i in range(start, min(start + size, items)) if i in living]
        rows.append(
            [sum(float(x[a] * x[b]) for x in inside) for a in range(dim) for b in range(a, dim)]
        )
    return torch.tensor(rows)


def new_books(points: Tensor, size: int, seed: int, *, residual: bool = False) -> Tensor:
    """Codebooks from some of the items, by a seed."""
    generator, size = torch.Generator().manual_seed(seed), min(size, len(points))
    starts = []
    for _ in range(2):
        order = torch.randperm(len(points), generator=generator)
        starts.append([int(order[c % len(points)]) for c in range(size)])
    return books(points, starts, 25, residual=residual)


def books(points: Tensor, start: Any, rounds: int, *, residual: bool = False) -> Tensor:
    """Two codebooks (2, C, D), from books or from the items in `start`: of the halves of vectors,
    or of vectors and of what the first book leaves over."""
    dim, left = points.shape[1], points
    low = dim if residual else dim // 2
    found = torch.zeros(2, len(start[0]), dim, dtype=torch.float64)
    for number, own in enumerate((range(low), range(0 if residual else low, dim))):
        part = left[:, list(own)]
        given = start[number]
        words = part[given] if isinstance(given, list) else given[:, list(own)]
        found[number][:, list(own)] = lloyd(part, words, rounds)
        if residual:
            left = points - found[0][[nearest(x, found[0]) for x in points]]
    return found


def cells_of(points: Tensor, words: Tensor, *, residual: bool = False) -> Tensor:
    """The cell of every item: first word * C + second word."""
    dim = points.shape[1]
    low = dim if residual else dim // 2
    found = []
    for x in points:
        first = nearest(x[:low], words[0][:, :low])
        left = x - words[0][first] if residual else x
        start = 0 if residual else low
        found.append(first * words.shape[1] + nearest(left[start:], words[1][:, start:]))
    return torch.tensor(found)


def nearest(x: Tensor, words: Tensor) -> int:
    """The number of the nearest word."""
    return int((words - x).square().sum(1).argmin())


def lloyd(points: Tensor, words: Tensor, rounds: int) -> Tensor:
    """Words move to the means of their points, those without points to the farthest points."""
    for _ in range(rounds):
        codes = [nearest(x, words) for x in points]
        far = [float((x - words[c]).square().sum()) for x, c in zip(points, codes, strict=True)]
        order = sorted(range(len(points)), key=lambda n: -far[n])
        moved, least = words.clone(), 1e-9 * float(points.square().sum(1).mean())
        for c in range(len(words)):
            mine = [n for n, code in enumerate(codes) if code == c]
            if mine:
                moved[c] = points[mine].mean(0)
                continue
            if order and far[order[0]] > least:
                moved[c] = points[order[0]]
            order = order[1:]
        words = moved
    return words
