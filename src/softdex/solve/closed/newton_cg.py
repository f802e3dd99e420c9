"""Newton's method by conjugate gradients, for squares of scores that no closed form minimises.

When an item's vector is in the score and, through the history, in the query too, no row of a table
has a linear system of its own. The loss is still smooth: each step goes to the minimum of its
second-order model, found by conjugate gradients, which asks only for products of the Hessian with
vectors, never for the Hessian. Nothing is drawn: on a CPU a run repeats itself bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

PRODUCTS = 200  # with the Hessian, at most, in a step
FORCING = 0.5  # of the gradient a step may leave unsolved, far from the end
ENOUGH = 1e-4  # a step must gain this share of what its slope promises
TRIES = 10  # a step is shortened to a quarter so often at most

Vectors = dict[str, Tensor]
Times = Callable[[Tensor], Tensor]


class Trust(NamedTuple):
    """What a step hands on to the next: how far the model is trusted, the largest gradient yet."""

    radius: float
    steepest: float = 0.0


class Step(NamedTuple):
    """What a step came to: the loss after it, the gradient's norm before it, what it cost."""

    loss: float
    gradient: float
    products: int
    trust: Trust


class Found(NamedTuple):
    """What conjugate gradients came to: the step, the gain its model predicts, and how it ended."""

    step: Tensor
    gain: float
    products: int
    at_edge: bool


def minimise(
    loss: Callable[[Vectors], Tensor],
    start: Mapping[str, Tensor],
    *,
    scale: Mapping[str, Tensor] | None = None,
    steps: int = 100,
    tolerance: float = 1e-8,
    products: int = PRODUCTS,
    forcing: float = FORCING,
    radius: float | None = None,
) -> tuple[Vectors, list[Step]]:
    """Minimise a twice differentiable function of some tensors, until its gradient is nearly 0.

    Args:
        loss: a scalar, of tensors by their names.
        start: where to begin; left as it is.
        scale: for each tensor, something positive that broadcasts to it and is about as large as
            the curvature in its entries; 1 by default. Lengths are measured by it.
        steps: at most so many.
        tolerance: stop when the gradient is so small beside the largest one met.
        products: at most so many Hessian products a step.
        forcing: how much of the gradient a step may leave unsolved; 0 solves exactly.
        radius: length of the first step at most; by default that of the start.

    Returns:
        The tensors at the end, and all steps; the last one, which went nowhere, included.

    Relations: with forcing 0 and a large radius a convex quadratic takes one step. Near a minimum
    the gradient falls with order 3/2. It need not be a strict minimum, and that of a factorisation
    never is: turning all vectors leaves the loss as it is, and the steps do not go that way.
    """
    at, size = flat(start), flat({n: _full(scale, n, t) for n, t in start.items()})
    trust, taken = first_trust(at, size) if radius is None else Trust(radius), []

    def of_flat(x: Tensor) -> Tensor:
        return loss(apart(x, start))

    for _ in range(steps):
        last = at
        at, step = newton_step(
            of_flat, at, size, trust, products=products, tolerance=tolerance, forcing=forcing
        )
        trust = step.trust
        taken.append(step)
        if at is last:
            break
    return {n: t.clone() for n, t in apart(at, start).items()}, taken


def newton_step(
    loss: Callable[[Tensor], Tensor],
    at: Tensor,
    scale: Tensor,
    trust: Trust,
    *,
    products: int = PRODUCTS,
    tolerance: float = 0.0,
    forcing: float = FORCING,
    pause: Callable[[], None] = lambda: None,
) -> tuple[Tensor, Step]:
    """One outer iteration, to a place whose loss is never above the one it began at.

    H s = -g is solved until the residual is below min(forcing, sqrt(|g| / G)) |g|, where G is the
    largest gradient so far (Dembo, Eisenstat, Steihaug 1982): loosely far away, ever more sharply
    near the end. A step that gains less than its slope promises is cut to a quarter, again
    and again; the radius follows how well the model foretold the gain.

    Args:
        loss: of a flat vector.
        at, scale: where to begin, and the metric |s|^2 = sum scale s^2, flat.
        trust: of the step before.
        products: at most so many.
        tolerance: go nowhere when |g| <= tolerance G.
        forcing: as above.
        pause: called after each product.

    Returns:
        Where it led, `at` itself if nowhere; and the step.
    """
    value, slope, times = derivatives(loss, at)
    size = math.sqrt(float((slope.square() / scale).sum()))
    steepest = max(trust.steepest, size)
    if not size > tolerance * steepest:
        return at, Step(value, size, 0, trust)

    def watched(v: Tensor) -> Tensor:
        out = times(v)
        pause()
        return out

    wanted = min(forcing, math.sqrt(size / steepest)) * size
    found = steihaug(watched, slope, scale, trust.radius, wanted, products)
    length = math.sqrt(float((scale * found.step.square()).sum()))
    clear = found.gain > 8 * torch.finfo(at.dtype).eps * abs(value)  # of rounding
    fall = float(slope @ found.step)
    share, new = _shorten(loss, at, found.step, value, fall, TRIES if clear else 1)
    radius = _radius(trust.radius, found, share, length, value - new if clear else found.gain)
    here = at if share == 0 else at + share * found.step
    return here, Step(new, size, found.products, Trust(radius, steepest))


def derivatives(loss: Callable[[Tensor], Tensor], at: Tensor) -> tuple[float, Tensor, Times]:
    """Value and gradient at a place, and v -> Hessian v, the gradient differentiated once more."""
    with torch.enable_grad():
        place = at.detach().requires_grad_()
        value = loss(place)
        (slope,) = torch.autograd.grad(value, place, create_graph=True)

    def times(v: Tensor) -> Tensor:
        return torch.autograd.grad(slope, place, v, retain_graph=True)[0]

    return float(value.detach()), slope.detach(), times


def steihaug(
    times: Times, slope: Tensor, scale: Tensor, radius: float, wanted: float, products: int
) -> Found:
    """Minimise g's + s'Hs / 2 over |s| <= radius by conjugate gradients from 0.

    Preconditioned by `scale`, the metric of the radius. Ends when the residual is as small as
    `wanted`, at the edge when the next step would cross it, or where the curvature is not positive:
    then the way goes on to the edge, down hill.
    """
    step, rest = torch.zeros_like(slope), -slope
    way = rest / scale
    size, used, at_edge = float(rest @ way), 0, False
    enough = max(wanted**2, torch.finfo(slope.dtype).eps ** 2 * size)
    while used < products and not at_edge:
        bent = times(way)
        used += 1
        curve = float(way @ bent)
        far = _to_edge(step, way, scale, radius)
        at_edge = not curve * far > size
        by = far if at_edge else size / curve
        step, rest = step + by * way, rest - by * bent
        turned = rest / scale
        new = float(rest @ turned)
        if new <= enough:
            break
        way, size = turned + (new / size) * way, new
    gain = 0.5 * float(step @ (rest - slope))
    return Found(step, gain, used, at_edge)


def _to_edge(step: Tensor, way: Tensor, scale: Tensor, radius: float) -> float:
    """t >= 0 with |step + t way| = radius, for a step that is inside."""
    longer = scale * way
    a, b = float(longer @ way), float(longer @ step)
    room = max(0.0, radius**2 - float((scale * step) @ step))
    return room / (b + math.sqrt(b * b + a * room)) if room else 0.0


def _shorten(
    loss: Callable[[Tensor], Tensor],
    at: Tensor,
    step: Tensor,
    value: float,
    fall: float,
    tries: int,
) -> tuple[float, float]:
    """The share of a step that lowers the loss enough, and the loss there; 0 where none does."""
    share = 1.0
    with torch.no_grad():
        for _ in range(tries):
            new = float(loss(at + share * step))
            if new <= value + ENOUGH * share * fall:
                return share, new
            share /= 4
    return 0.0, value


def _radius(radius: float, found: Found, share: float, length: float, gained: float) -> float:
    """How far to trust the model next time."""
    if share < 1:
        return max(share, 0.25**TRIES) * length
    if gained < 0.25 * found.gain:
        return length / 4
    return 2 * radius if found.at_edge and gained > 0.75 * found.gain else radius


def first_trust(at: Tensor, scale: Tensor) -> Trust:
    """As far as the start is from 0."""
    return Trust(math.sqrt(float((scale * at.square()).sum())) or 1.0)


def flat(tensors: Mapping[str, Tensor]) -> Tensor:
    """Tensors as one vector."""
    return torch.cat([t.detach().reshape(-1) for t in tensors.values()])


def apart(flat: Tensor, like: Mapping[str, Tensor]) -> Vectors:
    """The tensors that a vector is made of."""
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {n: p.view_as(t) for p, (n, t) in zip(parts, like.items(), strict=True)}


def _full(scale: Mapping[str, Tensor] | None, name: str, like: Tensor) -> Tensor:
    return torch.ones_like(like) if scale is None else scale[name].to(like).expand_as(like)
