"""Newton's method with conjugate gradients, for quadratic losses without a closed form per row.

When an item's vector is in the score and, through the history, in the query too, no row of a table
has a linear system of its own. The loss is still smooth: each step goes to the minimum of its
second-order model, found by conjugate gradients, which need products of the Hessian with vectors
but never the Hessian. Nothing is sampled: on a CPU a run repeats itself bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

PRODUCTS = 200  # Hessian products per step, at most
FORCING = 0.5  # share of the gradient that a step far from the minimum may leave unsolved
ENOUGH = 1e-4  # a step must gain this share of what its slope promises
TRIES = 10  # a step is cut to a quarter at most this often

Vectors = dict[str, Tensor]
HessianProduct = Callable[[Tensor], Tensor]


class Trust(NamedTuple):
    """What a step hands on to the next.

    Attributes:
        radius: how far the second-order model is trusted.
        steepest: the largest gradient norm so far.
    """

    radius: float
    steepest: float = 0.0


class Step(NamedTuple):
    """The result of a step.

    Attributes:
        loss: after the step.
        gradient: norm of the gradient before it.
        products: Hessian products it took.
        trust: for the next step.
    """

    loss: float
    gradient: float
    products: int
    trust: Trust


class Proposal(NamedTuple):
    """The result of conjugate gradients.

    Attributes:
        step: where to go.
        gain: the decrease of the loss that the model predicts.
        products: Hessian products it took.
        at_edge: whether the step ends at the trust radius.
    """

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
    """Minimise a twice differentiable function of named tensors.

    Args:
        loss: a scalar function of the tensors.
        start: where to start; not changed.
        scale: per tensor, positive numbers that broadcast to it and are about as large as the
            curvature in its entries; 1 by default. Lengths are measured in this metric.
        steps: at most this many.
        tolerance: stop once the gradient is this small relative to the largest one so far.
        products: Hessian products per step, at most.
        forcing: share of the gradient that a step may leave unsolved; 0 solves exactly.
        radius: longest first step; by default as long as `start`.

    Returns:
        the tensors at the end, and all steps, including the last one, which did not move.

    Relations: with forcing 0 and a large radius a convex quadratic takes one step. Near a minimum
    the gradient falls with order 3/2. The minimum need not be strict, and that of a factorisation
    never is: rotating all vectors leaves the loss unchanged, and the steps do not go that way.
    """
    at, size = flatten(start), flatten({n: _full(scale, n, t) for n, t in start.items()})
    trust, taken = first_trust(at, size) if radius is None else Trust(radius), []

    def of_flat(x: Tensor) -> Tensor:
        return loss(unflatten(x, start))

    for _ in range(steps):
        last = at
        at, step = newton_step(
            of_flat, at, size, trust, products=products, tolerance=tolerance, forcing=forcing
        )
        trust = step.trust
        taken.append(step)
        if at is last:
            break
    return {n: t.clone() for n, t in unflatten(at, start).items()}, taken


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
    """Take one step that never raises the loss.

    H s = -g is solved until the residual is below min(forcing, sqrt(|g| / G)) |g|, where G is the
    largest gradient so far (Dembo, Eisenstat, Steihaug 1982): loosely far from the minimum, more
    and more sharply near it. A step that gains less than its slope promises is cut to a quarter,
    repeatedly; the radius follows how well the model predicted the gain.

    Args:
        loss: a scalar function of a flat vector.
        at: where to start (V,).
        scale: the metric |s|^2 = sum scale s^2 (V,).
        trust: from the step before.
        products: Hessian products, at most.
        tolerance: stay if |g| <= tolerance G.
        forcing: share of the gradient that may stay unsolved.
        pause: called after each product.

    Returns:
        the new vector, `at` itself if the step did not move; and the step.
    """
    value, slope, product = derivatives(loss, at)
    size = math.sqrt(float((slope.square() / scale).sum()))
    steepest = max(trust.steepest, size)
    if not size > tolerance * steepest:
        return at, Step(value, size, 0, trust)

    def watched(v: Tensor) -> Tensor:
        out = product(v)
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


def derivatives(
    loss: Callable[[Tensor], Tensor], at: Tensor
) -> tuple[float, Tensor, HessianProduct]:
    """Value and gradient of a loss, and the function v -> H v, by automatic differentiation."""
    with torch.enable_grad():
        place = at.detach().requires_grad_()
        value = loss(place)
        (slope,) = torch.autograd.grad(value, place, create_graph=True)

    def product(v: Tensor) -> Tensor:
        return torch.autograd.grad(slope, place, v, retain_graph=True)[0]

    return float(value.detach()), slope.detach(), product


def steihaug(
    product: HessianProduct,
    slope: Tensor,
    scale: Tensor,
    radius: float,
    wanted: float,
    products: int,
) -> Proposal:
    """Minimise g's + s'Hs / 2 over |s| <= radius by conjugate gradients from 0.

    Preconditioned by `scale`, the metric of the radius. Stops when the residual is below `wanted`,
    or at the edge when the next step would cross it or the curvature is not positive: then it
    follows that direction downhill to the edge.

    Args:
        product: v -> H v.
        slope: g (V,).
        scale: the metric (V,).
        radius: longest step.
        wanted: norm of the residual to reach.
        products: at most this many.
    """
    step, residual = torch.zeros_like(slope), -slope
    direction = residual / scale
    size, used, at_edge = float(residual @ direction), 0, False
    enough = max(wanted**2, torch.finfo(slope.dtype).eps ** 2 * size)
    while used < products and not at_edge:
        image = product(direction)
        used += 1
        curvature = float(direction @ image)
        edge = _to_edge(step, direction, scale, radius)
        at_edge = not curvature * edge > size
        length = edge if at_edge else size / curvature
        step, residual = step + length * direction, residual - length * image
        scaled = residual / scale
        new = float(residual @ scaled)
        if new <= enough:
            break
        direction, size = scaled + (new / size) * direction, new
    gain = 0.5 * float(step @ (residual - slope))
    return Proposal(step, gain, used, at_edge)


def _to_edge(step: Tensor, direction: Tensor, scale: Tensor, radius: float) -> float:
    """The t >= 0 with |step + t direction| = radius, for a step inside the radius."""
    longer = scale * direction
    a, b = float(longer @ direction), float(longer @ step)
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
    """The share of a step that lowers the loss enough, and the loss there; 0 if none does."""
    share = 1.0
    with torch.no_grad():
        for _ in range(tries):
            new = float(loss(at + share * step))
            if new <= value + ENOUGH * share * fall:
                return share, new
            share /= 4
    return 0.0, value


def _radius(radius: float, found: Proposal, share: float, length: float, gained: float) -> float:
    """The trust radius of the next step."""
    if share < 1:
        return max(share, 0.25**TRIES) * length
    if gained < 0.25 * found.gain:
        return length / 4
    return 2 * radius if found.at_edge and gained > 0.75 * found.gain else radius


def first_trust(at: Tensor, scale: Tensor) -> Trust:
    """Trust the model as far as the start is from 0."""
    return Trust(math.sqrt(float((scale * at.square()).sum())) or 1.0)


def flatten(tensors: Mapping[str, Tensor]) -> Tensor:
    """Concatenate tensors into one vector."""
    return torch.cat([t.detach().reshape(-1) for t in tensors.values()])


def unflatten(flat: Tensor, like: Mapping[str, Tensor]) -> Vectors:
    """Views of a vector in the names and shapes of `like`."""
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {n: p.view_as(t) for p, (n, t) in zip(parts, like.items(), strict=True)}


def _full(scale: Mapping[str, Tensor] | None, name: str, like: Tensor) -> Tensor:
    return torch.ones_like(like) if scale is None else scale[name].to(like).expand_as(like)
