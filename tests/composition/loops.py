"""Plain loops over what a training recorded: histories, rates, Adam, lists. All in float64.

Nothing here calls the library's objectives, samplers, feeds, encoders, scorers or optimisers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

import softdex as sdx
from composition.recorded import Step, recorded
from composition.suite import Case, tiny
from softdex.encode.table import Table
from softdex.recipes import catalogue

TOLERANCE = 5e-5  # of the largest number of a tensor: a float32 run against float64 loops
BETAS, EPS = (0.9, 0.999), 1e-8  # of Adam


class Facts(NamedTuple):
    """A log as plain lists: per event its user, item and weight; per user the items in the order of
    time, and the weights of these events; per item the number of events."""

    user: list[int]
    item: list[int]
    weight: list[float]
    histories: list[list[int]]
    weights: list[list[float]]
    counts: list[int]


class Ran(NamedTuple):
    """A training: all options, the log, the model, and every step."""

    options: dict[str, Any]
    log: sdx.Interactions
    facts: Facts
    model: sdx.Retriever
    steps: list[Step]


def trained(case: Case, log: sdx.Interactions | None = None, **given: Any) -> Ran:
    """Train the recipe of a case, and record every step; `given` goes to `fit` as well."""
    log = tiny() if log is None else log
    with recorded() as steps:
        model = sdx.fit(case.recipe, log, quiet=True, **case.options, **given)
    return Ran(catalogue.options(case.recipe) | case.options, log, facts_of(log), model, steps)


def facts_of(log: sdx.Interactions) -> Facts:
    """Read a log row by row."""
    user, item = log.user.tolist(), log.item.tolist()
    weight = [1.0] * len(user) if log.weight is None else [float(w) for w in log.weight]
    time = [0] * len(user) if log.time is None else log.time.tolist()
    counts = [item.count(i) for i in range(log.num_items)]
    order = sorted(range(len(user)), key=lambda n: time[n])
    mine = [[n for n in order if user[n] == u] for u in range(log.num_users)]
    histories = [[item[n] for n in rows] for rows in mine]
    weights = [[weight[n] for n in rows] for rows in mine]
    return Facts(user, item, weight, histories, weights, counts)


def close(found: Any, wanted: Any, what: str, scale: float = 0.0) -> None:
    """Compare numbers, up to a small part of the largest of them (or of `scale`)."""
    found, wanted = (torch.as_tensor(x).detach().double() for x in (found, wanted))
    assert found.shape == wanted.shape, f"{what}: {tuple(found.shape)}, not {tuple(wanted.shape)}"
    if not found.numel():
        return
    size = max(float(wanted.abs().max()), scale)
    worst = float((found - wanted).abs().max())
    assert worst <= TOLERANCE * size + 1e-9, f"{what}: {found}\nis not\n{wanted}"


# tables in a step ---------------------------------------------------------------------------------


class Rows:
    """A table in a step: its rows, and which of them were looked up."""

    def __init__(self, weight: Tensor, *, learns: bool = True) -> None:
        self.weight = weight.clone().requires_grad_(learns)
        self.seen: set[int] = set()

    def __len__(self) -> int:
        return len(self.weight)

    def __getitem__(self, row: int) -> Tensor:
        self.seen.add(int(row))
        return self.weight[row]


class Leaves:
    """The tables and the dense parameters before a step, by their names in the state."""

    def __init__(self, step: Step) -> None:
        state = step.before
        self.names = {table: name for name, table in step.tables.items()}
        self.tables = {name: Rows(state[f"model.{name}.weight"]) for name in step.tables}
        kept = [n for n in step.parameters if f"model.{n}" in state]  # empty ones may share a place
        self.dense = {n: state[f"model.{n}"].clone().requires_grad_() for n in kept}

    def of(self, table: Table) -> Rows:
        """The rows of a table of the run."""
        return self.tables[self.names[table]]


def check_step(
    ran: Ran, number: int, leaves: Leaves, loss: Tensor, moving: Iterable[str] = ()
) -> None:
    """Compare loss and gradients of a step, and the tables that Adam makes of them.

    `moving` names what else in the model the step may change.
    """
    step, options = ran.steps[number], ran.options
    close(step.loss, loss, f"loss of step {number}", scale=1e-3)
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    lr, moved = rate(ran, number), {"generator", "total", *(f"model.{n}" for n in moving)}
    for i, optimizer in enumerate(step.trainer.optimizers):
        name, rows = leaves.names[optimizer.table], leaves.of(optimizer.table)
        wanted = torch.zeros_like(rows.weight) if rows.weight.grad is None else rows.weight.grad
        found = step.gradients.get(optimizer.table, torch.zeros_like(wanted))
        size = 0.02 if name.startswith("loss.") else 1e-5  # of what cancels in it
        close(found, wanted, f"gradient of {name} in step {number}", scale=size)
        _check_rows(step, i, f"model.{name}.weight", rows.seen, found, lr, options)
        moved |= {f"model.{name}.weight", *(f"optimizer.{i}.{n}" for n in KEPT)}
    for i, name in enumerate(step.parameters):
        moved |= {f"model.{name}", *(f"dense.{i}.{n}" for n in ("step", "exp_avg", "exp_avg_sq"))}
        if name not in leaves.dense:
            continue
        parameter = leaves.dense[name]
        gradient = step.dense.get(name, torch.zeros_like(parameter))
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        close(gradient, wanted, f"gradient of {name} in step {number}", scale=1e-5)
        if name in step.dense:
            _check_dense(step, i, f"model.{name}", gradient, lr, options["decay"])
    for name, tensor in step.before.items():
        assert name in moved or torch.equal(tensor, step.after[name]), f"{name} changed in a step"


KEPT = ("age", "first", "second")


def _check_rows(
    step: Step, i: int, name: str, seen: set[int], grads: Tensor, lr: float, given: dict[str, Any]
) -> None:
    """Adam on the rows that were looked up: own ages, decay beside it."""
    (b1, b2), before, after = BETAS, step.before, step.after
    age, first, second = (before[f"optimizer.{i}.{n}"].clone() for n in KEPT)
    move = torch.zeros_like(before[name])
    assert second.shape[1] == (1 if given["per_row"] else first.shape[1])
    for row in seen:
        age[row] += 1
        t, g = float(age[row]), grads[row]
        square = (g * g).mean() if given["per_row"] else g * g
        first[row] = b1 * first[row] + (1 - b1) * g
        second[row] = b2 * second[row] + (1 - b2) * square
        step_size = first[row] / (1 - b1**t) / ((second[row] / (1 - b2**t)).sqrt() + EPS)
        move[row] = -lr * (step_size + given["decay"] * before[name][row])
    for kept, wanted in zip(KEPT, (age, first, second), strict=True):
        close(after[f"optimizer.{i}.{kept}"], wanted, f"{kept} of {name}")
    _check_move(before[name], after[name], move, name)


def _check_dense(step: Step, i: int, name: str, g: Tensor, lr: float, decay: float) -> None:
    """AdamW on a whole parameter."""
    (b1, b2), before, after = BETAS, step.before, step.after
    t = float(before[f"dense.{i}.step"]) + 1
    first = b1 * before[f"dense.{i}.exp_avg"] + (1 - b1) * g
    second = b2 * before[f"dense.{i}.exp_avg_sq"] + (1 - b2) * g * g
    move = first / (1 - b1**t) / ((second / (1 - b2**t)).sqrt() + EPS) + decay * before[name]
    close(after[f"dense.{i}.exp_avg"], first, f"first moment of {name}")
    close(after[f"dense.{i}.exp_avg_sq"], second, f"second moment of {name}")
    _check_move(before[name], after[name], -lr * move, name)


def _check_move(before: Tensor, after: Tensor, move: Tensor, name: str) -> None:
    """A tensor moved as it should, up to the rounding of its own numbers."""
    rounding = float(before.abs().max()) * 2**-23 / TOLERANCE if before.numel() else 0.0
    close(after - before, move, f"move of {name}", scale=rounding)


# a run --------------------------------------------------------------------------------------------


def steps_per_epoch(ran: Ran) -> int:
    """Steps of an epoch."""
    return len(ran.steps) // int(ran.options["epochs"])


def rate(ran: Ran, number: int) -> float:
    """The learning rate of a step: it falls with the epochs, to the fraction `lr_end`."""
    epochs, epoch = ran.options["epochs"], number // steps_per_epoch(ran)
    fall = epoch / (epochs - 1) if epochs > 1 else 0.0
    return float(ran.options["lr"] * (1 - fall * (1 - ran.options["lr_end"])))


def check_run(ran: Ran, size: int, rate_of: Callable[[Ran, int], float] = rate) -> None:
    """Every epoch is one pass over `size` rows in an order of its own, rates fall as they should,
    nothing but the index changes between steps, and the seed is that of the options."""
    options, steps, per = ran.options, ran.steps, steps_per_epoch(ran)
    assert len(steps) == options["epochs"] * per
    assert per == -(-size // options["batch_size"])
    orders = []
    for epoch in range(options["epochs"]):
        batches = [step.at.tolist() for step in steps[epoch * per : (epoch + 1) * per]]
        assert all(len(batch) == options["batch_size"] for batch in batches[:-1])
        orders.append([at for batch in batches for at in batch])
        assert sorted(orders[-1]) == list(range(size))
        mean = sum(step.loss for step in steps[epoch * per : (epoch + 1) * per]) / per
        assert ran.model.card.training is not None
        record = ran.model.card.training["history"][epoch]
        assert record["epoch"] == epoch + 1
        close(record["loss"], mean, "the loss of the record", scale=1)
    assert all(a != b for a, b in itertools.pairwise(orders))
    for number, step in enumerate(steps):
        close(step.lr, rate_of(ran, number), f"learning rate of step {number}")
    for number, (last, now) in enumerate(itertools.pairwise(steps), 1):
        for name, tensor in now.before.items():
            fresh = name == "total" and number % per == 0
            same = torch.equal(tensor, last.after[name])
            assert fresh or same or name.startswith("index."), f"{name} changed between steps"
    first = steps[0].before
    moments = [n for n in first if n.startswith(("optimizer.", "dense."))]
    assert all(not first[n].any() for n in moments)
    start = torch.Generator().manual_seed(options["seed"] + 1).get_state()
    assert torch.equal(steps[0].generator.get_state(), start), "the run has another seed"


# lists --------------------------------------------------------------------------------------------


def check_lists(
    ran: Ran,
    score: Callable[[int], Sequence[float]],
    given: Sequence[Sequence[int]] = (),
    score_given: Callable[[Sequence[int]], Sequence[float]] | None = None,
) -> None:
    """Compare `recommend` with scores per item: of every user by key that is served, and of given
    histories."""
    users, items = (keys.all().to_pylist() for keys in (ran.model.users, ran.model.items))
    by_features = ran.options.get("user_features") is not None
    known = [u for u, past in enumerate(ran.facts.histories) if past or by_features]
    found = ran.model.recommend([users[u] for u in known], k=len(items)).to_pydict()
    for u in known:
        name = users[u]
        _check_list(_of(found, name, items), score(u), ran.facts.histories[u])
    if score_given is not None:
        names = [[items[i] for i in history] for history in given]
        found = ran.model.recommend(history=names, k=len(items)).to_pydict()
        for n, history in enumerate(given):
            _check_list(_of(found, n, items), score_given(history), history)


def _of(found: dict[str, list[Any]], user: Any, items: list[Any]) -> list[tuple[int, float]]:
    rows = zip(*(found[n] for n in ("user", "rank", "item", "score")), strict=True)
    mine = sorted((r, items.index(i), s) for u, r, i, s in rows if u == user)
    assert [rank for rank, _, _ in mine] == list(range(1, len(mine) + 1))
    return [(item, score) for _, item, score in mine]


def _check_list(
    found: list[tuple[int, float]], scores: Sequence[float], seen: Iterable[int]
) -> None:
    """A list holds every item but the seen ones, by falling score, ties by their order."""
    wanted = {i for i in range(len(scores)) if i not in set(seen) and scores[i] > -math.inf}
    assert {item for item, _ in found} == wanted
    size = max((abs(scores[i]) for i in wanted), default=0.0)
    for item, score in found:
        close(score, scores[item], "a served score", scale=size)
    for (a, one), (b, two) in itertools.pairwise(found):
        assert one > two or (one == two and a < b)
        assert scores[a] >= scores[b] - TOLERANCE * size


def ndcg(ranked: Sequence[int], targets: Iterable[int], k: int) -> float:
    """NDCG of one list with binary gains."""
    wanted = set(targets)
    gain = sum(1 / math.log2(n + 2) for n, i in enumerate(ranked[:k]) if i in wanted)
    return gain / sum(1 / math.log2(n + 2) for n in range(min(k, len(wanted))))
