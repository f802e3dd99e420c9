"""RG2 and RGx by Newton's method: steps by dense derivatives of the loss over all cells."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.functional import hessian

import softdex as sdx
from composition.alternating import SMALL, check_known, near, options_of, reg_of, rg_loss, sweeps
from composition.logs import Plain, best, check_metrics, held, measured, same_lists, world
from composition.suite import Case
from softdex.solve.closed.newton import NewtonSteps


def check_newton(case: Case) -> None:
    """Each step by dense derivatives of the loss over all cells."""
    plain, last = held(world(weights=case.options.get("encoder") != "history"))
    o = options_of(case)
    c = torch.from_numpy(plain.confidence())
    loss = rg_loss(c, o)
    with sweeps(NewtonSteps) as found, measured(0.2, 0.3, *[0.1] * (o["epochs"] - 2)):
        model = sdx.fit(case.recipe, plain.log, last, **SMALL | case.options)
    assert len(found) == o["epochs"]
    generator = torch.Generator().manual_seed(o["seed"])
    for name, size in (("users", len(c)), ("items", c.shape[1])):
        first = torch.randn(size, o["dim"], generator=generator).double() / o["dim"] ** 0.5
        if name in found[0].before:
            near(found[0].before[name], first)
    mean, share = _means(plain, o), {"user": 1.0, "history": 0.0}.get(o["encoder"], o["share"])

    def query(users: Tensor | None, q: Tensor) -> Tensor:
        past = (1 - share) * (mean @ q)
        return past if users is None else share * users + past

    items, total = c.shape[1], c.sum(1)
    by_user = total * (0.5 + o["alpha"])
    by_item = (total / (2 * items)).sum() + o["alpha"] * c.sum(0)
    names = ["users", "items"] if share > 0 else ["items"]
    sizes = [len(t) for t in (by_user, by_item)][-len(names) :]
    scale = torch.cat([t.repeat_interleave(o["dim"]) for t in (by_user, by_item)[-len(names) :]])

    def of(flat: Tensor) -> Tensor:
        parts = [
            part.view(-1, o["dim"]) for part in torch.split(flat, [s * o["dim"] for s in sizes])
        ]
        p, q = (parts[0] if share > 0 else None), parts[-1]
        value = loss(torch.zeros_like(query(p, q)), q, scores=query(p, q) @ q.T)
        value = value + o["alpha"] * c.sum()
        return value if p is None else value + reg_of(o, by_user, p)

    trust = (float((scale * found[0].before["vectors"].square()).sum()) ** 0.5, 0.0)
    for now in found:
        near(now.before["trust"][:2], torch.tensor(trust, dtype=torch.float64), 2e-2)
        at, value, (radius, steepest) = _newton(of, now.before["vectors"], scale, *trust)
        near(now.after["vectors"], at, 5e-3)
        assert math.isclose(now.loss * int((c > 0).sum()), value, rel_tol=1e-3)
        assert math.isclose(float(of(now.after["vectors"])), value, rel_tol=1e-3)
        trust = (radius, steepest)
    kept = found[1].after
    p = query(kept.get("users"), kept["items"])
    check_known(model, plain, p, kept["items"])
    if not (o["encoder"] == "user" and plain.log.weight is None):  # else solved for anew
        check_metrics(
            model.card.metrics["valid"], plain, last, lambda u: (kept["items"] @ p[u]).tolist()
        )
    if o["encoder"] != "user":
        given = [3, 0, 5, 1][-o["max_history"] :]
        y = kept["items"][given].mean(0) * 1.0
        asked = model.recommend(history=[[plain.items[i] for i in (3, 0, 5, 1)]], k=4)
        wanted = {0: best((kept["items"] @ y).tolist(), 4, {3, 0, 5, 1})}
        same_lists(asked, plain.items, wanted)


def _means(plain: Plain, o: dict[str, Any]) -> Tensor:
    """The mean over each user's latest items (U, N)."""
    mean = torch.zeros(len(plain.users), len(plain.items), dtype=torch.float64)
    for user in range(len(plain.users)):
        past = [item for item, _ in plain.history(user)][-o["max_history"] :]
        for item in past:
            mean[user, item] += 1 / len(past)
    return mean


def _newton(
    of: Callable[[Tensor], Tensor], at: Tensor, scale: Tensor, radius: float, steepest: float
) -> tuple[Tensor, float, tuple[float, float]]:
    """A step of Newton's method in a trust region, by the whole Hessian."""
    place = at.clone().requires_grad_()
    (slope,) = torch.autograd.grad(of(place), place)
    now = float(of(at))
    curve = hessian(of, at)
    size = float((slope.square() / scale).sum()) ** 0.5
    steepest = max(steepest, size)
    wanted = min(0.5, (size / steepest) ** 0.5) * size
    step, rest = torch.zeros_like(at), -slope
    along, left, edge = rest / scale, float((rest.square() / scale).sum()), False
    while not edge:
        bend = float(along @ curve @ along)
        a, b = float((scale * along) @ along), float((scale * along) @ step)
        room = radius**2 - float((scale * step) @ step)
        most = (-b + (b * b + a * room) ** 0.5) / a
        edge = bend * most <= left
        length = most if edge else left / bend
        step, rest = step + length * along, rest - length * (curve @ along)
        new = float((rest.square() / scale).sum())
        if new <= wanted**2:
            break
        along, left = rest / scale + new / left * along, new
    gain = -float(slope @ step + step @ curve @ step / 2)
    share, fall = 1.0, float(slope @ step)
    while float(of(at + share * step)) > now + 1e-4 * share * fall:
        share /= 4
    value = float(of(at + share * step))
    if share < 1:
        radius = share * float((scale * step.square()).sum()) ** 0.5
    elif now - value < 0.25 * gain:
        radius = float((scale * step.square()).sum()) ** 0.5 / 4
    elif edge and now - value > 0.75 * gain:
        radius *= 2
    return at + share * step, value, (radius, steepest)


MIX = {"solver": "newton_cg", "encoder": "mix"}
PRINTED = {"beta": 0.5, "interaction": "frobenius"}
CASES: list[Case] = [
    Case("rg2", {"solver": "newton_cg", "epochs": 7, "patience": 0}, check_newton),
    Case("rg2", MIX | {"max_history": 3, "share": 0.8}, check_newton),
    Case("rg2", MIX | {"encoder": "history", "max_history": 2, "lam": 0.3}, check_newton),
    Case("rgx", MIX | {"share": 0.3, "max_history": 2, "beta": 0.6, "nu": 0.5}, check_newton),
    Case("rgx", PRINTED | {"solver": "newton_cg", "alpha": 0.2}, check_newton),
]
