"""Normal equations: losses that are quadratic in the scores, and the linear system per row.

With the items fixed, such a loss is a least-squares problem in each user's vector, and the other
way round. The losses differ only in three weights, so one class states them all. Training, fold-in
of new users and fold-in of new items all build their systems here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from softdex.errors import SoftdexError

REGULARISERS = ("l2", "sum_w", "frequency")
EVENTS_AT_A_TIME = 2**22  # whose scores are held
INTERACTIONS = ("exact", "frobenius")
Summed = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Quadratic:
    """A loss that is quadratic in the scores o_xy = p_x . q_y of users x and items y:

        sum_x w_x ( sum_y (o_xy - m)^2 - (beta / N) (sum_y o_xy)^2 )            all items
        + sum_xy in log  a_xy o_xy^2 - 2 t_xy o_xy                              events
        + lam sum_x W_x^nu |p_x|^2  +  lam sum_y W_y^nu |q_y|^2                 regulariser

    An event has confidence c_xy (1, or its weight); c_x is their sum over the user's events. The
    weights are linear in c_x: w_x = weight . (1, c_x), a_xy = c_xy extra . (1, c_x),
    t_xy = c_xy pull . (1, c_x). W is the sum of all weights in a row or column: N w_x + sum a, and
    sum w + sum a.

    Attributes:
        weight, extra, pull: coefficients of the three weights w, a and t.
        centre: m, the target of the scores of all items; of `weight`, the part that does not grow
            with c_x pulls to 0 (the regulariser lam |P Q'|^2 of RG2, Eq. 48).
        lam: strength of the regulariser.
        nu: how it scales with a row's total weight; 0 is plain L2.
        beta: share of the interaction between items (RGx).
        frobenius: take the interaction as the paper prints it, beta w_x sum_y o_xy^2.
        items: N, the number of items.
    """

    weight: tuple[float, float]
    extra: tuple[float, float]
    pull: tuple[float, float]
    centre: float
    lam: float
    nu: float
    beta: float
    frobenius: bool
    items: int

    def terms(self) -> Tensor:
        """The loss as 12 numbers (float64), to save with a model."""
        flat = [*self.weight, *self.extra, *self.pull, *astuple(self)[3:]]
        return torch.tensor([float(x) for x in flat], dtype=torch.float64)


def from_terms(terms: Tensor) -> Quadratic:
    """The loss that `Quadratic.terms` wrote; raises ValueError if there is no such loss."""
    if terms.shape != (12,) or not bool(torch.isfinite(terms).all()):
        raise ValueError(f"expected 12 finite terms of a loss, got {terms.tolist()[:12]}")
    w0, w1, a0, a1, t0, t1, centre, lam, nu, beta, frobenius, items = terms.tolist()
    positive = min(w0, w1, a0, a1, t0, lam, nu, beta) >= 0
    if not positive or max(w0, w1, a0, a1, t0, lam) > 2e9 or nu > 9 or beta > 1 or items < 1:
        raise ValueError(f"terms {terms.tolist()} belong to no loss that has a minimum")
    return Quadratic(
        (w0, w1), (a0, a1), (t0, t1), centre, lam, nu, beta, bool(frobenius), int(items)
    )


def reg_exponent(reg: str, nu: float) -> float:
    """The exponent `Quadratic.nu` of a regulariser by its name; `nu` is that of `frequency`."""
    return {"l2": 0.0, "sum_w": 1.0, "frequency": nu, "scores": 1.0}[reg]


def ials(items: int, *, alpha: float, lam: float, nu: float) -> Quadratic:
    """The loss of iALS (WRMF): scores of events pulled to 1, all scores to 0 with weight alpha.

    Args:
        items: the number of items.
        alpha: weight of every (user, item) pair.
        lam, nu: the regulariser.
    """
    return Quadratic((alpha, 0), (1, 0), (1, 0), 0, lam, nu, 0, False, items)


def rg(
    items: int,
    *,
    alpha: float,
    lam: float,
    nu: float,
    beta: float = 0.0,
    interaction: str = "exact",
    sampled: int | None = None,
    scores: float = 0.0,
) -> Quadratic:
    """The loss of RG2, or with beta > 0 RGx: the softmax expanded at 0, plus alpha (o - 1)^2.

    Args:
        items: the number of items, N.
        alpha: weight of the squares at events.
        lam, nu: the regulariser.
        beta: share of the interaction between items.
        interaction: `exact`, or `frobenius` as the paper prints it.
        sampled: weights of a softmax with this many sampled negatives (RG2, Eq. 19); N - 1 of them
            are all items.
        scores: strength of a regulariser of all scores, sum o^2 (RG2, Eq. 48). The items then sum
            to 0 at the minimum, on which fold-in relies.
    """
    if interaction == "frobenius" and beta == 1:
        raise SoftdexError(
            "rg: with interaction='frobenius' and beta=1 nothing bounds the loss from below. "
            "Choose a beta below 1."
        )
    if sampled is not None and not 1 <= sampled < items:
        raise SoftdexError(f"rg: expected 1 to {items - 1} sampled items, got {sampled}.")
    share = 1.0 if sampled is None else (sampled + 1) / items
    w, e = share / (2 * items), 1 / (2 * items)
    pull = (0.5 + alpha, w - e)
    frobenius = interaction == "frobenius"
    return Quadratic((scores, w), (alpha, e - w), pull, -1, lam, nu, beta, frobenius, items)


class Side(NamedTuple):
    """The side that is solved for, users or items: its rows' events in CSR form, and weights.

    Attributes:
        indptr, other: int64 and int32; the events of row r are with the rows
            `other[indptr[r]:indptr[r + 1]]` of the other side.
        extra, pull: a and t per event.
        weight: of the shared part in each row's system (R,).
        reg: regulariser per row (R,); above 0 for rows without any weight.
        fixed: weight of each row of the other side in the shared part (C,).
    """

    indptr: Tensor
    other: Tensor
    extra: Tensor
    pull: Tensor
    weight: Tensor
    reg: Tensor
    fixed: Tensor

    def to(self, device: torch.device) -> Side:
        """Move to a device."""
        return Side(*(t.to(device) for t in self))


class Shared(NamedTuple):
    """What the systems of all rows share.

    Row r solves (w_r gram + sum a x x' + reg_r) y = w_r pull + sum t x.
    """

    gram: Tensor
    pull: Tensor


def users_side(matrix: sp.csr_matrix, loss: Quadratic) -> Side:
    """The systems of users, from confidences users x items."""
    total = row_sums(matrix)
    weight = loss.weight[0] + loss.weight[1] * total
    row = np.repeat(total, np.diff(matrix.indptr))
    extra, pull = _events(matrix.data, row, loss)
    ones = torch.ones(1).expand(matrix.shape[1])  # not an array: a request has few events
    return _side(matrix, extra, pull, weight, loss.items * weight, loss, ones)


def items_side(matrix: sp.csr_matrix, total: np.ndarray, loss: Quadratic) -> Side:
    """The systems of items, from confidences items x users and each user's sum of them (c_x)."""
    weight = loss.weight[0] + loss.weight[1] * total
    extra, pull = _events(matrix.data, total[matrix.indices], loss)
    ones, fixed = np.ones(matrix.shape[0]), torch.from_numpy(weight.astype(np.float32))
    return _side(matrix, extra, pull, ones, ones * weight.sum(), loss, fixed)


def row_sums(matrix: sp.csr_matrix) -> np.ndarray:
    """The sum of each row in float64."""
    return np.asarray(matrix.sum(1, dtype=np.float64)).ravel()


def _events(data: np.ndarray, total: np.ndarray, loss: Quadratic) -> tuple[np.ndarray, np.ndarray]:
    (a0, a1), (t0, t1) = loss.extra, loss.pull
    return data * (a0 + a1 * total), data * (t0 + t1 * total)


def _side(
    matrix: sp.csr_matrix,
    extra: np.ndarray,
    pull: np.ndarray,
    weight: np.ndarray,
    background: np.ndarray,
    loss: Quadratic,
    fixed: Tensor,
) -> Side:
    summed = sp.csr_matrix((extra, matrix.indices, matrix.indptr), shape=matrix.shape)
    total = background + row_sums(summed)
    reg = np.where(total > 0, loss.lam * np.maximum(total, 0) ** loss.nu, 1.0)
    floats = [torch.from_numpy(x.astype(np.float32)) for x in (extra, pull, weight, reg)]
    indptr = torch.from_numpy(matrix.indptr.astype(np.int64))
    return Side(indptr, torch.from_numpy(matrix.indices.astype(np.int32)), *[*floats, fixed])


def shared_by_users(loss: Quadratic, items: Tensor, summed: Summed | None = None) -> Shared:
    """What the systems of users share, for item vectors (N, D).

    With `summed`, which sums tensors over the ranks, `items` are those of this rank.
    """
    gram, total, count = items.T @ items, items.sum(0), len(items)
    if summed is not None:
        (gram, total), count = summed(gram, total), loss.items
    if loss.centre != 0 and loss.weight[0] > 0:  # they sum to 0; new ones are not counted
        total = torch.zeros_like(total)
    return Shared(_interact(loss, gram, total, count), loss.centre * total)


def _interact(loss: Quadratic, gram: Tensor, total: Tensor, items: int) -> Tensor:
    """Subtract the interaction from the Gram matrix.

    `items` is their present number: with a smaller one the result could be indefinite.
    """
    if loss.frobenius:
        return (1 - loss.beta) * gram
    return gram - (loss.beta / items) * torch.outer(total, total)


def shared_by_items(
    loss: Quadratic, users: Tensor, fixed: Tensor, total: Tensor, summed: Summed | None = None
) -> Shared:
    """What the systems of items share, for user vectors (U, D) and their weights `fixed` (U,).

    With `summed`, which sums tensors over the ranks, `users` are those of this rank.

    The interaction of exact RGx couples the items through their sum `total` (D,). It is concave:
    with the present sum in its place the loss is bounded from above, and lowering the bound lowers
    the loss. `als.Sweeps` then shifts all items, or solves for the sum if steps are exact.
    """
    gram = (users * fixed[:, None]).T @ users
    pull = loss.centre * ((fixed - loss.weight[0]) @ users)
    if summed is not None:
        gram, pull = summed(gram, pull)
    if loss.frobenius:
        return Shared((1 - loss.beta) * gram, pull)
    return Shared(gram, pull + (loss.beta / loss.items) * (gram @ total))


def objective(
    loss: Quadratic, side: Side, users: Tensor, items: Tensor, reg_items: Tensor
) -> Tensor:
    """The value of the loss, without the constants that complete the events' squares.

    It may be negative.

    Args:
        loss: the loss.
        side: the systems of the users.
        users: (U, D).
        items: (N, D).
        reg_items: regulariser per item (N,).
    """
    gram, total = items.T @ items, items.sum(0)
    met = _interact(loss, gram, total, len(items))
    spread = ((users @ met) * users).sum(1) - 2 * loss.centre * (users @ total)
    background = (side.weight * (spread + loss.centre**2 * len(items))).sum()
    row = torch.repeat_interleave(torch.arange(len(users), device=users.device), side.indptr.diff())
    events = users.new_zeros(())
    for start in range(0, len(row), EVENTS_AT_A_TIME):
        part = slice(start, start + EVENTS_AT_A_TIME)
        o = (users[row[part]] * items[side.other[part].long()]).sum(1)
        events = events + (side.extra[part] * o**2 - 2 * side.pull[part] * o).sum()
    rows = (side.reg * users.square().sum(1)).sum() + (reg_items * items.square().sum(1)).sum()
    return background + events + rows
