"""Newton's method by conjugate gradients, for squares of scores that no closed form minimises.

When an item's vector is in the score and, through the history, in the query too, no row of a table
has a linear system of its own. The loss is still smooth: each step goes to the minimum of its
second-order model, found by conjugate gradients, which asks only for products of the Hessian with
vectors, never for the Hessian. Nothing is drawn: on a CPU a run repeats itself bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from softdex.encode.history import Mixed
from softdex.encode.table import Table
from softdex.errors import SoftdexError, choose
from softdex.interactions import Interactions
from softdex.objective.squared import frequency_reg
from softdex.score import Dot
from softdex.solve.loop import Probe, Progress, Schedule, pick_device
from softdex.solve.normal_equations import Quadratic, items_side, users_side

PRODUCTS = 200  # with the Hessian, at most, in a step
FORCING = 0.5  # of the gradient a step may leave unsolved, far from the end
ENOUGH = 1e-4  # a step must gain this share of what its slope promises
TRIES = 10  # a step is shortened to a quarter so often at most
PRECISIONS = {"float32": torch.float32, "float64": torch.float64}

Vectors = dict[str, Tensor]
Times = Callable[[Tensor], Tensor]


# any smooth function ------------------------------------------------------------------------------


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
    at, size = _flat(start), _flat({n: _full(scale, n, t) for n, t in start.items()})
    trust, taken = _first_trust(at, size) if radius is None else Trust(radius), []

    def of_flat(x: Tensor) -> Tensor:
        return loss(_apart(x, start))

    for _ in range(steps):
        last = at
        at, step = newton_step(
            of_flat, at, size, trust, products=products, tolerance=tolerance, forcing=forcing
        )
        trust = step.trust
        taken.append(step)
        if at is last:
            break
    return {n: t.clone() for n, t in _apart(at, start).items()}, taken


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


def _first_trust(at: Tensor, scale: Tensor) -> Trust:
    """As far as the start is from 0."""
    return Trust(math.sqrt(float((scale * at.square()).sum())) or 1.0)


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors.values()])


def _apart(flat: Tensor, like: Mapping[str, Tensor]) -> Vectors:
    parts = torch.split(flat, [t.numel() for t in like.values()])
    return {n: p.view_as(t) for p, (n, t) in zip(parts, like.items(), strict=True)}


def _full(scale: Mapping[str, Tensor] | None, name: str, like: Tensor) -> Tensor:
    return torch.ones_like(like) if scale is None else scale[name].to(like).expand_as(like)


# queries of all users -----------------------------------------------------------------------------


class Rows(NamedTuple):
    """A sparse matrix, row by row, for products with dense ones."""

    indptr: Tensor
    ids: Tensor
    values: Tensor


class Product(torch.autograd.Function):
    """A x for sparse A and dense x (R, D); A' is at hand, so it has derivatives of any order."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, matrix: Rows, transposed: Rows) -> Tensor:
        """A x."""
        ctx.matrices = transposed, matrix
        values, ids, indptr = matrix.values, matrix.ids, matrix.indptr
        return embedding_bag(
            ids, x, indptr, mode="sum", per_sample_weights=values, include_last_offset=True
        )

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor, None, None]:
        """A' g."""
        return product(given[0].contiguous(), *ctx.matrices), None, None


def product(x: Tensor, matrix: Rows, transposed: Rows) -> Tensor:
    """A x, given A and A'."""
    return Product.apply(x, matrix, transposed)  # type: ignore[no-untyped-call]


def query_of(encoder: Any, log: Interactions, like: Tensor) -> Callable[[Vectors], Tensor]:
    """A function from the tables' vectors to the queries of all users (U, D), as served.

    Of `Mixed` it is share * own + (1 - share) * A items, where A (sparse) takes the mean over the
    last items of each history: nothing is padded. Unlike in a sampled training the target is not
    left out of the mean, because one query meets all items at once, its own history included. So
    part of an event's score is |item|^2 (1 - share) / length, which says nothing about other
    items: what a user has had scores too high, which does not matter where it is masked in serving,
    and a small `lam` or a short history lets the loss be lowered that way instead of by learning.
    """
    share = float(encoder.share) if isinstance(encoder, Mixed) else 1.0
    if share == 1:
        return lambda vectors: vectors["users"]
    recent = log.histories.last(encoder.most)
    weight = (1 - share) / np.maximum(recent.lengths, 1)
    shape = (len(recent), log.num_items)
    mean = sp.csr_matrix((weight[recent.row_of], recent.ids, recent.indptr), shape=shape)
    both = _rows(mean, like), _rows(mean.T.tocsr(), like)
    if share == 0:
        return lambda vectors: product(vectors["items"], *both)
    return lambda vectors: share * vectors["users"] + product(vectors["items"], *both)


def _rows(matrix: sp.csr_matrix, like: Tensor) -> Rows:
    where = (torch.from_numpy(x.astype(np.int64)) for x in (matrix.indptr, matrix.indices))
    indptr, ids = (x.to(like.device) for x in where)
    return Rows(indptr, ids, torch.from_numpy(matrix.data).to(like))


# training -----------------------------------------------------------------------------------------


class Loss(Protocol):
    """A loss of all events, given all queries (U, D) and items (N, D): a scalar that can be
    differentiated twice. `rg_of_vectors` and `squared_of_vectors` are, their options bound."""

    def __call__(
        self, query: Tensor, items: Tensor, row: Tensor, item: Tensor, *, weight: Tensor | None
    ) -> Tensor:
        """The sum over events (row, item) of this weight."""
        ...


class Penalty(NamedTuple):
    """lam * sum_r total_r^nu |v_r|^2, over own vectors of users (U,) and over items (N,)."""

    users: Tensor
    items: Tensor
    lam: float
    nu: float


def penalty(loss: Quadratic, log: Interactions) -> Penalty:
    """The regulariser that alternating least squares has for the same loss and log."""
    matrix, plain = log.csr(binary=log.weight is None), replace(loss, lam=1.0, nu=1.0)
    total = np.asarray(matrix.sum(1, dtype=np.float64)).ravel()
    items = items_side(matrix.T.tocsr(), total, plain)
    return Penalty(users_side(matrix, plain).reg, items.reg, loss.lam, loss.nu)


class Settings(NamedTuple):
    """How far a step goes: Hessian products at most; the gradient, beside the largest one met, that
    is as good as 0; and the numbers it is all reckoned in."""

    products: int = PRODUCTS
    tolerance: float = 1e-6
    precision: str = "float32"


class Job(NamedTuple):
    """Tables to be trained by Newton steps; an epoch is one step.

    Attributes:
        encoder: `Mixed`, or any whose queries are its own table `vectors` (`Users`, `FoldIn`).
        scorer: a plain inner product.
        loss: of all queries and items.
        penalty: added to it, on the tables' vectors.
    """

    encoder: Any
    scorer: Dot
    loss: Loss
    penalty: Penalty
    schedule: Schedule
    settings: Settings = Settings()

    def trainer(self, log: Interactions) -> Trainer:
        """The run, ready to start."""
        choose("newton_cg", "precision", self.settings.precision, list(PRECISIONS))
        if not isinstance(self.scorer, Dot) or self.scorer.bias is not None:
            raise SoftdexError("newton_cg: expected a plain dot product as score.")
        nn.ModuleList([self.encoder, self.scorer]).to(pick_device(self.schedule.device))
        return Trainer(self, log)

    def memory(self, log: Interactions) -> int:
        """Events with what is remembered at each to differentiate twice, and in a table's size
        the state, the directions of conjugate gradients and the best epoch."""
        tables = tables_of(self.encoder, self.scorer).values()
        each = PRECISIONS[self.settings.precision].itemsize
        cells, dim = sum(t.weight.numel() for t in tables), self.scorer.items.dim
        history = 32 * len(log) if isinstance(self.encoder, Mixed) else 0
        return 16 * each * cells + (40 + 9 * each * dim) * len(log) + history

    def probe(self, log: Interactions) -> Probe | None:
        """Nothing beside the loss."""
        return None


def tables_of(encoder: Any, scorer: Dot) -> dict[str, Table]:
    """The tables that the queries and scores depend on: no own vectors where their share is 0."""
    alone = isinstance(encoder, Mixed) and float(encoder.share) == 0
    return {"items": scorer.items} if alone else {"users": encoder.vectors, "items": scorer.items}


class Trainer:
    """All vectors as one flat vector, and the objective as a function of it."""

    def __init__(self, job: Job, log: Interactions) -> None:
        self.settings, self.tables = job.settings, tables_of(job.encoder, job.scorer)
        now = {n: t.weight.to(PRECISIONS[job.settings.precision]) for n, t in self.tables.items()}
        self.at = _flat(now)
        total = {n: getattr(job.penalty, n).to(self.at) for n in now}
        scale = {n: torch.where(t > 0, t, 1.0)[:, None].expand_as(now[n]) for n, t in total.items()}
        self.scale = _flat(scale)
        self.trust, self.value = _first_trust(self.at, self.scale), math.nan
        matrix = log.csr(binary=log.weight is None)
        row = np.repeat(np.arange(log.num_users), np.diff(matrix.indptr))
        self.events = max(1, matrix.nnz)
        pairs = [
            torch.from_numpy(x.astype(np.int64)).to(self.at.device) for x in (row, matrix.indices)
        ]
        weight = None if log.weight is None else torch.from_numpy(matrix.data).to(self.at)
        query = query_of(job.encoder, log, self.at)

        def objective(flat: Tensor) -> Tensor:
            vectors = _apart(flat, now)
            loss = job.loss(query(vectors), vectors["items"], *pairs, weight=weight)
            for name, own in vectors.items():
                loss = loss + frequency_reg(own, total[name], job.penalty.lam, job.penalty.nu)
            return loss

        self.objective = objective

    def state(self) -> dict[str, Tensor]:
        """All vectors, in the precision of the steps, and what the last step handed on."""
        kept = torch.tensor([*self.trust, self.value], dtype=torch.float64)
        return {"vectors": self.at, "trust": kept}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go back to a saved state."""
        *trust, self.value = state["trust"].tolist()
        self.at, self.trust = state["vectors"].to(self.at, copy=True), Trust(*trust)
        self._write()

    def run_epoch(self, progress: Progress, pause: Callable[[], None]) -> float:
        """One step, and the objective per event after it.

        Nothing changes before its end, so a run that is stopped inside does the step again.
        """
        if progress.step == 0:
            self.at, found = newton_step(
                self.objective,
                self.at,
                self.scale,
                self.trust,
                products=self.settings.products,
                tolerance=self.settings.tolerance,
                pause=pause,
            )
            self.trust, self.value = found.trust, found.loss
            self._write()
            progress.step = 1
            pause()
        return self.value / self.events

    @torch.no_grad()
    def _write(self) -> None:
        like = {n: t.weight for n, t in self.tables.items()}
        for name, vectors in _apart(self.at, like).items():
            self.tables[name].weight.copy_(vectors)
