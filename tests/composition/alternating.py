"""Closed forms by the loss over all cells, its derivatives and dense solvers in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.autograd.functional import hessian

import softdex as sdx
from composition.logs import Plain, best, check_metrics, held, measured, same_lists, world
from composition.steps import check_patience
from composition.suite import Case
from softdex.recipes import catalogue
from softdex.solve.closed.als import Sweeps

Loss = Callable[..., Tensor]
SMALL = {"dim": 3, "epochs": 2, "seed": 4, "device": "cpu"}


class Sweep(NamedTuple):
    """The tables around an epoch, and the loss per event that it reported."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    loss: float


@contextmanager
def sweeps(kind: Any) -> Iterator[list[Sweep]]:
    """Record the epochs of a trainer."""
    found: list[Sweep] = []
    plain = kind.run_epoch

    def state(trainer: Any) -> dict[str, Tensor]:
        tables = {n: t.double().clone() for n, t in trainer.state().items()}
        made = getattr(trainer, "tables", {})  # of Newton, whose state is one vector
        return tables | {n: t.weight.double().clone() for n, t in made.items()}

    def run(self: Any, *args: Any) -> float:
        before = state(self)
        loss = float(plain(self, *args))
        found.append(Sweep(before, state(self), loss))
        return loss

    with patch.object(kind, "run_epoch", run):
        yield found


# losses over all cells ---------------------------------------------------------------------------


def ials_loss(c: Tensor, o: dict[str, Any]) -> Loss:
    """Confidence c at events, which pull to 1; alpha everywhere, which pulls to 0."""
    users, items = c.shape
    alpha = 16 * c.sum() / (users * items) if o["alpha"] is None else o["alpha"]
    by_user, by_item = alpha * items + c.sum(1), alpha * users + c.sum(0)

    def loss(p: Tensor, q: Tensor, scores: Tensor | None = None, **_: Any) -> Tensor:
        s = p @ q.T if scores is None else scores
        square = alpha * s.square() + c * (s.square() - 2 * s)
        return square.sum() + reg_of(o, by_user, p) + reg_of(o, by_item, q)

    return loss


def rg_loss(c: Tensor, o: dict[str, Any]) -> Loss:
    """Per event c (-o_y + |o + 1|^2 / 2N - beta (1'o)^2 / 2N^2), and alpha (o_y - 1)^2."""
    items, total = c.shape[1], c.sum(1)
    others = 1.0 if o["sampled"] is None else (o["sampled"] + 1) / items
    cells = (total[:, None] / (2 * items)) * (others + (1 - others) * c)
    by_user, by_item = cells.sum(1) + o["alpha"] * total, cells.sum(0) + o["alpha"] * c.sum(0)
    half = others * o["beta"] * total / (2 * items)

    def loss(
        p: Tensor, q: Tensor, scores: Tensor | None = None, held: Tensor | None = None
    ) -> Tensor:
        s = p @ q.T if scores is None else scores
        value = (cells * (s.square() + 2 * s)).sum() - (c * s).sum()
        value = value + others * total.sum() / 2
        value = value + o["alpha"] * (c * (s.square() - 2 * s)).sum()
        if o["interaction"] == "frobenius":
            mixed = s.square().sum(1)
        elif held is None:
            mixed = s.sum(1).square() / items
        else:  # a bound that is linear in what is solved for
            mixed = (2 * s.sum(1) * held - held.square()) / items
        value = value - (half * mixed).sum()
        return value + reg_of(o, by_user, p) + reg_of(o, by_item, q)

    return loss


def reg_of(o: dict[str, Any], total: Tensor, rows: Tensor) -> Tensor:
    power = {"l2": 0.0, "sum_w": 1.0, "frequency": o["nu"]}[o["reg"]]
    return (o["lam"] * total**power * rows.square().sum(1)).sum()


# alternating least squares -----------------------------------------------------------------------


def check_als(case: Case) -> None:
    """Each sweep from the tables before it; then the lists, of strangers too."""
    weights = case.options.get("lam") != 0.05
    (plain, last), o = held(world(weights=weights)), options_of(case)
    c = torch.from_numpy(plain.confidence())
    loss = (ials_loss if case.recipe == "ials" else rg_loss)(c, o)
    with sweeps(Sweeps) as found, measured(0.2, 0.3, 0.1):
        model = sdx.fit(case.recipe, plain.log, last, **SMALL | case.options)
    assert len(found) == o["epochs"]
    codes = torch.randn(len(c), o["dim"], generator=torch.Generator().manual_seed(o["seed"]))
    start = c.T @ codes.double() / o["dim"] ** 0.5
    near(found[0].before["items"], start)
    coupled = o.get("beta", 0) > 0 and o["interaction"] == "exact"
    for earlier, now in zip([None, *found], found, strict=False):
        assert earlier is None or torch.equal(earlier.after["items"], now.before["items"])
        q = now.before["items"]
        p = _users(loss, q, c, o)
        if not coupled:
            q = _rows(loss, p, c, o, items=True)
        elif o["steps"] == 0:
            q = _all_items(loss, p, q)
        else:
            old = p @ q.sum(0)
            q = _rows(loss, p, c, o, items=True, held=old)
            q = q + _shift(c, o, p, (p @ q.sum(0)) - old)
        near(now.after["users"] @ now.after["items"].T, p @ q.T)
        exact = float(loss(now.after["users"], now.after["items"]))
        approximate = coupled and o["steps"] > 0  # the gain of the shift is
        assert math.isclose(
            now.loss * int((c > 0).sum()),
            exact,
            rel_tol=5e-2 if approximate else 2e-4,
            abs_tol=1e-3,
        )
    kept = found[1].after  # the best epoch
    if weights:  # else those with more events are solved for anew
        scores = kept["users"] @ kept["items"].T
        check_metrics(model.card.metrics["valid"], plain, last, lambda u: scores[u].tolist())
    _served(model, plain, loss, kept["users"], kept["items"], o)


def _users(loss: Loss, q: Tensor, c: Tensor, o: dict[str, Any]) -> Tensor:
    return _rows(loss, q, c, o, items=False)


def _rows(
    loss: Loss, x: Tensor, c: Tensor, o: dict[str, Any], *, items: bool, held: Tensor | None = None
) -> Tensor:
    """Solve for each row, or take a few preconditioned steps towards the solution from 0."""
    size = c.shape[1] if items else c.shape[0]
    found = torch.zeros(size, x.shape[1], dtype=torch.float64)

    def of(row: int, y: Tensor) -> Tensor:
        rows = torch.stack([y if r == row else torch.zeros_like(y) for r in range(size)])
        p, q = (x, rows) if items else (rows, x)
        return loss(p, q) if held is None else loss(p, q, held=held)

    zero = torch.zeros(x.shape[1], dtype=torch.float64)
    for row in range(size):
        a = hessian(partial(of, row), zero)
        at = zero.clone().requires_grad_()
        b = -torch.autograd.grad(of(row, at), at)[0]
        if o["steps"] == 0:
            found[row] = torch.linalg.solve(a, b)
            continue
        events = torch.zeros_like(a)
        met = c[:, row] if items else c[row]
        for other in met.nonzero()[:, 0].tolist():
            events += (
                2
                * _extra(c, o, *((other, row) if items else (row, other)))
                * torch.outer(x[other], x[other])
            )
        found[row] = _descended(a, a - events, b, min(o["steps"], int((met > 0).sum()) + 1))
    return found


def _extra(c: Tensor, o: dict[str, Any], user: int, item: int) -> float:
    """What the square of an event's score weighs beyond that of any other item."""
    if "sampled" not in o:
        return float(c[user, item])
    others = 1.0 if o["sampled"] is None else (o["sampled"] + 1) / c.shape[1]
    each = o["alpha"] + (1 - others) * c[user].sum() / (2 * c.shape[1])
    return float(c[user, item] * each)


def _descended(a: Tensor, near: Tensor, b: Tensor, steps: int) -> Tensor:
    """Conjugate gradients for a y = b, preconditioned by a matrix near it."""
    y, r = torch.zeros_like(b), b.clone()
    z = torch.linalg.solve(near, r)
    p, size = z.clone(), float(r @ z)
    for _ in range(steps):
        if size <= 1e-18:
            break
        step = size / float(p @ a @ p)
        y, r = y + step * p, r - step * (a @ p)
        z = torch.linalg.solve(near, r)
        new = float(r @ z)
        p, size = z + new / size * p, new
    return y


def _all_items(loss: Loss, p: Tensor, like: Tensor) -> Tensor:
    """All items at once, at the minimum of the loss."""
    zero = torch.zeros(like.numel(), dtype=torch.float64)
    at = zero.clone().requires_grad_()
    slope = torch.autograd.grad(loss(p, at.view_as(like)), at)[0]
    curve = hessian(lambda q: loss(p, q.view_as(like)), zero)
    return -torch.linalg.solve(curve, slope).view_as(like)


def _shift(c: Tensor, o: dict[str, Any], p: Tensor, moved: Tensor) -> Tensor:
    """The shift of all items that follows the change of their sum."""
    items = c.shape[1]
    others = 1.0 if o["sampled"] is None else (o["sampled"] + 1) / items
    w = others * c.sum(1) / (2 * items)
    extra = torch.tensor([[_extra(c, o, u, y) for y in range(items)] for u in range(len(c))])
    left = torch.zeros(p.shape[1], p.shape[1], dtype=torch.float64)
    right = torch.zeros(p.shape[1], dtype=torch.float64)
    for user in range(len(p)):
        own = (1 - o["beta"]) * items * w[user] + extra[user].sum()
        left += own * torch.outer(p[user], p[user])
        right += o["beta"] * w[user] * moved[user] * p[user]
    power = {"l2": 0.0, "sum_w": 1.0, "frequency": o["nu"]}[o["reg"]]
    for item in range(items):
        total = w.sum() + extra[:, item].sum()
        left += o["lam"] * total**power * torch.eye(p.shape[1], dtype=torch.float64)
    return torch.linalg.solve(left, right)


def _served(model: Any, plain: Plain, loss: Loss, p: Tensor, q: Tensor, o: dict[str, Any]) -> None:
    """Lists of known users, of a history, and of users and items that are added."""
    check_known(model, plain, p, q)
    c = torch.from_numpy(plain.confidence())
    make = ials_loss if "sampled" not in o else rg_loss
    if o.get("alpha", 0) is None:  # as it was in training
        o = o | {"alpha": 16 * float(c.sum()) / c.numel()}
    for given in ([0, 3, 3], [5]):
        past = torch.zeros(1, c.shape[1], dtype=torch.float64)
        past[0, given] = 1.0
        for size in (1.5, 1.0):  # the vectors of now count
            model.index.scorer.items.weight.copy_(q * size)
            y = _rows(make(past, o), q * size, past, o | {"steps": 0}, items=False)[0]
            asked = model.recommend(history=[[plain.items[i] for i in given]], k=4)
            wanted = best((q @ y * size).tolist(), 4, set(given))
            same_lists(asked, plain.items, {0: wanted})
    added = [("new", plain.items[i], 1.0, w) for i, w in ((1, 2.0), (4, 0.5))]
    weighted = plain.log.weight is not None
    model.add_users(sdx.read([row if weighted else row[:2] for row in added]))
    past = torch.zeros(1, c.shape[1], dtype=torch.float64)
    past[0, [1, 4]] = torch.tensor([2.0, 0.5] if weighted else [1.0, 1.0], dtype=torch.float64)
    y = _rows(make(past, o), q, past, o | {"steps": 0}, items=False)[0]
    same_lists(
        model.recommend(["new"], k=4), plain.items, {"new": best((q @ y).tolist(), 4, {1, 4})}
    )
    _new_item(model, plain, torch.cat([c, past]), torch.cat([p, y[None]]), q, o)


def _new_item(model: Any, plain: Plain, c: Tensor, p: Tensor, q: Tensor, o: dict[str, Any]) -> None:
    """An item that two users have met solves its own row; the others stay as they are."""
    users, items = [1, 2], c.shape[1]
    weight = [1.5, 0.5] if plain.log.weight is not None else [1.0, 1.0]
    rows = [(plain.users[u], "zz", 900.0, w) for u, w in zip(users, weight, strict=True)]
    model.add_items(sdx.read([r if plain.log.weight is not None else r[:2] for r in rows]))
    w = c.sum(1) / (2 * items)
    events = dict(zip(users, weight, strict=True))
    a, b = torch.zeros(len(q[0]), len(q[0])).double(), torch.zeros(len(q[0])).double()
    total = 0.0
    for user in range(len(p)):
        own, event = p[user], events.get(user, 0.0)
        if "sampled" not in o:
            square, pull = o["alpha"] + event, event
        else:
            others = 1.0 if o["sampled"] is None else (o["sampled"] + 1) / items
            more = (1 - others) * w[user]
            kept = 1 - o["beta"] if o["interaction"] == "frobenius" else 1.0
            square = kept * others * w[user] + event * (o["alpha"] + more)
            pull = event * (0.5 + o["alpha"] - more) - others * w[user]
            if o["interaction"] == "exact":
                pull = pull + o["beta"] / items * others * w[user] * (own @ q.sum(0))
            total += float(others * w[user] + event * (o["alpha"] + more)) - float(square)
        total += float(square)
        a += square * torch.outer(own, own)
        b += pull * own
    power = {"l2": 0.0, "sum_w": 1.0, "frequency": o["nu"]}[o["reg"]]
    y = torch.linalg.solve(a + o["lam"] * total**power * torch.eye(len(a)).double(), b)
    check_known(model, plain, p, torch.cat([q, y[None]]), "zz", tuple(users))


def check_known(
    model: Any,
    plain: Plain,
    p: Tensor,
    q: Tensor,
    more: str | None = None,
    met: tuple[int, ...] = (),
) -> None:
    scores = p @ q.T
    seen = [{i for i, _ in plain.history(u)} for u in range(len(plain.users))]
    for user in met:
        seen[user].add(len(plain.items))
    names = [*plain.items, *([] if more is None else [more])]
    wanted = {plain.users[u]: best(scores[u].tolist(), 4, seen[u]) for u in range(len(plain.users))}
    same_lists(model.recommend(plain.users, k=4), names, wanted)


# one decomposition -------------------------------------------------------------------------------


def check_svd(case: Case) -> None:
    """Weighted targets decomposed whole, and shrunk."""
    plain, o = world(), options_of(case)
    model = sdx.fit(case.recipe, plain.log, **{"dim": 3, "seed": 4, "device": "cpu"} | case.options)
    c = torch.from_numpy(plain.confidence())
    items, total = c.shape[1], c.sum(1)
    w = total / (2 * items)
    full = o["reg"] == "scores"
    square = w + (o["lam"] if full else 0.0)  # weight of a squared score
    wanted = w[:, None] / square[:, None].sqrt() * (items * c / total[:, None] - 1)
    left, values, right = torch.linalg.svd(wanted, full_matrices=False)
    less = 0.0 if full else o["lam"] * (items * w.sum()) ** 0.5
    kept = (values - less).clamp(min=0)[: o["dim"]]
    assert bool((kept > 0).any())
    shrunk = 1 - o["beta"] if o["interaction"] == "frobenius" else 1.0
    scores = left[:, : o["dim"]] * kept / shrunk @ right[: o["dim"]] / square[:, None].sqrt()
    past = [{i for i, _ in plain.history(u)} for u in range(len(plain.users))]
    lists = {plain.users[u]: best(scores[u].tolist(), 4, past[u]) for u in range(len(past))}
    same_lists(model.recommend(plain.users, k=4), plain.items, lists)
    p, q = (t.double() for t in (model.encoder.vectors.weight, model.index.scorer.items.weight))
    near(p @ q.T, scores)
    for name in ("yy", "zz") if full else ():  # a stranger's vector has the minimum of its own row
        size, goal = 1 / (2 * items), torch.full((items,), -1.0, dtype=torch.float64)
        goal[3] += items
        y = torch.linalg.solve((size + o["lam"]) * q.T @ q, size * q[:items].T @ goal)
        asked = model.recommend(history=[[plain.items[3]]], k=4)
        same_lists(asked, [*plain.items, "yy"], {0: best((q @ y).tolist(), 4, {3})})
        model.add_items(sdx.read([(plain.users[u], name, 900.0, 1.5) for u in (1, 2)]))
        q = model.index.scorer.items.weight.double()  # a new item has no goal


# inside ------------------------------------------------------------------------------------------


def options_of(case: Case) -> dict[str, Any]:
    return catalogue.options(case.recipe) | SMALL | case.options


def near(found: Tensor, wanted: Tensor, rtol: float = 3e-4) -> None:
    size = float(wanted.abs().max())
    np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol, rtol * size)


def _als(recipe: str, **options: Any) -> Case:
    return Case(recipe, options, check_als)


SHRUNK = {"beta": 0.3, "interaction": "frobenius"}
CASES: list[Case] = [
    _als("ials", steps=0, epochs=3),
    _als("ials", dim=5, alpha=0.3, lam=0.05, reg="l2", steps=2, epochs=2, seed=7),
    _als("ials", alpha=0.7, lam=0.9, nu=1.4, epochs=2),
    Case("ials", {"dim": 3, "epochs": 9, "device": "cpu"}, check_patience),
    _als("rg2", steps=0, epochs=3),
    _als("rg2", dim=5, alpha=0.4, lam=0.05, reg="l2", steps=2, seed=7),
    _als("rg2", lam=0.3, nu=0.6, sampled=4),
    _als("rgx", steps=0, beta=0.6, lam=0.2),
    _als("rgx", steps=3, beta=0.7, alpha=0.2, reg="sum_w", dim=5, seed=9, sampled=5),
    _als("rgx", steps=0, beta=0.4, interaction="frobenius", lam=0.05),
    Case("rg2", {"solver": "svd", "alpha": 0.0, "lam": 0.15}, check_svd),
    Case("rg2", {"solver": "svd", "alpha": 0.0, "lam": 0.15, "reg": "scores"}, check_svd),
    Case("rgx", {"solver": "svd", "alpha": 0.0, "lam": 0.3, "reg": "scores"}, check_svd),
    Case("rgx", SHRUNK | {"solver": "svd", "alpha": 0.0, "lam": 0.1, "reg": "sum_w"}, check_svd),
]
